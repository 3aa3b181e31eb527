"""Reading .npz files that a user wrote."""

import zipfile
import zlib
from collections.abc import Set
from pathlib import Path

import numpy as np

from bench.data import Array
from bench.errors import UserError
from bench.places import check_file


def read_npz(file: Path, names: Set[str] | None = None) -> dict[str, Array]:
    """Read the arrays of a file, by name: all, or those of `names` that it has; pickled objects are refused.

    Raises:
        UserError: the file is missing or damaged, or it is no .npz file of plain arrays.
    """
    check_file(file, remedy="set the option `path` to your .npz file")
    try:
        # opened here, because NumPy does not close a file that turns out not to be an archive
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files if names is None or name in names}
    # TypeError: numpy.load returned the single array of an .npy file, which is not a context manager
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{file} cannot be read as an .npz file of plain arrays ({_reason(file, error)})") from None


def _reason(file: Path, error: Exception) -> str:
    """Explain why a file cannot be read.

    NumPy's own message is replaced where it advises unpickling, because that can run any code.
    """
    if file.is_file() and not zipfile.is_zipfile(file):
        return "it is no .npz archive, or damaged: write it again with numpy.savez"
    if "allow_pickle" in str(error):
        return "it holds Python objects: convert them to numbers and write it again with numpy.savez"
    return f"{error}: write it again with numpy.savez"
