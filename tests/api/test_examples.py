"""The examples in the docstrings of the public API run and give what they say."""

import doctest
import os
from pathlib import Path

import pytest

import bench

WITH_EXAMPLES = ["run", "report"]


def examples(name: str) -> doctest.DocTest:
    """The example of a name of the front door."""
    [found] = [test for test in doctest.DocTestFinder(recurse=False).find(getattr(bench, name), name) if test.examples]
    return found


@pytest.mark.long
@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_an_example_gives_what_it_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    outcome = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(examples(name), out=said.append)
    assert outcome.attempted >= 4
    assert outcome.failed == 0, "".join(said)
    assert os.listdir(tmp_path) == ["runs"]
