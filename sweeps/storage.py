"""Optuna's storage of a study's trials: the address of its file, and messages of one line about its problems."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import UserError
from bench.runs.tracking import shown, sqlite_url

if TYPE_CHECKING:
    from optuna.storages import RDBStorage

LOCK_SECONDS = 60.0
"""So long a study waits for its file where another process has it locked."""


def study_storage(folder: Path) -> str:
    """The address of the storage in a run folder, unless the user gives another one."""
    return sqlite_url(folder.resolve() / "study.db")


def open_storage(storage: str) -> "RDBStorage":
    """Open the storage of an address. A file that another process has locked is waited for."""
    from optuna.storages import RDBStorage
    from sqlalchemy.pool import NullPool

    # A file is opened for each use: connections that are kept nobody would close, and Python 3.13 warns of that.
    pool = {"poolclass": NullPool, "connect_args": {"timeout": LOCK_SECONDS}} if _file(storage) else {}
    return RDBStorage(storage, engine_kwargs=pool)


@contextlib.contextmanager
def storage_problems(storage: str) -> Iterator[None]:
    """Explain in one line what is wrong with a study's storage.

    Without its own file a study begins anew with the same draws, and takes the results of finished cells as they are.

    Args:
        storage: its address.

    Raises:
        UserError: it cannot be used, is damaged, or another process keeps it locked.
    """
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except UnicodeEncodeError:
        raise UserError(f"--storage {shown(storage)!a} is not text in UTF-8: give another one") from None
    except (StorageInternalError, SQLAlchemyError, ImportError) as error:
        cause = error.__cause__ if isinstance(error, StorageInternalError) else error
        line = str(getattr(cause, "orig", None) or cause or error).strip().partition("\n")[0]
        remedy = (
            "Delete it and give the same command again, if it is the run's own: trials are drawn as before, and no "
            "finished cell is run again. Else give another --storage, such as sqlite:///study.db"
        )
        if "is locked" in line:
            remedy = f"Another process keeps it so for more than {LOCK_SECONDS:.0f} s: end that, and repeat the command"
        place = _file(storage) or shown(storage)
        raise UserError(f"the study's storage {place} cannot be used: {line}. {remedy}") from None


def _file(storage: str) -> Path | None:
    """The file of an SQLite storage."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    with contextlib.suppress(ArgumentError):
        url = make_url(storage)
        if url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:"):
            return Path(str(url.database))
    return None
