"""Errors for the user, shown as one clear message without a traceback, with exit status 2."""

import contextlib
import errno
import io
import sys
import traceback
from pathlib import Path


class UserError(Exception):
    """The user asked for something impossible; the message says what and where it is, and how to fix it."""


def in_words(error: BaseException, file: str | None) -> str:
    """Describe an error of a user's code with the last line of `file` in its traceback, else where it was raised."""
    if isinstance(error, SyntaxError):  # its text names the line already; the traceback has no frame in the file
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    last = next((frame for frame in reversed(frames) if frame.filename == file), frames[-1])
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"


def let_output_degrade() -> None:
    """Print `?` for what the encoding of standard output lacks, as in the C locale; no output fails because of it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError):  # it was a file and is a pipe now, in which nobody can seek
                stream.reconfigure(errors="replace")


class Lost(Exception):
    """A helper process or device of a running cell was lost; the cell can resume from its last checkpoint."""


_REFUSED = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP,
)  # fmt: skip
_OPEN = (errno.EMFILE, errno.ENFILE)
_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


def shortage(error: BaseException) -> str:
    """One sentence of advice for an error that means that the disk, memory or open files ran out; empty for others."""
    text = str(error)
    writing = "PytorchStreamWriter failed writing" in text or "inline_container.cc" in text  # messages of torch.save
    if (isinstance(error, OSError) and error.errno in _FULL) or writing:
        place = f" while writing {error.filename}" if isinstance(error, OSError) and error.filename else ""
        return f"the disk is full{place}: free some space and give the same command again, it goes on from there"
    if isinstance(error, OSError) and error.errno in _OPEN:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return (
            f"too many open files, of which the system allows this process {limit}: run fewer cells side by side "
            "(--jobs), or raise the limit (ulimit -n 4096), and give the same command again"
        )
    words = ("can't allocate memory", "out of memory", "CUFFT_ALLOC_FAILED")
    if isinstance(error, MemoryError) or any(word in text for word in words):
        return (
            "out of memory: run fewer cells side by side (--jobs), or take a smaller model, batch_size or number of "
            f"clients ({text.strip().splitlines()[0][:200] if text else 'no details'})"
        )
    return ""


def refused(error: OSError) -> str:
    """One sentence for a file or folder that the system does not let us read or write; empty for other errors.

    A missing file is not included: files that the user names are checked earlier, so a missing one would be our bug.
    """
    if error.errno not in _REFUSED or error.filename is None:
        return ""
    return f"cannot read or write {error.filename}: {error.strerror}"
