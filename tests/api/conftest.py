from tests.cli.conftest import write_study  # noqa: F401
from tests.runs.conftest import arrays, bench_here, cell, grid, odd_methods, start  # noqa: F401  # the same small cells
