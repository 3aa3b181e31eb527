import resource
from collections.abc import Iterator

import pytest

from tests.runs.conftest import arrays, bench, bench_here, cell, grid, odd_methods, start  # noqa: F401  # the same small cells


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file may exceed 10 kB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
