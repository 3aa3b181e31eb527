"""What a cell keeps of its data, for the report and for checks: the partition in numbers, and a few samples as clients
see them after shifts."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.data import Dataset, Partition

CLIENTS = 3
SAMPLES = 8


def partition_record(dataset: Dataset, partition: Partition) -> dict[str, Any]:
    """The contents of `partition.json`: the hash, how many samples clients have, and of which classes."""
    counts = [np.bincount(dataset.y[own], minlength=dataset.num_classes).tolist() for own in partition.train]
    return {
        "hash": partition.hash,
        "summary": partition.summary,
        "n_train": [len(own) for own in partition.train],
        "n_validation": [len(own) for own in partition.validation],
        "n_test": [len(own) for own in partition.test],
        "n_global_test": len(partition.global_test),
        "counts": counts,
        **({"names": partition.names} if partition.names else {}),
    }


def tests_record(partition: Partition, clients: Sequence[int]) -> dict[str, Any]:
    """The contents of `tests.json`: which test samples the bits of `hits.csv` are about, in their order.

    Returns:
        `clients` and how many `samples` each has; for `local`, client after client, and `global` the positions in the
        data set, int32 in base64.
    """
    local = np.concatenate([np.zeros(0, np.int64), *(partition.test[i] for i in clients)])
    whole = partition.global_test if len(partition.global_test) else local
    positions = {
        on: base64.b64encode(at.astype("<i4").tobytes()).decode() for on, at in (("local", local), ("global", whole))
    }
    return {"clients": list(clients), "samples": [len(partition.test[i]) for i in clients], **positions}


def shown_samples(dataset: Dataset, partition: Partition) -> dict[str, Any]:
    """Training images of the first clients that have some, one of each of their first classes.

    Returns:
        `shape` of an image `[channels, height, width]`, and `clients`: of each its number, and of its images the names
        of their labels and the bytes, in base64.
    """
    clients = [i for i, own in enumerate(partition.train) if len(own)][:CLIENTS]
    return {"shape": dataset.shape, "clients": [_of_client(dataset, partition, client) for client in clients]}


def _of_client(dataset: Dataset, partition: Partition, client: int) -> dict[str, Any]:
    own = partition.train[client]
    labels, first = np.unique(dataset.y[own], return_index=True)
    images = dataset.x[own[first[:SAMPLES]]]
    if images.dtype != np.uint8:
        low, high = images.min(), images.max()
        images = np.rint(255 * (images - low) / max(high - low, np.finfo(np.float32).tiny)).astype(np.uint8)
    names = dataset.classes or tuple(map(str, range(dataset.num_classes)))
    return {
        "client": client,
        "labels": [names[label] for label in labels[:SAMPLES]],
        "images": base64.b64encode(images.tobytes()).decode(),
    }
