from tests.runs.conftest import bench, start  # noqa: F401  # the real command
