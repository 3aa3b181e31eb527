"""The one place that opens, creates, replaces and clears files in a run's folder, and never leaves it.

A run's folder may be a link that its user made. Inside it nothing of ours is a link: one in the place of a file is
removed and what it leads to stays as it is; one in the place of a folder is refused. So a folder from somebody else
cannot make a command read, truncate or delete files elsewhere. Hard links are out of scope: no archive that `bench
unpack` takes holds one, and only somebody with an account on the machine can make one.
"""

import errno
import os
import shutil
import stat
from pathlib import Path
from typing import IO

from bench.errors import UserError
from bench.places import kind_of

TEMPORARY = ".tmp"
"""Ending of a file that is still being written."""

_WRITE = os.O_WRONLY | os.O_CREAT


def check_place(run: Path, place: Path) -> Path:
    """Return `place`, a file or folder of the run's folder `run` that need not exist yet, if no link is on the way.

    Raises:
        UserError: it is a link, or lies behind one.
    """
    expected, real = os.path.join(os.path.realpath(run), place.relative_to(run)), os.path.realpath(place)
    if real != os.path.normpath(expected) or ".." in place.relative_to(run).parts:
        raise UserError(
            f"{place} is or lies behind a link to {real}: remove it, as nothing in a run's folder may lead elsewhere"
        )
    return place


def make_folder(run: Path, folder: Path) -> Path:
    """Make a folder in a run's folder, with those above it, and return it.

    Raises:
        UserError: a link on the way leads elsewhere.
    """
    check_place(run, folder).mkdir(parents=True, exist_ok=True)
    return folder


def is_file(path: Path) -> bool:
    """Whether there is a regular file, not a link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


def open_file(path: Path, flags: int) -> int:
    """Open a regular file and return its descriptor. It neither follows a link nor waits at a pipe.

    Raises:
        FileNotFoundError: there is none, and `flags` does not make one.
        UserError: something else than a regular file is there.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except ValueError as error:  # a NUL in the name
        raise UserError(f"{str(path)!r} is no name of a file: {error}") from None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise
        raise UserError(_no_file(path)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(_no_file(path))
    return descriptor


def read_bytes(path: Path, limit: int | None = None) -> bytes:
    """Read a file of a run's folder; errors as those of `open_file`.

    Args:
        limit: most bytes that it may have; None: any.

    Raises:
        UserError: it is larger.
    """
    with open(open_file(path, os.O_RDONLY), "rb") as file:
        if limit is not None and (size := os.fstat(file.fileno()).st_size) > limit:
            raise UserError(f"{path} has {size} bytes, where {limit} is the most")
        return file.read() if limit is None else file.read(limit)


def append(path: Path) -> IO[str]:
    """Open a text file to add to it; a link in its place is removed first.

    Raises:
        UserError: a folder is in its place.
    """
    remove_link(path)
    return open(open_file(path, _WRITE | os.O_APPEND), "a", encoding="utf-8", newline="")


def update(path: Path) -> IO[str]:
    """Open a text file to read and write it, made if there is none; a link in its place is removed first.

    Raises:
        UserError: a folder is in its place.
    """
    remove_link(path)
    return open(open_file(path, os.O_RDWR | os.O_CREAT), "r+", encoding="utf-8")


def replace(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Replace a file as a whole: a reader sees the old content or the new one, never a part; a full disk keeps the old.

    Args:
        path: the file; a link in its place is replaced, not followed.
        content: all of it.
        durable: wait until it is on the disk; not needed for what can be made again.

    Raises:
        UserError: a folder is in its place.
    """
    if path.is_dir() and not path.is_symlink():
        raise UserError(_no_file(path))
    temporary = path.with_name(path.name + TEMPORARY)
    if os.path.lexists(temporary):
        remove(temporary)
    try:
        with open(open_file(temporary, _WRITE | os.O_EXCL), "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames and new names in a folder survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file, a folder, or a link but not what it leads to."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def remove_link(path: Path) -> None:
    """Remove a link, and not what it leads to; anything else stays."""
    if path.is_symlink():
        path.unlink(missing_ok=True)


def _no_file(path: Path) -> str:
    kind = "a link" if path.is_symlink() else kind_of(path)
    return f"{path} is {kind} where a file should be: remove it and give the same command again"
