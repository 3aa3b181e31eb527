from tests.runs.conftest import arrays, bench_here, cell, grid, odd_methods, start  # noqa: F401  # the same small cells
