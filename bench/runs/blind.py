"""What the two sides of `bench verify --blind` leave in a cell's folder for each other (docs/verify.md).

The judge (`bench.runs.verify.judge`) leaves the cell's data, with labels only of samples that some client trains or
validates on. The worker that trains leaves what its models say at each evaluation. All are arrays and JSON, as the
judge must not unpickle what a plug-in may have written.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.data import Array, Dataset, Indices, Partition
from bench.errors import UserError
from bench.federation.cell_data import CellData
from bench.federation.scores import Outputs

FOLDER = "blind"
_LISTS = ("train", "validation", "test")
_DESCRIBED = ("name", "n_train", "num_classes", "mean", "std", "classes", "vocabulary")
"""What a worker is told of a data set beside samples and labels: neither its rows in a file nor its groups."""


def without_labels(dataset: Dataset, partition: Partition) -> Dataset:
    """The data set with label 0 in place of that of each sample that no client trains or validates on."""
    used = np.concatenate([*partition.train, *partition.validation])
    labels = np.zeros_like(dataset.y)
    labels[used] = dataset.y[used]
    return replace(dataset, y=labels)


def write_data(folder: Path, inputs: Path, data: CellData) -> None:
    """Leave a cell's data without labels of its tests.

    Args:
        folder: the cell's.
        inputs: folder for the samples' inputs; cells with the same ones share a file.
    """
    dataset, partition, public = data
    lists = {name: getattr(partition, name) for name in _LISTS}
    arrays = {name: np.concatenate(own) for name, own in lists.items()} | {"global_test": partition.global_test}
    described: dict[str, Any] = {
        "sizes": {name: [len(one) for one in own] for name, own in lists.items()},
        "summary": partition.summary,
        "names": partition.names,
        "new": partition.new,
    }
    for kind, samples in (("local", without_labels(dataset, partition)), ("public", public)):
        if samples is not None:
            arrays[f"{kind}_labels"] = samples.y
            described[kind] = {name: getattr(samples, name) for name in _DESCRIBED}
            described[kind]["inputs"] = str(_write_inputs(inputs, samples.x))
    (folder / FOLDER).mkdir(parents=True)
    _write(folder / FOLDER / "data.npz", described, arrays)


def read_data(folder: Path) -> CellData:
    """Data set, partition and public samples, as `bench.federation.cell_data.load_all` gives them, but for labels.

    Raises:
        UserError: nobody left them there.
    """
    path = folder / FOLDER / "data.npz"
    if not path.exists():
        raise UserError(f"{path} is missing: only `bench verify --blind` runs a cell blind")
    described, arrays = _read(path)
    sets = {
        kind: _dataset(described[kind], arrays[f"{kind}_labels"]) for kind in ("local", "public") if kind in described
    }
    train, validation, test = (_split(arrays[name], described["sizes"][name]) for name in _LISTS)
    partition = Partition(
        train,
        validation,
        test,
        arrays["global_test"],
        described["summary"],
        names=tuple(described["names"]),
        new=tuple(described["new"]),
    )
    return sets["local"], partition, sets.get("public")


def write_outputs(folder: Path, version: int, outputs: Sequence[Outputs]) -> None:
    """Leave what the models of a server version say, in place of scores."""
    described = [{"names": one.names, "own": one.own, "new": one.new} for one in outputs]
    logits = {f"logits_{k}": one.logits.cpu().numpy() for k, one in enumerate(outputs)}
    _write(_outputs_file(folder, version), {"outputs": described}, logits)


def read_outputs(folder: Path, version: int) -> list[Outputs]:
    """What the models of a server version say; empty where nothing was left.

    Raises:
        ValueError: it is nothing that `write_outputs` writes; likewise KeyError, TypeError, OSError and others.
    """
    path = _outputs_file(folder, version)
    if not path.exists():
        return []
    described, arrays = _read(path)
    return [
        Outputs(
            tuple(one["names"]),
            {str(name): [int(i) for i in ids] for name, ids in one["own"].items()},
            torch.from_numpy(arrays[f"logits_{k}"]),
            bool(one["new"]),
        )
        for k, one in enumerate(described["outputs"])
    ]


def _outputs_file(folder: Path, version: int) -> Path:
    return folder / FOLDER / f"outputs-{version}.npz"


def _dataset(described: dict[str, Any], labels: Indices) -> Dataset:
    x = np.load(described.pop("inputs"), mmap_mode="c", allow_pickle=False)
    plain: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in described.items()}
    return Dataset(x=x, y=labels, checksum="", **plain)


def _split(flat: Indices, sizes: list[int]) -> tuple[Indices, ...]:
    return tuple(np.split(flat, np.cumsum(sizes)[:-1]))


def _write_inputs(folder: Path, x: Array) -> Path:
    x = np.ascontiguousarray(x)
    digest = hashlib.blake2b(x.view(np.uint8).reshape(-1).data, digest_size=16)
    digest.update(repr((x.shape, x.dtype)).encode())
    path = folder / f"inputs-{digest.hexdigest()}.npy"
    if not path.exists():
        np.save(path, x, allow_pickle=False)
    return path.resolve()


def _write(path: Path, described: dict[str, Any], arrays: dict[str, Array]) -> None:
    np.savez(path, allow_pickle=False, described=np.array(json.dumps(described)), **arrays)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return json.loads(str(arrays.pop("described"))), arrays
