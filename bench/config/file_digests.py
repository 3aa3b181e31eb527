"""Digests of the user's files and folders, and their versions on the disk. A file is read once for each version."""

import contextlib
import functools
import hashlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path


def digest(text: str) -> str:
    """Digest of a text, 16 hex digits."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def content(path: Path) -> str:
    """Digest of a file, or of a folder's files and their names; if nothing is there, `absent:` with the path."""
    if not (path.is_file() or path.is_dir()):  # a pipe would be waited for
        return f"absent:{path}"
    files = sorted(_files(path)) if path.is_dir() else [path]
    names = [file.relative_to(path).as_posix() for file in files]
    return digest(json.dumps([names, [_file_digest(*version(file)) for file in files]]))


def versions(path: Path, depth: float = math.inf) -> tuple[tuple[Path, int, int], ...]:
    """The versions of a file, or of all files below a folder down to `depth` levels; of nothing if none can be read."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: a text that is no path
        return tuple(map(version, _files(path, depth) if path.is_dir() else [path]))
    return ()


def version(path: Path) -> tuple[Path, int, int]:
    """The place, time of the last change and size of a file, which distinguish its versions without reading it.

    Tools that unpack or copy may set the time of modification back; that of the change of status they cannot.
    """
    stat = path.stat()
    return path.absolute(), max(stat.st_mtime_ns, stat.st_ctime_ns), stat.st_size


def _files(folder: Path, depth: float = math.inf, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """All files below a folder. Links are followed, as loaders do, except those that lead back to a folder above."""
    place = folder.resolve()
    if place in above or len(above) >= depth:
        return
    with os.scandir(folder) as entries:  # asks the system once for each entry, where a path would ask twice
        for entry in entries:
            if entry.is_dir():
                yield from _files(Path(entry.path), depth, (*above, place))
            elif entry.is_file():
                yield Path(entry.path)


@functools.lru_cache(maxsize=100_000)
def _file_digest(path: Path, mtime: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
