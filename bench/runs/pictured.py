"""A few samples of some clients as their cell sees them, kept for the report: one should see what a shift does."""

import base64
from typing import Any

import numpy as np

from bench.data import Dataset, Partition

CLIENTS = 3
SAMPLES = 8


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
