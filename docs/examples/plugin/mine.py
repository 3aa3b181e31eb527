"""A method, a data set, a partition and a model of one's own, for `bench run --plugin mine.py` (docs/plugins.md)."""

from pathlib import Path

import numpy as np
from torch import nn

from bench.data import Dataset, Split
from bench.method import METHODS, Client, Method, Program, State, Train, Upload, cross_entropy
from bench.plugin import DATASETS, MODELS, PARTITIONS
from datasets.assemble import assemble


@METHODS.register("half_fedavg")
class HalfFedAvg(Method):
    """FedAvg whose clients send the mean of what they received and what they trained."""

    mean_of = ("model",)

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": down["model"]}, loss=cross_entropy)
        halfway = (down["model"].weights + trained["w"].weights) / 2
        yield Upload({"model": trained["w"].with_weights(halfway)})
        return trained["w"]


@DATASETS.register("two_moons")
def two_moons(*, data_root: Path, download: bool, samples: int = 400) -> Dataset:
    """Points on two interleaved half circles; every keyword after `download` is an option that a grid may set."""
    rng = np.random.default_rng(0)
    angle, label = rng.uniform(0, np.pi, samples), np.arange(samples) % 2
    x = np.stack([np.cos(angle) * (1 - 2 * label) + label, np.sin(angle) * (1 - 2 * label) + label / 2], axis=1)
    x = (x + rng.normal(0, 0.1, x.shape)).astype(np.float32)
    return assemble("two_moons", x, label, samples * 3 // 4, mean=None, std=None, classes=["upper", "lower"])


@PARTITIONS.register("left_to_right")
def left_to_right(dataset: Dataset, *, clients: int, seed: int) -> Split:
    """Each client gets the points of one strip; the harness makes validation and test sets of them."""
    order = np.argsort(dataset.x[: dataset.n_train, 0], kind="stable")
    return Split([np.sort(part) for part in np.array_split(order, clients)])


class TinyNet(nn.Module):
    """A network needs `features` and `head`, so that methods can take it apart."""

    def __init__(self, inputs: int, classes: int, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, width), nn.Tanh())
        self.head = nn.Linear(width, classes)

    def features(self, x):
        """`[samples, width]`: what the head sees."""
        return self.body(x.flatten(1))

    def forward(self, x):
        """`[samples, classes]` logits."""
        return self.head(self.features(x))


@MODELS.register("tiny_net")
def tiny_net(shape: tuple[int, ...], classes: int, width: int = 16) -> nn.Module:
    """The model for samples of a shape; it is built without memory, and the harness draws its initial weights."""
    return TinyNet(int(np.prod(shape)), classes, width)
