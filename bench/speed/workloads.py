"""The built-in workloads: synthetic images or texts of the right shape, and clients of very different sizes."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.data import Dataset, Partition, TokenShape, noise
from bench.federation.cell_data import load_partition
from bench.rng import generator
from bench.settings import Settings

_CLASSES = 10


@dataclass(frozen=True)
class Workload:
    """FedAvg on a Dirichlet partition.

    Attributes:
        shape: shape of one sample: an image, `(channels, height, width)`, or a text.
        train, test: number of samples.
        settings: settings of the cell.
        warmup: rounds before the first turn; if steps are recorded, enough rounds for the recording.
        rounds: rounds in a turn, without a pause as in a run, because caches and cores are cold after a pause.
    """

    shape: tuple[int, ...]
    train: int
    test: int
    settings: Settings
    warmup: int = 1
    rounds: int = 1

    def dataset(self) -> Dataset:
        """Noise around one random image per class (uint8), or texts of random tokens."""
        rng = generator("speed", *self.shape)
        if isinstance(self.shape, TokenShape):
            return replace(noise(self.shape, _CLASSES, self.train + self.test, rng), n_train=self.train)
        y = rng.integers(_CLASSES, size=self.train + self.test)
        centres = rng.integers(256, size=(_CLASSES, *self.shape))
        spread = rng.integers(256, size=(len(y), *self.shape))
        x = ((centres[y] + spread) // 2).astype(np.uint8)
        channels = self.shape[0]
        return Dataset("synthetic", x, y, self.train, _CLASSES, (0.5,) * channels, (0.2,) * channels, "")

    def partition(self, dataset: Dataset) -> Partition:
        """The clients' samples."""
        return load_partition(self.settings, dataset)


def _fedavg(model: str, clients: int, **settings: Any) -> Settings:
    """Settings as in the papers' tables, without a validation share, which the plain loop does not support."""
    return Settings(
        method="fedavg", model=model, clients=clients, alpha=0.5, protocol="paper",
        batch_size=10, lr=0.01, rounds=1_000_000, **settings,
    )  # fmt: skip


WORKLOADS = {
    "digits": Workload((1, 8, 8), 1348, 449, _fedavg("mlp", 20), warmup=40, rounds=20),
    "mnist_mlp": Workload((1, 28, 28), 6000, 1000, _fedavg("mlp", 20), warmup=6, rounds=3),
    "mnist_cnn": Workload((1, 28, 28), 1000, 200, _fedavg("cnn", 20), warmup=45),
    "cifar_cnn": Workload((3, 32, 32), 1000, 200, _fedavg("cnn", 20), warmup=45),
    # Only four of the hundred clients take part in a round, because a step takes most of a second on a CPU.
    "resnet18": Workload((3, 32, 32), 2000, 16, _fedavg("resnet18", 100, participation=0.04)),
    # The plain loop has the whole network in each of its steps.
    "resnet18_head": Workload(
        (3, 32, 32), 2000, 16, _fedavg("resnet18", 100, participation=0.04, frozen=("body",)), 60, 9
    ),
    "char_lstm": Workload(TokenShape(80, 80), 1000, 100, _fedavg("char_lstm", 20)),
}
