"""Names of files and folders that are made of a user's names, of sites or of clients."""

import re
from collections.abc import Iterable

_LONGEST = 60  # letters


def file_stems(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Make a file's name, without its suffix, of each name; none is there twice, on disks without capitals either.

    Letters that a file system may refuse become `-`.

    Args:
        names: in any script, of any length.
        taken: stems that other files have.
    """
    stems: list[str] = []
    known = {stem.casefold() for stem in taken}
    for name in names:
        plain = re.sub(r"[^\w.=-]+", "-", name)[:_LONGEST].strip("-.") or "site"
        stem, count = plain, 1
        while stem.casefold() in known:
            count += 1
            stem = f"{plain}-{count}"
        known.add(stem.casefold())
        stems.append(stem)
    return stems
