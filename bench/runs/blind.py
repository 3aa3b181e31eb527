"""Files that the two sides of `bench verify --blind` leave for each other in a cell's folder (docs/verify.md).

The judge (`bench.runs.verify.judge`) leaves the cell's data, with labels only of samples that some client trains or
validates on. The worker that trains leaves its models' outputs at each evaluation. All files are arrays and JSON, as
the judge must not unpickle what a plug-in may have written.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.data import Array, Change, Dataset, Indices, Partition
from bench.errors import UserError
from bench.federation.cell_data import CellData
from bench.federation.scores import Outputs

FOLDER = "blind"
_LISTS = ("train", "validation", "test")
_DESCRIBED = ("name", "n_train", "num_classes", "mean", "std", "classes", "vocabulary", "padding")
"""Fields of a data set that a worker gets beside samples and labels: neither its rows in a file nor its groups."""


def without_labels(dataset: Dataset, partition: Partition) -> Dataset:
    """The data set with label 0 in place of that of each sample that no client trains or validates on."""
    lists = [indices for stage in partition.stages for indices in (*stage.train, *stage.validation)]
    positions = np.concatenate(lists)
    labels = np.zeros_like(dataset.y)
    labels[positions] = dataset.y[positions]
    return replace(dataset, y=labels)


def write_data(folder: Path, inputs: Path, data: CellData) -> None:
    """Write a cell's data without labels of its tests.

    Args:
        folder: the cell's folder.
        inputs: folder for the samples' inputs; cells with the same inputs share a file.
        data: data set, partition and public samples.
    """
    dataset, partition, public = data
    arrays: dict[str, Array] = {}
    description: dict[str, Any] = {
        "names": partition.names,
        "new": partition.new,
        "summary": partition.summary,
        "rounds": [change.round for change in partition.changes],
        "stages": [
            [[part.tolist() for part in getattr(stage, name)] for name in _LISTS] + [stage.global_test.tolist()]
            for stage in partition.stages
        ],
    }
    for kind, samples in (("local", without_labels(dataset, partition)), ("public", public)):
        if samples is not None:
            arrays[f"{kind}_labels"] = samples.y
            description[kind] = {name: getattr(samples, name) for name in _DESCRIBED}
            description[kind]["inputs"] = str(_write_inputs(inputs, samples.x))
    (folder / FOLDER).mkdir(parents=True)
    _write(folder / FOLDER / "data.npz", description, arrays)


def read_data(folder: Path) -> CellData:
    """Read data set, partition and public samples, as `bench.federation.cell_data.load_all` gives them, but for labels.

    Raises:
        UserError: the cell's folder has none.
    """
    path = folder / FOLDER / "data.npz"
    if not path.exists():
        raise UserError(f"{path} is missing: only `bench verify --blind` runs a cell blind")
    description, arrays = _read(path)
    sets = {
        kind: _dataset(description[kind], arrays[f"{kind}_labels"])
        for kind in ("local", "public")
        if kind in description
    }
    shared = {"summary": description["summary"]} | {name: tuple(description[name]) for name in ("names", "new")}
    stages = []
    for *lists, common in description["stages"]:
        train, validation, test = (tuple(np.array(part, np.int64) for part in parts) for parts in lists)
        stages.append(Partition(train, validation, test, np.array(common, np.int64), **shared))
    first, *later = stages
    changes = tuple(Change(after, stage) for after, stage in zip(description["rounds"], later, strict=True))
    return sets["local"], replace(first, changes=changes), sets.get("public")


def write_outputs(folder: Path, version: int, outputs: Sequence[Outputs]) -> None:
    """Write the outputs of a server version's models, in place of scores."""
    entries = [{name: getattr(output, name) for name in ("names", "own", "new", "stage")} for output in outputs]
    logits = {f"logits_{k}": output.logits.cpu().numpy() for k, output in enumerate(outputs)}
    _write(_outputs_file(folder, version), {"outputs": entries}, logits)


def read_outputs(folder: Path, version: int) -> list[Outputs]:
    """Read the outputs of a server version's models; an empty list where the worker left none.

    Raises:
        ValueError: the file is not as `write_outputs` writes it; likewise KeyError, TypeError, OSError and others.
    """
    path = _outputs_file(folder, version)
    if not path.exists():
        return []
    description, arrays = _read(path)
    return [
        Outputs(
            tuple(entry["names"]),
            {str(name): [int(i) for i in ids] for name, ids in entry["own"].items()},
            torch.from_numpy(arrays[f"logits_{k}"]),
            bool(entry["new"]),
            None if entry["stage"] is None else int(entry["stage"]),
        )
        for k, entry in enumerate(description["outputs"])
    ]


def _outputs_file(folder: Path, version: int) -> Path:
    return folder / FOLDER / f"outputs-{version}.npz"


def _dataset(description: dict[str, Any], labels: Indices) -> Dataset:
    x = np.load(description.pop("inputs"), mmap_mode="c", allow_pickle=False)
    plain: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in description.items()}
    return Dataset(x=x, y=labels, checksum="", **plain)


def _write_inputs(folder: Path, x: Array) -> Path:
    x = np.ascontiguousarray(x)
    digest = hashlib.blake2b(x.view(np.uint8).reshape(-1).data, digest_size=16)
    digest.update(repr((x.shape, x.dtype)).encode())
    path = folder / f"inputs-{digest.hexdigest()}.npy"
    if not path.exists():
        np.save(path, x, allow_pickle=False)
    return path.resolve()


def _write(path: Path, description: dict[str, Any], arrays: dict[str, Array]) -> None:
    np.savez(path, allow_pickle=False, described=np.array(json.dumps(description)), **arrays)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return json.loads(str(arrays.pop("described"))), arrays
