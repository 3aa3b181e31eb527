"""What tests of data sets share: loading by a name, dividing, arrays in a file, pictures of one colour."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image

from bench.data import Array, Dataset, Partition
from bench.engine.device_data import Pool
from bench.federation.cell_data import load_all
from bench.federation.federation import Federation
from bench.plugin import DATASETS
from bench.samples.division import make_partition
from bench.settings import Settings

RED, GREEN = (255, 0, 0), (0, 255, 0)


def load(name: str, root: Path, /, *, download: bool = False, **options: Any) -> Dataset:
    """Load a data set by its name."""
    data: Dataset = DATASETS.get(name)(data_root=root, download=download, **options)
    return data


def load_from(name: str, path: Path, /, **options: Any) -> Dataset:
    """Load a user's own data from a file or folder."""
    return load(name, path.parent, path=str(path), **options)


def load_npz(folder: Path, **arrays: Any) -> Dataset:
    """Load a user's file `mine.npz` of given arrays."""
    np.savez(folder / "mine.npz", **arrays)
    return load_from("npz", folder / "mine.npz")


def divide(
    data: Dataset, name: str = "natural", clients: int | Literal["all"] = 3, seed: int = 0, protocol: str = "honest",
    *, alpha: float | None = None, validation_share: float = 0.2, **options: Any,
) -> Partition:  # fmt: skip
    """Divide a data set by a partition and its options."""
    return make_partition(
        data, name, clients=clients, alpha=alpha, seed=seed, protocol=protocol, validation_share=validation_share,
        options=options,
    )  # fmt: skip


def group_of_each(data: Dataset) -> list[str]:
    """The name of each sample's group."""
    assert data.groups is not None
    return [data.group_names[group] for group in data.groups]


def seen(data: Dataset) -> Array:
    """What networks see of all samples."""
    values: Array = Pool.of(data, torch.device("cpu"), torch.float32).take(torch.arange(len(data.y)))[0].numpy()
    return values


def paint(file: Path, colour: tuple[int, ...] = RED, size: tuple[int, int] = (6, 4), **save: Any) -> None:
    """Save a picture of one colour, grey if that is one number; its folder need not be there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    mode, value = ("RGB", colour) if len(colour) == 3 else ("L", colour[0])
    Image.new(mode, size, value).save(file, **save)


def federation(cell: Settings, executor: Any, public: Dataset | None = None, **options: Any) -> Federation:
    """Wire a cell on its own data."""
    data, partition, _ = load_all(cell)
    return Federation(cell, dataset=data, partition=partition, public=public, executor=executor, **options)
