"""Errors that are meant for the user: one clear message, exit status 2, no traceback."""

import errno
import traceback
from pathlib import Path


class UserError(Exception):
    """Something the user asked for cannot be done; the message says what, where and what to do."""


def in_words(error: BaseException, file: str | None) -> str:
    """An error of somebody's own code with the last line of that file that led to it, or else where it was raised."""
    if isinstance(error, SyntaxError):  # its text names the line; it has no frame in the file
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    last = next((frame for frame in reversed(frames) if frame.filename == file), frames[-1])
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"


class Lost(Exception):
    """Something that a cell was run with is no more; the cell can go on from its last checkpoint."""


_REFUSED = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP,
)  # fmt: skip
_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


def shortage(error: BaseException) -> str:
    """One sentence with what to do for an error that means a full disk or no memory left; empty for any other."""
    text = str(error)
    writing = "PytorchStreamWriter failed writing" in text or "inline_container.cc" in text  # torch.save's words
    if (isinstance(error, OSError) and error.errno in _FULL) or writing:
        place = f" while writing {error.filename}" if isinstance(error, OSError) and error.filename else ""
        return f"the disk is full{place}: free some space and give the same command again, it goes on from there"
    words = ("can't allocate memory", "out of memory", "CUFFT_ALLOC_FAILED")
    if isinstance(error, MemoryError) or any(word in text for word in words):
        return (
            "out of memory: run fewer cells side by side (--jobs), or take a smaller model, batch_size or number of "
            f"clients ({text.strip().splitlines()[0][:200] if text else 'no details'})"
        )
    return ""


def refused(error: OSError) -> str:
    """One sentence for a file or folder that the system does not let us use as asked; empty for any other error.

    A file that is missing is no such case: what the user names is looked for before, so that one would be our own bug.
    """
    if error.errno not in _REFUSED or error.filename is None:
        return ""
    return f"cannot read or write {error.filename}: {error.strerror}"
