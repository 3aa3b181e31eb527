"""Records of a cell's data, for the report and for checks: the partition in numbers, and a few samples after shifts."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.data import Dataset, Partition

CLIENTS = 3
SAMPLES = 8


def partition_record(dataset: Dataset, partition: Partition, malicious: Sequence[int] | None = None) -> dict[str, Any]:
    """Make the content of `partition.json`: the hash, and the clients' numbers of samples, by class, too.

    Who is malicious is there if the cell has an attack. Where the data change, `changes` has the same of later data,
    each with its `round`.
    """
    changes = [{"round": change.round, **partition_record(dataset, change.partition)} for change in partition.changes]
    counts = [np.bincount(dataset.y[indices], minlength=dataset.num_classes).tolist() for indices in partition.train]
    return {
        "hash": partition.hash,
        "summary": partition.summary,
        "n_train": [len(indices) for indices in partition.train],
        "n_validation": [len(indices) for indices in partition.validation],
        "n_test": [len(indices) for indices in partition.test],
        "n_global_test": len(partition.global_test),
        "counts": counts,
        **({"names": partition.names} if partition.names else {}),
        **({"left_out": partition.left_out} if partition.left_out else {}),
        **({"changes": changes} if changes else {}),
        **({} if malicious is None else {"malicious": list(malicious)}),
    }


def tests_record(partition: Partition, clients: Sequence[int]) -> dict[str, Any]:
    """Make the content of `tests.json`: the test samples to which the bits of `hits.csv` belong, in their order.

    Returns:
        `clients` and the number of `samples` of each; for `local`, client after client, and `global` the positions in
        the data set, int32 in base64. Where the data change, `changes` has the same of later data, with the `round`.
    """
    changes = [
        {"round": change.round, **tests_record(change.partition, change.partition.clients)}
        for change in partition.changes
    ]
    local = np.concatenate([np.zeros(0, np.int64), *(partition.test[i] for i in clients)])
    whole = partition.global_test if len(partition.global_test) else local
    positions = {
        on: base64.b64encode(at.astype("<i4").tobytes()).decode() for on, at in (("local", local), ("global", whole))
    }
    record = {"clients": list(clients), "samples": [len(partition.test[i]) for i in clients], **positions}
    return record | ({"changes": changes} if changes else {})


def record_of(record: dict[str, Any], round: int) -> dict[str, Any]:
    """The part of one of these two records that a round's data are those of."""
    earlier = [change for change in record.get("changes", ()) if change["round"] < round]
    return earlier[-1] if earlier else record


def shown_samples(dataset: Dataset, partition: Partition) -> dict[str, Any]:
    """Choose training images of the first clients that have some, one of each of their first classes.

    Returns:
        `shape` of an image `[channels, height, width]`, and `clients`: for each its number, and of its images the names
        of their labels and the bytes, in base64.
    """
    clients = [i for i, indices in enumerate(partition.train) if len(indices)][:CLIENTS]
    return {"shape": dataset.shape, "clients": [_of_client(dataset, partition, client) for client in clients]}


def _of_client(dataset: Dataset, partition: Partition, client: int) -> dict[str, Any]:
    indices = partition.train[client]
    labels, first = np.unique(dataset.y[indices], return_index=True)
    images = dataset.x[indices[first[:SAMPLES]]]
    if images.dtype != np.uint8:
        low, high = images.min(), images.max()
        images = np.rint(255 * (images - low) / max(high - low, np.finfo(np.float32).tiny)).astype(np.uint8)
    names = dataset.classes or tuple(map(str, range(dataset.num_classes)))
    return {
        "client": client,
        "labels": [names[label] for label in labels[:SAMPLES]],
        "images": base64.b64encode(images.tobytes()).decode(),
    }
