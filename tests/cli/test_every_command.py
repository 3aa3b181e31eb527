"""Every command once in a new interpreter, as users start it, and the commands of four pages of the manual."""

import re
import shlex
from pathlib import Path

import pytest

from bench.cli.app import app
from tests.conftest import ROOT
from tests.warm import PATIENCE, Python, Start

COMMANDS = """\
bench grids
bench datasets
bench models
bench methods
bench cite fedavg
bench data grid.yaml
bench show grid.yaml
bench new-method mine
bench from-pfllib -- -algo Ditto -mu 0.1
bench run --grid grid.yaml --out run --jobs 1 --no-tracking --keep best
bench status run
bench log run {cell}
bench results run
bench evaluate run --tests others
bench export run {cell} --out models
bench clean run
bench pack run --out packed.tar.xz
bench unpack packed.tar.xz unpacked
bench verify packed.tar.xz --cells 1 --jobs 1 --blind
bench sites export grid.yaml --only method=fedavg --out job
"""
"""Those that `docs/ten-tasks.md` does not have: its commands are run in new interpreters, too."""
ELSEWHERE = {
    "decide": "tests/cli/test_decide.py",
    "speed": "tests/speed/test_measure.py",
    "league": "tests/sweeps/test_league_commands.py",
    "peer": "tests/peer/test_pfllib.py",
    "protocol": "tests/reports/test_protocol.py",
    "ui": "a server that does not end; tests/runs/test_tracking.py starts it",
}
PAGES = {"ten-tasks.md": 18, "add-a-method.md": 4, "own-data.md": 9, "start.md": 5}
"""Their numbers of commands."""


@pytest.mark.long
def test_every_command_starts(tmp_path: Path, fresh: Start) -> None:
    grid = "methods: [fedavg, local]\ndatasets: [digits]\nalphas: [1.0]\nclients: 4\nrounds: 2\n"
    (tmp_path / "grid.yaml").write_text(grid, encoding="utf-8")
    for line in ("bench --version", *COMMANDS.splitlines()):
        cells = sorted(path.parent.name for path in tmp_path.glob("run/*/status.json"))
        words = [cells[0] if word == "{cell}" else word for word in line.split()]
        process = fresh(words[1:], tmp_path)
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, line + out + err
        assert "Traceback" not in err
        assert out or err, line


def test_no_command_is_left_out() -> None:
    """A new one needs a plain run of its own, here or among the ten tasks."""
    names = {command.name or command.callback.__name__.replace("_", "-") for command in app.registered_commands}
    names |= {group.name for group in app.registered_groups}
    page = (ROOT / "docs" / "ten-tasks.md").read_text(encoding="utf-8")
    assert names == set(re.findall(r"^bench ([\w-]+)", COMMANDS + page, re.MULTILINE)) | ELSEWHERE.keys()


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES)
def test_the_page_s_files_and_commands_do_what_it_says(
    page: str, tmp_path: Path, python: Python, fresh: Start, start_in: Start
) -> None:
    """Every file is written where it stands, every command ends with the status (and says the words) beside it. A
    command runs in a new interpreter the first time that the page has it, unless `test_every_command_starts` has it."""
    ran, started = 0, {line.split()[1] for line in COMMANDS.splitlines()}
    content = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for kind, text in re.findall(r"^```(\w+)\n(.*?)^```", content, re.MULTILINE | re.DOTALL):
        if kind != "sh":
            name, _, lines = text.partition("\n")
            (tmp_path / name.removeprefix("# ")).write_text(lines, encoding="utf-8")
            continue
        for line in text.splitlines():
            command, _, beside = line.partition("  # ")
            program, *words = shlex.split(command)
            if program == "bench":
                with (start_in if words[0] in started else fresh)(words, tmp_path) as process:
                    out, err = process.communicate(timeout=PATIENCE)
                code = process.returncode
                started.add(words[0])
            else:
                done = python(*words, folder=tmp_path)
                code, out, err = done.returncode, done.stdout, done.stderr
            status = re.match(r"exit status (\d): (.*)", beside)
            assert code == (int(status[1]) if status else 0), line + out + err
            assert "Traceback" not in out + err
            if status and status[1] == "2":
                assert status[2] in err
            ran += 1
    assert ran == PAGES[page]
