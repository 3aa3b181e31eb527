"""Files that the two sides of `bench verify --blind` leave for each other in a cell's folder (docs/verify.md).

The judge (`bench.runs.verify.judge`) leaves the cell's data, with labels only of samples that some client trains or
validates on. The worker that trains leaves its models' outputs at each evaluation, as arrays and JSON, because the
judge must not unpickle what a plug-in may have written.
"""

import hashlib
import json
import pickle
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.data import Array, Dataset, Partition
from bench.errors import UserError
from bench.federation.cell_data import CellData
from bench.federation.scores import Outputs

FOLDER = "blind"
_LEFT_OUT: dict[str, Any] = {
    "checksum": "", "rows": None, "groups": None, "group_names": (), "subjects": None, "table": None, "doubts": {},
}  # fmt: skip
"""Of a data set a worker gets neither its rows in a file nor its groups."""


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
    sets = [without_labels(dataset, partition), *([public] if public else [])]
    entries = [{field.name: getattr(samples, field.name) for field in fields(Dataset)} for samples in sets]
    entries = [entry | _LEFT_OUT | {"x": _write_inputs(inputs, entry["x"])} for entry in entries]
    (folder / FOLDER).mkdir(parents=True)
    (folder / FOLDER / "data.pickle").write_bytes(pickle.dumps((entries, partition)))


def read_data(folder: Path) -> CellData:
    """Read data set, partition and public samples, as `bench.federation.cell_data.load_all` gives them, but for labels.

    Raises:
        UserError: the cell's folder has none.
    """
    path = folder / FOLDER / "data.pickle"
    if not path.exists():
        raise UserError(f"{path} is missing: only `bench verify --blind` runs a cell blind")
    entries, partition = pickle.loads(path.read_bytes())
    dataset, *public = (Dataset(**{**entry, "x": np.load(entry["x"], mmap_mode="c")}) for entry in entries)
    return dataset, partition, public[0] if public else None


def _write_inputs(folder: Path, x: Array) -> Path:
    x = np.ascontiguousarray(x)
    digest = hashlib.blake2b(x.view(np.uint8).reshape(-1).data, digest_size=16)
    digest.update(repr((x.shape, x.dtype)).encode())
    path = folder / f"inputs-{digest.hexdigest()}.npy"
    if not path.exists():
        np.save(path, x, allow_pickle=False)
    return path.resolve()


def write_outputs(folder: Path, version: int, outputs: Sequence[Outputs]) -> None:
    """Write the outputs of a server version's models, in place of scores."""
    entries = [{name: getattr(output, name) for name in ("names", "own", "new", "stage")} for output in outputs]
    logits = {f"logits_{k}": output.logits.cpu().numpy() for k, output in enumerate(outputs)}
    described = np.array(json.dumps(entries))
    np.savez(_outputs_file(folder, version), allow_pickle=False, described=described, **logits)


def read_outputs(folder: Path, version: int) -> list[Outputs]:
    """Read the outputs of a server version's models; an empty list where the worker left none.

    Raises:
        ValueError: the file is not as `write_outputs` writes it; likewise KeyError, TypeError, OSError and others.
    """
    path = _outputs_file(folder, version)
    if not path.exists():
        return []
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return [
        Outputs(
            tuple(entry["names"]),
            {str(name): [int(i) for i in ids] for name, ids in entry["own"].items()},
            torch.from_numpy(arrays[f"logits_{k}"]),
            bool(entry["new"]),
            None if entry["stage"] is None else int(entry["stage"]),
        )
        for k, entry in enumerate(json.loads(str(arrays["described"])))
    ]


def _outputs_file(folder: Path, version: int) -> Path:
    return folder / FOLDER / f"outputs-{version}.npz"
