"""The parts of a pull request with an entry: files at their places, and a verification (docs/league.md)."""

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.child_processes import safe_path
from bench.errors import UserError
from bench.results.results import RunView
from reports.league.archive import write_files
from reports.league.export import check_code, installed, own_files

ENTRIES = Path("reports", "league", "entries")
"""Where entries lie in the repository, each with its plug-in beside it."""
_PASSED = (0, 3)
"""Exit statuses of a verification: all is as it was; or on this kind of processor no drawn cell could be confirmed."""


def write_submission(
    entry: Path, run: RunView, out: Path, standing: str, *, cells: int, jobs: int | None, data_root: Path
) -> Path:
    """Gather in a folder what a pull request adds, and `SUBMISSION.md` for its text.

    The cells that are computed again are for whoever submits: others are drawn where the entry is verified.

    Args:
        entry: the packed run.
        run: the same unpacked, and admitted.
        out: the folder.
        standing: name of the folder of entries.
        cells: how many cells are computed again, blind.
        jobs: cells side by side; None: one per core.
        data_root: where data files lie.

    Returns:
        `SUBMISSION.md`.

    Raises:
        UserError: the method's code here is not what the entry was computed with, or the verification fails.
    """
    check_code(entry, run)
    code = own_files(run.cells[0].settings.method)
    places = {entry: ENTRIES / standing / entry.name}
    places |= {file: ENTRIES / standing / place for file, place in code.items()}
    write_files(out, {str(place): file.read_bytes() for file, place in places.items()})
    plugins = list(code)[:1]
    command = verification(out / places[entry], plugins, cells)
    command += [f"--data-root={data_root}", *([f"--jobs={jobs}"] if jobs else [])]
    again = [sys.executable, "-m", "bench.cli", *command]
    verified = subprocess.run(again, capture_output=True, text=True, env={**os.environ, **safe_path()})
    if verified.returncode not in _PASSED:
        said = f"{verified.stdout}{verified.stderr}".rstrip()
        raise UserError(f"{entry}: its verification fails, so nothing is ready to submit:\n{said}")
    text = _TEXT.format(
        method=run.cells[0].label,
        standing=standing,
        files="\n".join(f"- `{place}`" for place in places.values()),
        computed=run.info.get("command", "-"),
        commit=run.info.get("commit") or "-",
        machine=run.info.get("machine", "-"),
        command=shlex.join(["bench", *verification(places[entry], [places[file] for file in plugins], cells)]),
        status=verified.returncode,
        output=verified.stdout.rstrip(),
    )
    write_files(out, {"environment.txt": installed().encode(), "SUBMISSION.md": text.encode()})
    return out / "SUBMISSION.md"


def verification(entry: Path, plugins: Sequence[Path], cells: int) -> list[str]:
    """The arguments of `bench` that compute cells of an entry again, blind, drawn anew by each call."""
    files = [f"--plugin={file}" for file in plugins]
    return ["verify", str(entry), f"--cells={cells}", "--blind", *files]


_TEXT = """# {method} in {standing}

Copy this folder's `reports/` into the repository, and in `reports/league/entries/{standing}/` run
`sha256sum *.xz > SHA256SUMS`. The pull request adds:

{files}

Computed by `{computed}` at commit {commit} on {machine}; installed packages: `environment.txt`.

`{command}` (exit status {status}; 3: on this kind of processor no drawn cell could be confirmed):

```
{output}
```
"""
