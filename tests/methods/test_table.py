"""The page with all methods is what its script prints."""

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.engine.problems import METHOD_NAMES

PAGE = (ROOT / "docs" / "methods" / "README.md").read_text(encoding="utf-8")


def test_no_method_is_missing() -> None:
    assert [line.split("`")[1] for line in PAGE.splitlines() if line.startswith("| [`")] == METHOD_NAMES


def test_the_number_of_methods_in_the_readme_is_right() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"[all {len(METHOD_NAMES)} in one table](docs/methods/README.md)" in readme


@pytest.mark.slow
def test_it_is_what_the_script_prints() -> None:
    command = [sys.executable, str(ROOT / "docs" / "examples" / "methods_table.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    assert subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout == PAGE
