"""Verify the entries that a branch adds or changes, as a workflow does: `python -m reports.league.submitted BASE HEAD`.

Each is verified blind, with its plug-in, which lies beside it under the method's name. The cells that are
computed again are drawn here and now: whoever makes a commit or a file can try many until its checksum suits. Exit
status 1: one of them is not what it says; what none can confirm here is said, and is no fault.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.results.pack import SUFFIX
from reports.league.submission import ENTRIES, verification

CELLS = 59
"""Cells of each that are computed again: where 5 % of any number of cells are forged, they meet one with 95 %."""
_UNCONFIRMED = 3


def changed_entries(base: str, head: str) -> list[Path]:
    """Entries that a commit has and another one has not, or not so."""
    command = ["git", "diff", "--name-only", "--diff-filter=AMR", f"{base}...{head}", "--", str(ENTRIES)]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [Path(name) for name in listed if name.endswith(SUFFIX)]


def plugins_of(entry: Path) -> list[Path]:
    """The plug-in that lies beside an entry, if its method has one."""
    plugin = entry.with_name(f"{entry.name.removesuffix(SUFFIX)}.py")
    return [plugin] if plugin.exists() else []


def main(arguments: Sequence[str]) -> int:
    """Verify each entry, and return 1 if one of them fails."""
    base, head = arguments
    entries, failed = changed_entries(base, head), False
    for entry in entries:
        command = verification(entry, plugins_of(entry), CELLS)
        print(f"bench {' '.join(command)}", flush=True)
        status = subprocess.run([sys.executable, "-m", "bench.cli", *command]).returncode
        if status == _UNCONFIRMED:
            print(f"{entry}: on this kind of processor no drawn cell could be confirmed", flush=True)
        failed |= status not in (0, _UNCONFIRMED)
    print(f"{len(entries)} entries verified")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
