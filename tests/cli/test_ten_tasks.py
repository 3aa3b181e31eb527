"""docs/ten-tasks.md, run from an empty folder as it stands there."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGE = ROOT / "docs" / "ten-tasks.md"


@pytest.mark.long
def test_the_page_s_files_and_commands_do_what_it_says(tmp_path: Path, environment: dict[str, str]) -> None:
    """Every file is written where it stands, every command ends with the status (and says the words) beside it."""
    ran = 0
    for kind, text in re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        if kind != "sh":
            name, _, content = text.partition("\n")
            (tmp_path / name.removeprefix("# ")).write_text(content, encoding="utf-8")
            continue
        for line in text.splitlines():
            command, _, beside = line.partition("  # ")
            words = shlex.split(command)
            start = ["-m", "bench.cli"] if words[0] == "bench" else []
            done = subprocess.run(
                [sys.executable, *start, *words[1:]], cwd=tmp_path, env=environment, capture_output=True, text=True
            )
            status = re.match(r"exit status (\d): (.*)", beside)
            assert done.returncode == (int(status[1]) if status else 0), line + done.stdout + done.stderr
            assert "Traceback" not in done.stdout + done.stderr
            if status and status[1] == "2":
                assert status[2] in done.stderr
            ran += 1
    assert ran == 21
