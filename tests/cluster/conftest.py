from collections.abc import Iterator

import pytest

from tests.cluster.nodes import Nodes
from tests.runs.conftest import arrays, bench, cell, grid, odd_methods, start  # noqa: F401  # the same small cells


@pytest.fixture(scope="package")
def nodes(environment: dict[str, str]) -> Iterator[Nodes]:
    """A cluster that has only its head; every file adds the nodes that it needs, and removes them at its end. It ends
    with the folder's tests, because an idle Ray is not idle."""
    pytest.importorskip("ray")
    cluster = Nodes(environment)
    yield cluster
    cluster.end()
