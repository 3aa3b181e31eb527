"""docs/ten-tasks.md, run from an empty folder as it stands there."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.warm import PATIENCE, Start

PAGE = ROOT / "docs" / "ten-tasks.md"


@pytest.mark.long
def test_the_page_s_files_and_commands_do_what_it_says(
    tmp_path: Path, environment: dict[str, str], fresh: Start, start_in: Start
) -> None:
    """Every file is written where it stands, every command ends with the status (and says the words) beside it. A
    command runs in a new interpreter the first time that the page has it."""
    ran, started = 0, set[str]()
    for kind, text in re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        if kind != "sh":
            name, _, content = text.partition("\n")
            (tmp_path / name.removeprefix("# ")).write_text(content, encoding="utf-8")
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
                script = [sys.executable, *words]
                done = subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, text=True)
                code, out, err = done.returncode, done.stdout, done.stderr
            status = re.match(r"exit status (\d): (.*)", beside)
            assert code == (int(status[1]) if status else 0), line + out + err
            assert "Traceback" not in out + err
            if status and status[1] == "2":
                assert status[2] in err
            ran += 1
    assert ran == 26
