"""Every command once in a new interpreter, as users start it; most tests fork theirs from one that has torch."""

import re
from pathlib import Path

import pytest

from bench.cli.app import app
from tests.cli.commands import COMMANDS
from tests.conftest import ROOT
from tests.warm import PATIENCE, Start

GRID = """\
methods: [fedavg, local]
datasets: [digits]
alphas: [1.0]
clients: 4
rounds: 2
"""


ELSEWHERE = {
    "decide": "tests/cli/test_decide.py",
    "speed": "tests/speed/test_measure.py",
    "league": "tests/sweeps/test_league_commands.py",
    "peer": "tests/peer/test_pfllib.py",
    "protocol": "tests/reports/test_protocol.py",
    "ui": "a server that does not end; tests/runs/test_tracking.py starts it",
}


@pytest.mark.long
def test_every_command_starts(tmp_path: Path, fresh: Start) -> None:
    (tmp_path / "grid.yaml").write_text(GRID, encoding="utf-8")
    for line in COMMANDS.splitlines():
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
