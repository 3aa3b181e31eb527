"""Models of a user's own, registered for one test."""

from collections.abc import Iterator

import pytest

from bench.plugin import MODELS


@pytest.fixture
def theirs(request: pytest.FixtureRequest) -> Iterator[None]:
    """The test's parameter is registered as the model `theirs`."""
    MODELS.names()  # loads the package's own models first
    MODELS.register("theirs")(request.param)
    yield
    del MODELS._items["theirs"]
