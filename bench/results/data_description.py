"""A description of a cell's data before any training: its sites, and what a user should know of them."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from bench.data import Dataset
from bench.federation.cell_data import apply_shifts, load_dataset, load_partition
from bench.results.cell_names import task_name
from bench.results.portrait import COARSE, portrait, remarks
from bench.results.remarks import partition_remarks
from bench.settings import Settings
from bench.store.data_record import partition_record


def describe(cell: Settings, data_root: Path) -> dict[str, Any]:
    """Describe how the data of a cell lie over its clients, in values that JSON can hold.

    Returns:
        `data`, `seed`, `partition`, `shape` and `classes`; `features`, the channels of a table by name, and
        `missing`, the share of rows that lack each (both empty for other data); `sites`, a dict for each client
        (`bench.results.portrait.Site`, None for nan); `coarse`, the points beyond which a site's `within` makes it too
        small to test; and `remarks`.

    Raises:
        UserError: the data are missing or cannot be divided so.
    """
    dataset = load_dataset(cell, data_root)
    dataset, partition = apply_shifts(cell, dataset, load_partition(cell, dataset))
    sites = portrait(dataset, partition)
    small = remarks(sites, dataset.classes, by_subject=dataset.subjects is not None)
    texts = [*dataset.notes, *partition_remarks(partition_record(dataset, partition)), *small]
    return {
        "data": task_name(cell),
        "seed": cell.seed,
        "partition": cell.partition,
        "shape": list(dataset.x.shape[1:]),
        "classes": list(dataset.classes) or list(map(str, range(dataset.num_classes))),
        "features": list(dataset.features),
        "missing": _missing(dataset),
        "sites": [{key: _plain(value) for key, value in vars(site).items()} for site in sites],
        "coarse": COARSE,
        "remarks": texts,
    }


def _missing(dataset: Dataset) -> list[float]:
    """The share of rows that lack each of the table's channels; empty for other data."""
    if not dataset.features:
        return []
    shares = np.zeros(len(dataset.features)) if dataset.missing is None else dataset.missing.mean(axis=0)
    return [float(share) for share in shares]


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
