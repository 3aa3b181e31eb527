"""Files and folders that users name: what is checked before a command or a function works, and how it is said.

The reason is the system's own where there is one. A check that writes leaves nothing behind.
"""

import errno
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from bench.errors import UserError

_KINDS = {stat.S_IFREG: "a file", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
_LONGEST_NAME = 60  # letters
_REFUSED = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP,
    errno.ENXIO,
)  # fmt: skip


def kind_of(path: Path, option: str = "") -> str:
    """The kind of what is at a path: `a file`, `a folder`, `a pipe`, `a socket` or `a device`; empty for nothing.

    Raises:
        UserError: the system does not say, for instance because a file stands where the path needs a folder.
    """
    try:
        return _KINDS.get(stat.S_IFMT(path.stat().st_mode), "a device")
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise UserError(f"{option} {path}: {_reason(path, error)}".lstrip()) from None


def check_file(path: Path, kind: str = "file", remedy: str = "") -> Path:
    """Check that a file can be read, and return it. A pipe cannot: what reads a file twice would wait for ever.

    Args:
        path: the file.
        kind: what messages call it.
        remedy: the end of the message, what would be right.

    Raises:
        UserError: there is none, something else is there, or it cannot be read.
    """
    return _check(path, "a file", kind, remedy)


def check_folder(path: Path, kind: str = "folder", remedy: str = "") -> Path:
    """Check that a folder can be read, and return it; arguments and errors as those of `check_file`."""
    return _check(path, "a folder", kind, remedy)


def _check(path: Path, wanted: str, kind: str, remedy: str) -> Path:
    end = remedy and f"; {remedy}"
    if (there := kind_of(path)) != wanted:
        raise UserError((f"{path} is {there}, not a {kind}" if there else _missing(path, kind)) + end)
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}{end}") from None
    return path


def _missing(path: Path, kind: str) -> str:
    above = next(place for place in (*reversed(path.parents), path) if not place.exists())
    return f"there is no {kind} {path}" + (f": there is no folder {above}" if above != path else "")


def check_output_folder(folder: Path, option: str = "--out", *, empty: bool = False) -> Path:
    """Check that a folder can be written, or made and then written, and return it.

    Args:
        folder: the folder, which need not exist.
        option: what names it, for the message.
        empty: whether nothing may lie in it.

    Raises:
        UserError: it cannot, and why; or something lies in it.
    """
    _check_output(folder, folder, option)
    if empty and folder.exists() and any(folder.iterdir()):
        raise UserError(f"{option} {folder} is not empty: give another folder".lstrip())
    return folder


def check_output_file(file: Path, option: str = "--out") -> Path:
    """Check that a file can be made or replaced, and return it; arguments and errors as of `check_output_folder`."""
    if (there := kind_of(file, option)) not in ("", "a file"):
        raise UserError(f"{option} {file} is {there}, not a file")
    _check_output(file, file.parent, option)
    return file


def _check_output(path: Path, folder: Path, option: str) -> None:
    """Write a file that has no name into the folder, or into the one in which it would be made."""
    kind_of(path, option)
    place = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if (there := kind_of(place) or "a link to nothing") != "a folder":
        raise UserError(f"{option} {path}: {place} is {there}, not a folder".lstrip())
    for name in path.relative_to(place).parts:
        kind_of(place / name, option)  # one that is too long is an error, though the folders above are not there yet
    import tempfile  # here, as every command reads this module

    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(bytes(512))  # a full disk has room for a name
    except OSError as error:
        reason = f"nothing can be written into {place}: {error.strerror}; choose another place"
        raise UserError(f"{option} {path}: {reason}".lstrip()) from None


def cache_folder() -> Path:
    """The folder for what can be fetched again: `pfleague` in `$XDG_CACHE_HOME`, which by default is `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pfleague"


def refused(error: OSError) -> str:
    """One sentence for a file or folder that the system does not let us read or write; empty for other errors.

    A missing file is not included: files that the user names are checked earlier, so a missing one would be our bug.
    """
    if error.errno not in _REFUSED or error.filename is None:
        return ""
    return f"cannot read or write {error.filename}: {_reason(Path(error.filename), error)}"


def _reason(path: Path, error: OSError | ValueError) -> str:
    """The system's reason, and in place of `Not a directory` and the like what is where."""
    if not isinstance(error, OSError):
        return "no file can have such a name"  # a NUL, or half a letter of UTF-16
    if error.errno == errno.ENOTDIR:
        above = next(place for place in reversed(path.parents) if place.exists() and not place.is_dir())
        return f"{above} is {kind_of(above)}, not a folder"
    if error.errno == errno.EISDIR:
        return "it is a folder, not a file"
    if error.errno == errno.EEXIST:
        return f"{kind_of(path) or 'a link to nothing'} is in its place"
    return str(error.strerror)


def file_stems(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Make a file's name, without its suffix, of each name; none is there twice, on disks without capitals either.

    Letters that a file system may refuse become `-`. Stems that are `taken` are those of other files.
    """
    stems: list[str] = []
    known = {stem.casefold() for stem in taken}
    for name in names:
        plain = re.sub(r"[^\w.=-]+", "-", name)[:_LONGEST_NAME].strip("-.") or "site"
        stem, count = plain, 1
        while stem.casefold() in known:
            count += 1
            stem = f"{plain}-{count}"
        known.add(stem.casefold())
        stems.append(stem)
    return stems
