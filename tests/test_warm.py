"""Scripts that are forked from a warm process are as those of a new interpreter."""

import json
import sys
from pathlib import Path

import pytest

from tests.warm import Python

SCRIPT = """
import builtins, json, multiprocessing, os, sys

from bench.runs import workers


def known(pipe):
    pipe.send([hasattr(builtins, "LEFT"), __name__, os.environ.get("SAID")])


if __name__ == "__main__":
    builtins.LEFT, os.environ["SAID"] = True, "yes"
    here, there = multiprocessing.Pipe()
    process = workers._PROCESSES.Process(target=known, args=(there,))
    process.start()
    print(json.dumps([sys.argv, sys.path[0], __file__, os.getcwd(), here.recv()]))
    process.join()
    sys.exit(7)
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="there is no server of workers")
def test_workers_know_nothing_that_the_script_has_done(python: Python, tmp_path: Path) -> None:
    """But for its definitions, which they import, and its environment."""
    (tmp_path / "scripts").mkdir()
    file = tmp_path / "scripts" / "mine.py"
    file.write_text(SCRIPT, encoding="utf-8")
    done = python("scripts/mine.py", "--option", folder=tmp_path, code=7)
    argv, first, name, folder, known = json.loads(done.stdout)
    assert argv == ["scripts/mine.py", "--option"]
    assert (first, name, folder) == (str(file.parent), str(file), str(tmp_path))
    assert known == [False, "__mp_main__", "yes"]


@pytest.mark.long
def test_an_error_of_a_script_is_said(python: Python, tmp_path: Path) -> None:
    done = python(
        "-c", "import sys\nprint(__name__, sys.argv)\nraise ValueError('why')", "one", folder=tmp_path, code=1
    )
    assert done.stdout == "__main__ ['-c', 'one']\n"
    assert done.stderr.endswith("ValueError: why\n")
