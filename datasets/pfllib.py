"""`pfllib`: a folder as PFLlib's generators write it (Zhang et al. 2025, JMLR 26), with its clients."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import PositiveInt

from bench.data import Array, Dataset
from bench.errors import UserError
from bench.places import check_folder
from bench.plugin import DATASETS
from datasets.arrays import read_pickled
from datasets.assemble import assemble
from datasets.npz import finite
from datasets.published import reading

_PARTS = ("train", "test")
_COUNTS = "Size of samples for labels in clients"
_REMEDY = "set the option `path` to a folder such as `dataset/MNIST` of PFLlib, made by its `generate_MNIST.py`"


@DATASETS.register("pfllib")
def load(
    *,
    data_root: Path,
    download: bool,
    path: str,
    first: PositiveInt | None = None,
    vocabulary: PositiveInt | None = None,
    name: str = "",
) -> Dataset:
    """Samples of clients in a folder of PFLlib: `train/0.npz`, `test/0.npz`, `train/1.npz` and so on, `config.json`.

    Groups are the clients, so that the partition `natural` is the folder's own division. The values are those of the
    files, which PFLlib's generators have normalised: nothing is normalised again. Images `[n, channels, height, width]`
    and features `[n, features]` become float32, sensors `[n, channels, 1, time]` become series `[n, channels, time]`,
    and texts, whole numbers `[n, length]` with or without their lengths, become tokens. The files hold pickled arrays;
    nothing in them is executed.

    Args:
        path: the folder.
        first: take this many of the folder's clients, as PFLlib does with `-nc`; empty: all.
        vocabulary: number of tokens of texts (`-vs`); empty: the largest token and one.

    Raises:
        UserError: a file is missing or damaged, or the files do not hold the samples that `config.json` counts.
    """
    folder = Path(path)
    counts = _counts(folder)
    if first is not None and first > len(counts):
        raise UserError(f"{folder} has {len(counts)} clients, and `first` asks for {first} of them")
    clients = range(len(counts) if first is None else first)
    samples = [_read(folder / part / f"{client}.npz") for part in _PARTS for client in clients]
    for client in clients:
        held = Counter(np.concatenate([y for _, y in samples[client :: len(clients)]]).tolist())
        if counts[client] not in (None, held):
            raise UserError(
                f"{folder}: client {client} has samples by label {dict(sorted(held.items()))} in its files and "
                f"{counts[client]} in config.json; are some files of an earlier division? Generate the folder again"
            )
    if len(shapes := {(x.shape[1:], x.dtype) for x, _ in samples if len(x)}) != 1:
        listed = " and ".join(sorted(f"{dtype} {shape}" for shape, dtype in shapes)) or "none"
        raise UserError(f"{folder} should hold samples of one shape and type, and holds {listed}")
    x = np.concatenate([x for x, _ in samples if len(x)])
    y = np.concatenate([y for _, y in samples])
    sizes = [len(y) for _, y in samples]
    tokens = x.dtype == np.int32
    if vocabulary and not tokens:
        raise UserError(f"{folder} holds no texts, which `vocabulary` is for; leave it out")
    as_stored: dict[str, Any] = {"vocabulary": vocabulary or int(x.max()) + 1} if tokens else {
        "mean": [0.0] * x.shape[1], "std": [1.0] * x.shape[1],
    }  # fmt: skip
    return assemble(
        name or folder.resolve().name, x, y, sum(sizes[: len(clients)]), groups=np.repeat([*clients, *clients], sizes),
        **as_stored,
    )  # fmt: skip


def _counts(folder: Path) -> list[dict[int, int] | None]:
    """Read each client's number of samples of each label from `config.json`; None where there is no such file, as of
    Shakespeare.

    Raises:
        UserError: the folder has no clients, or the file is not in PFLlib's format.
    """
    file = check_folder(folder, remedy=_REMEDY) / "config.json"
    if not file.exists():
        if not (clients := len([*(folder / "train").glob("*.npz")])):
            raise UserError(f"{folder} has neither config.json nor train/0.npz; {_REMEDY}")
        return [None] * clients
    with reading("pfllib", file, _REMEDY):
        content = json.loads(file.read_bytes())
        counts = [{int(label): int(count) for label, count in client} for client in content[_COUNTS]]
        if len(counts) != content["num_clients"] or not counts:
            raise ValueError(f"{content['num_clients']} clients, and counts of {len(counts)}")
    return [*counts]


def _read(file: Path) -> tuple[Array, Array]:
    """One client's samples, float32 or int32 tokens, and labels of one part."""
    data = read_pickled(file, "data")
    with reading("pfllib", file, _REMEDY):
        x, y = data["x"], np.asarray(data["y"])
        if not len(y):
            return np.zeros(0, np.float32), np.zeros(0, np.int64)
        if isinstance(x, np.ndarray) and x.dtype == object and x.ndim == 2:
            x = x[:, 0].tolist()  # texts, each with its length
        samples = np.asarray(x)
        if samples.dtype.kind not in "biuf" or samples.ndim < 2 or samples.ndim > 4 or y.shape != samples.shape[:1]:
            raise ValueError(f"samples {samples.dtype} {samples.shape}, labels {y.dtype} {y.shape}")
        if y.dtype.kind not in "iuf" or (y != np.rint(y)).any():
            raise ValueError("a label is no whole number")
        if samples.ndim == 2 and samples.dtype.kind in "iu" and samples.min() < 0:
            raise ValueError(f"a token {samples.min()}; tokens should be numbers from 0")
    if samples.ndim == 2 and samples.dtype.kind in "iu":
        return samples.astype(np.int32), y.astype(np.int64)
    samples = finite(file, "x", samples)
    return samples[:, :, 0] if samples.ndim == 4 and samples.shape[2] == 1 else samples, y.astype(np.int64)
