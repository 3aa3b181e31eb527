"""`file`: index lists from a JSON, .npz or .pkl file, so that another system's split can be reproduced exactly."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bench.data import Dataset, Indices, Split
from bench.errors import UserError, did_you_mean
from bench.places import check_file
from bench.plugin import PARTITIONS
from bench.samples.division import check_lists
from datasets.arrays import read_npz, read_pickled

_LISTS = ("train", "validation", "test")
_FLBENCH = {"train": "train", "val": "validation", "test": "test"}

_Index = Annotated[int, Field(ge=0, lt=2**63)]


class _Document(BaseModel):
    """The JSON form of a split; other files are converted to it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    train: list[list[_Index]]
    validation: list[list[_Index]] | None = None
    test: list[list[_Index]] | None = None
    global_test: list[_Index] | None = None


@PARTITIONS.register("file")
def file(dataset: Dataset, *, clients: int, seed: int, path: str) -> Split:
    """Index lists read from a file, in the file's order; docs/data.md describes the formats.

    `train` is required, one list per client. `validation`, `test` and `global_test` are made by the harness where they
    are absent; an empty `global_test` means that the generic model is tested on the union of the local tests.

    Args:
        dataset: indices refer to the rows of the user's file, in its order. For files with parts and for official data
            sets they count from 0 through the training part and then the test part.
        clients: must be the number of lists.
        seed: not used here; the harness uses it for the lists that it makes.
        path: the file; a relative path starts at the current directory.

    Raises:
        UserError: the file is missing or malformed, the number of clients differs, an index is out of range or twice in
            a list, training or validation lists overlap, a training sample is also a test sample, or lists without
            tests train on samples that are kept for tests.
    """
    split = _read(Path(path))
    owner = check_lists(path, len(dataset.y), clients, split)
    return _placed(_tested(path, dataset, split, owner), _places(dataset))


def _places(dataset: Dataset) -> Indices:
    """The sample of the data set that each row of the file has become, `[n]`."""
    return np.arange(len(dataset.y)) if dataset.rows is None else np.argsort(dataset.rows)


def _tested(path: str, dataset: Dataset, split: Split, owner: Indices) -> Split:
    """The split, with the union of its local tests as common test if the test part cannot serve as one."""
    kept_for_tests = _places(dataset) >= dataset.n_train
    trained = np.flatnonzero((owner >= 0) & kept_for_tests)
    if trained.size and split.test is None:
        where = "of the official test part"
        if dataset.rows is not None:
            where = "which is among those held out for tests, as the data have no test part of their own"
        raise UserError(f"{path} trains on sample {trained[0]}, {where}; give each client's tests, too: 'test'")
    if split.test is not None and split.global_test is None and (trained.size or dataset.rows is not None):
        return replace(split, global_test=np.zeros(0, np.int64))
    return split


def _placed(split: Split, places: Indices) -> Split:
    """Replace the file's rows in a split by samples of the data set."""
    lists: dict[str, Any] = {
        name: [places[rows] for rows in parts] for name in _LISTS if (parts := getattr(split, name)) is not None
    }
    return replace(split, **lists, global_test=None if split.global_test is None else places[split.global_test])


def _read(path: Path) -> Split:
    try:
        document = _Document.model_validate(_READERS.get(path.suffix, _from_json)(path))
    except ValidationError as error:
        # a misspelt key comes first
        problem = min(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
        place = ".".join(str(part) for part in problem["loc"]) or "the document"
        hint = did_you_mean(place, list(_Document.model_fields)) if problem["type"] == "extra_forbidden" else ""
        raise UserError(f"{path}: {place}: {problem['msg']}; give one list of indices per client.{hint}") from None
    lists: dict[str, Any] = {
        name: [np.array(indices, np.int64) for indices in parts]
        for name in _LISTS
        if (parts := getattr(document, name)) is not None
    }
    common = document.global_test
    return Split(**lists, global_test=None if common is None else np.array(common, np.int64))


def _from_json(path: Path) -> Any:
    try:
        return json.loads(check_file(path, remedy="set the option `path` to your file").read_bytes())
    except ValueError as error:
        raise UserError(f"{path} cannot be read as JSON ({error})") from None


def _from_npz(path: Path) -> dict[str, Any]:
    """The JSON form of an .npz split: per name an array of all clients' indices in turn and one of their numbers.

    Raises:
        UserError: the arrays do not fit together.
    """
    arrays = read_npz(path)
    content: dict[str, Any] = {name: array.tolist() for name, array in arrays.items()}
    for name in _LISTS:
        if name in content:
            content.pop(f"{name}_sizes", None)
            sizes = arrays.get(f"{name}_sizes", np.zeros(()))
            if (
                sizes.dtype.kind not in "iu"
                or sizes.ndim != 1
                or (sizes < 0).any()
                or arrays[name].shape != (sizes.sum(),)
            ):
                raise UserError(
                    f"{path}: '{name}' should hold all clients' indices in turn, and '{name}_sizes' their numbers"
                )
            content[name] = [part.tolist() for part in np.split(arrays[name], np.cumsum(sizes)[:-1])]
    return content


def _from_flbench(path: Path) -> dict[str, Any]:
    """The JSON form of a `partition.pkl` of FL-bench: under `data_indices`, for each client the indices of its parts.

    The generic model is tested on the union of the local tests, as FL-bench has no other.

    Raises:
        UserError: the file is damaged, or it holds something else.
    """
    content = read_pickled(path)
    try:
        clients = [{part: np.asarray(client[part]) for part in _FLBENCH} for client in content["data_indices"]]
        if not clients or any(at.size and at.dtype.kind not in "iu" for lists in clients for at in lists.values()):
            raise ValueError("an index is no whole number, or there are no clients")
    except (ValueError, TypeError, LookupError) as error:
        raise UserError(f"{path} is no partition of FL-bench ({type(error).__name__}: {error})") from None
    lists: dict[str, Any] = {
        name: [client[part].astype(np.int64).tolist() for client in clients] for part, name in _FLBENCH.items()
    }
    return {**lists, "validation": lists["validation"] if any(lists["validation"]) else None, "global_test": []}


_READERS: dict[str, Callable[[Path], Any]] = {".npz": _from_npz, ".pkl": _from_flbench}
"""Readers by the ending of a file; all others are JSON."""
