"""Models of a user's own, registered for one test."""

from collections.abc import Iterator

import pytest

from bench.plugin import MODELS


@pytest.fixture(autouse=True)
def theirs(request: pytest.FixtureRequest) -> Iterator[None]:
    """The test's parameter, if it has one of this name, is registered as the model `theirs`."""
    if not hasattr(request, "param"):
        yield
        return
    MODELS.names()  # loads the package's own models first
    MODELS.register("theirs")(request.param)
    yield
    del MODELS._items["theirs"]
