"""The pictures of docs/data.md: digits of six clients under every partition, and of three clients under every shift.

Run it in the root of the repository: python docs/examples/worlds.py
"""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bench.data import Dataset
from bench.federation.cell_data import apply_shifts, load_partition
from bench.plugin import DATASETS
from bench.settings import Settings
from datasets.assemble import assemble

HERE = Path(__file__).parent.parent / "data"
PARTITIONS: dict[str, dict[str, Any]] = {
    "iid": {"partition": "iid"},
    "dirichlet, α = 0.1": {"partition": "dirichlet", "alpha": 0.1},
    "balanced_dirichlet, α = 0.1": {"partition": "balanced_dirichlet", "alpha": 0.1},
    "mix, α = 0.1, iid = 0.3": {"partition": "mix", "alpha": 0.1, "partition_options": {"iid": 0.3}},
    "exdir, α = 1, k = 3": {"partition": "exdir", "alpha": 1.0, "partition_options": {"k": 3}},
    "shards, k = 2": {"partition": "shards"},
    "classes, k = 3": {"partition": "classes", "partition_options": {"k": 3}},
    "quantity, power 1.2": {"partition": "quantity", "partition_options": {"law": "power", "parameter": 1.2}},
    "superclasses (odd, even)": {"partition": "superclasses"},
    "natural (six made-up writers)": {"partition": "natural"},
    "dirichlet_pfllib, α = 0.1": {"partition": "dirichlet_pfllib", "alpha": 0.1},
    "dirichlet_flower, α = 0.1": {"partition": "dirichlet_flower", "alpha": 0.1},
}
SHIFTS: dict[str, dict[str, Any]] = {
    "rotation": {"name": "rotation", "groups": 3},
    "colours": {"name": "colours", "groups": 3},
    "corruption": {"name": "corruption"},
    "permuted_pixels": {"name": "permuted_pixels", "groups": 3},
    "concept_shift": {"name": "concept_shift", "clusters": 3},
    "label_noise": {"name": "label_noise", "share": 0.5},
    "missing_classes": {"name": "missing_classes", "k": 4},
}
SHOWN = 8


def grouped(digits: Dataset, name: str) -> Dataset:
    """Digits with made-up groups, for the partitions that need some."""
    order = np.random.default_rng(0).random(len(digits.y))
    of = {"superclasses": digits.y % 2, "natural": np.where(digits.y < 5, 0, 3) + (3 * order**2).astype(int)}
    return assemble(
        "digits", digits.x, digits.y, digits.n_train,
        mean=digits.mean, std=digits.std, classes=digits.classes, groups=of[name],
    )  # fmt: skip


def draw_partitions(digits: Dataset) -> Figure:
    """A panel per partition: the area of a dot is the number of a client's samples of a class."""
    canvas = Figure(figsize=(9, 7), layout="constrained")
    for axis, (title, options) in zip(canvas.subplots(3, 4).flat, PARTITIONS.items(), strict=True):
        name = options["partition"]
        data = grouped(digits, name) if name in ("superclasses", "natural") else digits
        cell = Settings(method="fedavg", clients=6, seed=1, validation_share=0, **options)
        found = load_partition(cell, data)
        counts = np.stack([np.bincount(data.y[own], minlength=10) for own in found.train])
        client, label = np.nonzero(counts)
        axis.scatter(client, label, s=1.2 * counts[client, label], color="#0072B2", linewidths=0)
        axis.set(xlim=(-0.7, 5.7), ylim=(-0.7, 9.7), xticks=range(6), yticks=range(0, 10, 3))
        axis.set_title(title, fontsize=8)
        axis.tick_params(labelsize=6)
    canvas.supxlabel("client (area of a dot: training samples)", fontsize=8)
    canvas.supylabel("class", fontsize=8)
    return canvas


def draw_shifts(digits: Dataset) -> Figure:
    """A block of three rows per shift: one training image of each class of three clients, its label above."""
    canvas = Figure(figsize=(8.4, 12), layout="constrained")
    for block, (title, shift) in zip(canvas.subfigures(4, 2).flat, SHIFTS.items(), strict=False):
        block.suptitle(title, fontsize=9)
        cell = Settings(method="fedavg", partition="iid", clients=3, seed=0, shifts=(shift,))
        data, partition = apply_shifts(cell, digits, load_partition(cell, digits))
        for axes, own in zip(block.subplots(3, SHOWN), partition.train, strict=True):
            labels, first = np.unique(data.y[own], return_index=True)
            for axis in axes:
                axis.axis("off")
            for axis, label, place in zip(axes, labels, first, strict=False):
                axis.imshow(data.x[own[place], 0], cmap="gray", vmin=0, vmax=255)
                axis.set_title(str(label), fontsize=6, pad=1)
    return canvas


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    digits: Dataset = DATASETS.get("digits")(data_root=Path("data"), download=False)
    for name, figure in (("partitions", draw_partitions(digits)), ("shifts", draw_shifts(digits))):
        figure.savefig(HERE / f"{name}.png", dpi=80, metadata={"Software": None})
