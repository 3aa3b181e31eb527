"""Folders in the form in which PFLlib's generators write them."""

import json
from pathlib import Path
from typing import Any

import numpy as np

Part = tuple[Any, Any]
RNG = np.random.default_rng(0)


def images(labels: list[int]) -> Part:
    """Draw images `[n, 1, 6, 5]` for labels."""
    return RNG.uniform(-1, 1, (len(labels), 1, 6, 5)).astype(np.float32), np.array(labels)


def write(folder: Path, clients: list[tuple[Part, Part]], *, config: bool = True) -> Path:
    """Write the training and the test samples of each client; `config` says whether `config.json` is there, too.

    Returns:
        The folder.
    """
    counts = []
    for number, parts in enumerate(clients):
        for part, (x, y) in zip(("train", "test"), parts, strict=True):
            (folder / part).mkdir(parents=True, exist_ok=True)
            np.savez_compressed(folder / part / f"{number}.npz", data=np.array({"x": x, "y": y}))
        labels, sizes = np.unique(np.concatenate([np.asarray(y) for _, y in parts]), return_counts=True)
        counts.append([[int(label), int(size)] for label, size in zip(labels, sizes, strict=True)])
    if config:
        content = {"num_clients": len(clients), "num_classes": 3, "Size of samples for labels in clients": counts}
        (folder / "config.json").write_text(json.dumps(content))
    return folder
