"""What is done with the league's entries in the repository: `python -m tools.league COMMAND ...`.

`ship FOLDER...`, after entries were added or replaced: keeps each partition once beside the entries, leaves out the
clients' relations, which the league does not show, lists the checksums of all files, and writes the checksum of the
release file into `reports/league/release.json`.

`release FOLDER` makes the release file with all entries, which installations without a checkout fetch.

`verify BASE HEAD` verifies the entries that a branch adds or changes, as a workflow does: blind, with the plug-in that
lies beside an entry under its method's name. The cells that are computed again are drawn here and now, as whoever makes
a commit or a file can try many until its checksum suits. Exit status 1: an entry is not what it says; entries that
cannot be confirmed on this kind of processor are no fault.
"""

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from bench.results.pack import (
    RECORD,
    RELATIONS,
    SHARED,
    SUFFIX,
    archived,
    checksum_in,
    compressed,
    read_shared,
    without_checksums,
)
from bench.store import inside
from reports.league.export import ENTRIES, verification
from reports.league.shipped import CHECKOUT, RELEASE, Release

CHECKSUMS = "SHA256SUMS"
CELLS = 59
"""Cells of each entry that are computed again: where 5 % of any number of cells are forged, they meet one with 95 %."""
_UNCONFIRMED = 3


def lighten(folder: Path) -> None:
    """Take the partitions out of the packed runs of a folder, each of which is kept once in a file beside them, and
    the clients' relations, which would be up to two thirds of a run.

    A cell whose status has no checksum of its partition keeps it. The same runs give the same bytes.
    """
    texts = read_shared(folder)
    for file in sorted(folder.glob(f"*{SUFFIX}")):
        with tarfile.open(file, "r:xz") as archive:
            files = {member.name: archive.extractfile(member) for member in archive}
            contents = {name: content.read() for name, content in files.items() if content is not None}
        checksums = {
            name: checksum_in(contents[name.replace(RECORD, "status.json")])
            for name in contents
            if name.endswith(f"/{RECORD}")
        }
        taken = {name: checksum for name, checksum in checksums.items() if checksum}
        texts |= {checksum: contents.pop(name).decode() for name, checksum in taken.items()}
        related = [name for name in contents if name.endswith(f"/{RELATIONS}")]
        for name in related:
            del contents[name]
            status = name.replace(RELATIONS, "status.json")
            contents[status] = without_checksums(json.loads(contents[status]), [RELATIONS])
        if taken or related:
            inside.replace(file, archived(contents.items()))
    inside.replace(folder / SHARED, compressed(texts))


def ship(folder: Path) -> None:
    """Make the entries of a folder small, and write its `SHA256SUMS`."""
    lighten(folder)
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(folder.glob("*.xz"))]
    inside.replace(folder / CHECKSUMS, "".join(sums).encode())


def release_file(entries: Path = CHECKOUT) -> bytes:
    """Pack all folders of entries; the same entries give the same bytes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for file in sorted(path for path in entries.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
            info = tarfile.TarInfo(file.relative_to(entries).as_posix())
            info.size = file.stat().st_size
            archive.addfile(info, io.BytesIO(file.read_bytes()))
    return packed.getvalue()


def write_checksum() -> None:
    """Write the checksum of the release file of the checkout's entries into `reports/league/release.json`."""
    about = json.loads(RELEASE.read_text(encoding="utf-8"))
    about["sha256"] = hashlib.sha256(release_file()).hexdigest()
    RELEASE.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def write_release(out: Path) -> Path:
    """Write the release file into a folder; its checksum must be that in `reports/league/release.json`."""
    release, content = Release.read(), release_file()
    if hashlib.sha256(content).hexdigest() != release.sha256:
        sys.exit(f"{RELEASE} has the checksum of other entries: `python -m tools.league ship FOLDER` writes it")
    file = out / release.name
    file.write_bytes(content)
    return file


def changed_entries(base: str, head: str) -> list[Path]:
    """Entries that a commit has and another one has not, or not so."""
    command = ["git", "diff", "--name-only", "--diff-filter=AMR", f"{base}...{head}", "--", str(ENTRIES)]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [Path(name) for name in listed if name.endswith(SUFFIX)]


def plugins_of(entry: Path) -> list[Path]:
    """The plug-in that lies beside an entry, if its method has one."""
    plugin = entry.with_name(f"{entry.name.removesuffix(SUFFIX)}.py")
    return [plugin] if plugin.exists() else []


def verify(base: str, head: str) -> int:
    """Verify each entry, and return 1 if one of them fails."""
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


def main(arguments: Sequence[str]) -> int:
    """Run one of the commands."""
    match arguments:
        case ["ship", *folders]:
            for folder in folders:
                ship(Path(folder))
            write_checksum()
        case ["release", out]:
            print(write_release(Path(out)))
        case ["verify", base, head]:
            return verify(base, head)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
