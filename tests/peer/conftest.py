from tests.runs.conftest import bench, bench_here, start  # noqa: F401  # the real command
