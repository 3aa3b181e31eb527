"""Pages of tasks and tutorials, each run from an empty folder as it stands there."""

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.commands import COMMANDS
from tests.conftest import ROOT
from tests.warm import PATIENCE, Python, Start

PAGES = {"ten-tasks.md": 18, "add-a-method.md": 4, "own-data.md": 9, "start.md": 5}
"""Their numbers of commands."""


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
