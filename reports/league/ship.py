"""Prepare a folder of entries that come with the harness.

`python -m reports.league.ship reports/league/entries/league_2_small` keeps each partition once beside the entries,
leaves out the clients' relations, which the league does not show, and lists the checksums of all files. It is run after
entries were added or replaced.
"""

import hashlib
import sys
from pathlib import Path

from bench.results.pack import lighten
from bench.store import inside

CHECKSUMS = "SHA256SUMS"


def ship(folder: Path) -> None:
    """Make the entries of a folder small, and write its `SHA256SUMS`."""
    lighten(folder)
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(folder.glob("*.xz"))]
    inside.replace(folder / CHECKSUMS, "".join(sums).encode())


if __name__ == "__main__":
    for place in sys.argv[1:]:
        ship(Path(place))
