"""Faults that somebody might make, two in each room, which the quick tests of that room must notice.

`python -m tests.injected [ROOM...]` injects them one by one into a copy of the checkout and prints which test is the
first to fail. The exit status is 1 if a fault is not noticed. That the tests pass without a fault is for `make test`.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.conftest import ROOT
from tests.rooms import room as room_of

LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", ".*_cache", "__pycache__", ".hypothesis", "runs", "data", "site")
"""What lies beside the code and a copy does not need."""


@dataclass(frozen=True)
class Fault:
    """A change of one file that gives wrong results and no error.

    Attributes:
        what: what the program then does.
        file: the file, from the root of the checkout.
        old, new: a text that stands once in the file, and the text in its place.
        tests: which quick tests are to notice it: a file below `tests/`, or a test of a file.
    """

    what: str
    file: str
    old: str
    new: str
    tests: str

    @property
    def room(self) -> str:
        """The room of the file."""
        return room_of(self.file.removesuffix(".py").replace("/", "."))


FAULTS = [Fault(**fault) for fault in yaml.safe_load((ROOT / "tests" / "faults.yaml").read_text(encoding="utf-8"))]
"""In the order of the rooms."""


@dataclass(frozen=True)
class Outcome:
    """What the quick tests of a room say of a fault.

    Attributes:
        noticed_by: the first test that fails; empty if all pass.
        seconds: wall time of the command.
    """

    noticed_by: str
    seconds: float


def copy_checkout(folder: Path) -> None:
    """Copy the checkout to a folder that does not exist, without its environment, caches and results."""
    shutil.copytree(ROOT, folder, ignore=lambda at, names: set() if Path(at) != ROOT else LEFT_OUT(at, names))


def inject(fault: Fault, folder: Path) -> Outcome:
    """Run the quick tests of a fault's room in a copy of the checkout with the fault, which is then removed.

    Raises:
        RuntimeError: pytest did not come to its end, for instance because a file could not be imported.
    """
    file = folder / fault.file
    before = file.read_text(encoding="utf-8")
    file.write_text(before.replace(fault.old, fault.new), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", "-p", "no:cacheprovider"]
    command.append(f"tests/{fault.tests}")
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}  # saves seconds
    begin = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=folder, env={**kept, "PYTHONPATH": str(folder)}, capture_output=True, text=True
        )
    finally:
        file.write_text(before, encoding="utf-8")
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{fault.file}: pytest ended with {done.returncode}\n{done.stdout[-3000:]}{done.stderr}")
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", done.stdout, re.MULTILINE)
    assert bool(failed) == bool(done.returncode), done.stdout
    return Outcome(failed[1] if failed else "", time.monotonic() - begin)


def main() -> None:
    """Inject the faults of the rooms that are asked for, or of all, and print a table."""
    rooms = list(dict.fromkeys(fault.room for fault in FAULTS))
    parser = argparse.ArgumentParser(prog="python -m tests.injected", description=main.__doc__)
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"one of {', '.join(rooms)}")
    asked = parser.parse_args().rooms or rooms
    if unknown := set(asked) - set(rooms):
        parser.error(f"no faults are known for {', '.join(sorted(unknown))}; choose from {', '.join(rooms)}")
    print("room | fault | noticed by | seconds\n--- | --- | --- | ---", flush=True)
    missed = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "checkout")
        copy_checkout(folder)
        for fault in FAULTS:
            if fault.room in asked:
                outcome = inject(fault, folder)
                missed += not outcome.noticed_by
                noticed = outcome.noticed_by or "NO TEST"
                print(f"{fault.room} | {fault.what} | {noticed} | {outcome.seconds:.0f}", flush=True)
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
