"""Reading arrays from files that somebody else wrote: .npz files, and pickles of NumPy's arrays."""

import pickle
import zipfile
import zlib
from collections.abc import Set
from pathlib import Path
from typing import Any, ClassVar

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
        # without NumPy's own message, which advises unpickling: that can run any code
        raise UserError(
            f"{file} cannot be read as an .npz file of plain arrays ({type(error).__name__}): it is damaged, or holds "
            "Python objects; write numbers and texts with numpy.savez"
        ) from None


def read_pickled(file: Path, array: str = "") -> Any:
    """Read a pickle of arrays, numbers, texts, lists and dictionaries: a file, or an array of objects in an .npz file.

    Nothing that the file names is called: what describes an array is collected, and the array is made of it here. So
    no content of a file can run code; NumPy's own functions could be made to read any memory.

    Args:
        file: the file. Tuples come back as lists.
        array: the name of the array in an .npz file; if that has no dimensions, its only element is returned.

    Raises:
        UserError: the file is missing or damaged, or it holds something else.
    """
    check_file(file)
    try:
        if not array:
            with file.open("rb") as stream:
                return _plain(_Unpickler(stream).load())
        with zipfile.ZipFile(file) as archive, archive.open(f"{array}.npy") as member:
            if (
                np.lib.format.read_magic(member) != (1, 0)
                or not np.lib.format.read_array_header_1_0(member)[2].hasobject
            ):
                raise ValueError(f"{array!r} is no array of objects")
            content = _plain(_Unpickler(member).load())
        return content.item() if content.ndim == 0 else content
    except Exception as error:  # the file may hold anything
        raise UserError(f"{file} is damaged, or holds more than arrays ({type(error).__name__}: {error})") from None


class _Type:
    """The type of an array in a pickle: what `numpy.dtype` would be called with, and its state."""

    def __init__(self, code: str, *_: Any) -> None:
        self.code, self.order = code, "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1]


class _Pickled:
    """An array in a pickle: the state that NumPy would make it of."""

    def __init__(self, *state: Any) -> None:
        self.state = state

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def array(self) -> Array:
        _, shape, of, fortran, content = self.state
        dtype = np.dtype(of.code).newbyteorder(of.order)
        if dtype.kind not in "biufUO":
            raise ValueError(f"an array of {dtype}")
        if dtype.kind == "O":
            flat = np.empty(len(content), object)
            for place, element in enumerate(content):
                flat[place] = _plain(element)
        else:
            flat = np.frombuffer(content, dtype)
        return flat.reshape(shape, order="F" if fortran else "C")


class _Unpickler(pickle.Unpickler):
    """Unpickles with stand-ins for what NumPy's arrays name, and refuses every other name."""

    _stand_ins: ClassVar[dict[str, Any]] = {
        "ndarray": None,
        "matrix": None,
        "dtype": _Type,
        "_reconstruct": _Pickled,
        "scalar": lambda of, content: _Pickled(1, (), of, False, content),
        "_frombuffer": lambda content, of, shape, order: _Pickled(1, shape, of, order == "F", content),
    }

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] != "numpy" or name not in self._stand_ins:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return self._stand_ins[name]


def _plain(value: Any) -> Any:
    """The value with arrays and numbers in place of stand-ins."""
    match value:
        case _Pickled():
            array = value.array()
            return array[()] if array.ndim == 0 and array.dtype != object else array
        case list() | tuple():
            return [_plain(element) for element in value]
        case dict():
            return {key: _plain(element) for key, element in value.items()}
        case bool() | int() | float() | str() | None:
            return value
    raise ValueError(f"it holds {type(value).__name__}")
