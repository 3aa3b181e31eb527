"""Parts that loaders of published files share: fetching, and one message for files that are not as published."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.errors import UserError

ADVICE = "add `--download` to fetch it, or set `--data-root` to the folder that holds the data sets"


@contextmanager
def reading(name: str, file: Path, advice: str) -> Iterator[None]:
    """Turn any error of a block that reads `file`, or checks what it holds, into one message.

    Args:
        name: name of the data set.
        file: the file or folder.
        advice: end of the message: what the user can do.

    Raises:
        UserError: the block raised an error.
    """
    try:
        yield
    except Exception as error:  # the file may hold anything
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UserError(f"{name}: {file} is missing or not as it was published ({reason}); {advice}") from None


def fetch(name: str, fault: Callable[[], str], download: bool, load: Callable[[], object]) -> None:
    """Fetch published files if they are not there as published, and the user allows it.

    Args:
        name: name of the data set.
        fault: says what is missing or wrong; empty if nothing is.
        download: whether files may be fetched.
        load: fetches them.

    Raises:
        UserError: something is missing or wrong.
    """
    if not (problem := fault()):
        return
    if not download:
        raise UserError(f"{name}: {problem}; {ADVICE}")
    try:
        load()
    except (RuntimeError, OSError, ValueError) as error:
        raise UserError(f"{name}: {problem}; the download did not help ({error})") from None
    if problem := fault():
        raise UserError(f"{name}: {problem}; delete it and add `--download` again")


def fault_of(files: Mapping[Path, str | None]) -> str:
    """Say which file is missing or has a wrong checksum; empty if none.

    Args:
        files: each with its MD5 sum where it is known.
    """
    from torchvision.datasets.utils import check_integrity

    for file, md5 in files.items():
        if not check_integrity(file, md5):
            return f"{file} has a wrong checksum" if file.is_file() else f"{file} is missing"
    return ""
