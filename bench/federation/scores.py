"""Accuracy and loss of generic, personalized and local models, per client and in the mean."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bench.data import Floats, Indices, Partition
from bench.engine.predict import accuracy_and_loss
from bench.params import Params

SPLITS = ("validation", "test")


@dataclass(frozen=True)
class Outputs:
    """Outputs of models on the samples that they are scored on, without any label.

    Attributes:
        names: metrics that the generic model is scored as; empty where there is none.
        own: by name of the metric, the clients whose models are scored, each on its client's samples.
        logits: `[samples, classes]` of the generic model, then of the models of `own` in their order.
        new: whether the clients are held out of training.
    """

    names: tuple[str, ...]
    own: dict[str, list[int]]
    logits: Tensor
    new: bool = False


@dataclass
class Evaluation:
    """Scores of one server version.

    Attributes:
        outputs: the outputs that are scored.
        metrics: rows of metric (gm|pm|lm), on (global|local), mean (train_size|equal|""), split, quantity, value.
        clients: rows of metric, client, split, correct, samples.
        hits: rows of metric (gm|pm), on (global|local) and bits: which test samples were classified correctly, as
            `packed`, for local tests one client after another. Metrics that are derived from another have none.
        generic: the generic model that was scored, if there is one.
        personal: the personalized models by client; none where the method trains none: the generic model stands in.
    """

    outputs: list[Outputs] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    clients: list[dict[str, Any]] = field(default_factory=list)
    hits: list[dict[str, str]] = field(default_factory=list)
    generic: Params | None = None
    personal: dict[int, Params] = field(default_factory=dict)


class _SamplePositions:
    """Positions of the clients' samples in a list of scored samples; clients without samples are left out.

    Attributes:
        clients: ids of the clients.
        samples: number of samples of each client.
        at: positions of the samples, client after client.
        shares: the clients' weights in each kind of mean, `[clients]`.
    """

    def __init__(self, clients: list[int], samples: npt.NDArray[np.int64], at: Indices, sizes: dict[int, int]) -> None:
        self.clients = [i for i, n in zip(clients, samples.tolist(), strict=True) if n]
        self.samples = samples[samples > 0]
        self.at = at
        train = np.array([sizes[i] for i in self.clients], np.float64)
        self.shares = {"train_size": train / train.sum(), "equal": np.full(len(train), 1 / max(1, len(train)))}
        self._begins = np.cumsum(self.samples) - self.samples

    def sums(self, values: Floats) -> Floats:
        """Sum values per sample of the list by client."""
        totals: Floats = np.add.reduceat(values[self.at], self._begins)
        return totals


class Scorer:
    """Scores outputs on a partition's validation and test samples; it needs no model and no method.

    Attributes:
        needed: positions of the samples that the generic model is scored on, sorted.
        own: by client, the positions of its validation samples and then of its test samples.
    """

    def __init__(self, labels: Tensor, partition: Partition, ids: Sequence[int]) -> None:
        self._labels = labels
        self._sizes = {i: len(partition.train[i]) for i in sorted(ids)}
        ids = list(self._sizes)
        parts = {"validation": partition.validation, "test": partition.test}
        union = {s: np.concatenate([np.zeros(0, np.int64), *(parts[s][i] for i in ids)]) for s in SPLITS}
        common = partition.global_test
        whole = {"validation": union["validation"], "test": common if len(common) else union["test"]}
        self.needed = np.unique(np.concatenate([whole["test"], *union.values()]))
        self._global_at = {s: np.searchsorted(self.needed, positions) for s, positions in whole.items()}
        self._samples = {s: {i: len(parts[s][i]) for i in ids} for s in SPLITS}
        self._local_at = {
            s: _SamplePositions(ids, self._counted(s, ids), np.searchsorted(self.needed, union[s]), self._sizes)
            for s in SPLITS
        }
        self.own = {i: np.concatenate([parts[s][i] for s in SPLITS]) for i in ids}
        self._latest_places: tuple[list[int], dict[str, _SamplePositions]] = [], {}

    def score(self, outputs: Outputs, into: Evaluation) -> None:
        """Score all models, waiting only once for a GPU."""
        hit, loss = self._evaluate(outputs)
        begin = 0
        if outputs.names:
            begin = len(self.needed)
            self._score_globally(hit[:begin], loss[:begin], into)
            self._score_locally(outputs.names, self._local_at, hit[:begin], loss[:begin], into)
        for name, ids in outputs.own.items():
            end = begin + sum(len(self.own[i]) for i in ids)
            self._score_locally((name,), self._places(ids), hit[begin:end], loss[begin:end], into)
            begin = end

    def _score_globally(self, hit: Floats, loss: Floats, into: Evaluation) -> None:
        for split, at in self._global_at.items():
            if len(at):
                _add(into, "gm", "global", "", split, float(hit[at].mean()), float(loss[at].mean()))
                if split == "test":
                    into.hits.append({"metric": "gm", "on": "global", "bits": packed(hit[at])})

    def _places(self, ids: list[int]) -> dict[str, _SamplePositions]:
        """Return the places in a list that has each client's validation samples and then its test samples."""
        if ids != self._latest_places[0]:  # mostly it is asked for all clients
            samples = [self._counted(s, ids) for s in SPLITS]
            split = np.repeat(np.tile(np.arange(len(SPLITS)), len(ids)), np.stack(samples, axis=1).ravel())
            at = [np.flatnonzero(split == k) for k in range(len(SPLITS))]
            places = {
                s: _SamplePositions(ids, n, positions, self._sizes)
                for s, n, positions in zip(SPLITS, samples, at, strict=True)
            }
            self._latest_places = ids, places
        return self._latest_places[1]

    def _counted(self, split: str, ids: list[int]) -> npt.NDArray[np.int64]:
        return np.array([self._samples[split][i] for i in ids], np.int64)

    def _evaluate(self, outputs: Outputs) -> tuple[Floats, Floats]:
        """Return, for each sample in order, whether it is classified correctly, and its loss."""
        positions = [self.needed] if outputs.names else []
        positions += [self.own[i] for ids in outputs.own.values() for i in ids]
        at = np.concatenate(positions)
        if len(outputs.logits) != len(at):
            raise ValueError(f"{len(outputs.logits)} outputs for {len(at)} samples")
        scored = accuracy_and_loss(self._labels, outputs.logits, at)
        right, loss = torch.stack([values.to(torch.float64) for values in scored]).cpu().numpy()
        return right, loss

    def _score_locally(
        self, names: tuple[str, ...], places: dict[str, _SamplePositions], hit: Floats, loss: Floats, into: Evaluation
    ) -> None:
        """Add scores per client, and their means weighted by training samples and equally."""
        for split, clients in places.items():
            if not clients.clients:
                continue
            correct = clients.sums(hit)
            accuracy, cost = correct / clients.samples, clients.sums(loss) / clients.samples
            if split == "test" and names[0] in ("gm", "pm"):
                into.hits.append({"metric": names[0], "on": "local", "bits": packed(hit[clients.at])})
            means = [(mean, float(share @ accuracy), float(share @ cost)) for mean, share in clients.shares.items()]
            for name in names:
                for mean, right, lost in means:
                    _add(into, name, "local", mean, split, right, lost)
                into.clients += [
                    {"metric": name, "client": i, "split": split, "correct": int(right), "samples": n}
                    for i, right, n in zip(clients.clients, correct.tolist(), clients.samples.tolist(), strict=True)
                ]


class Scorers:
    """The scorers of a cell: of the clients that train, and of those held out of training.

    Args:
        labels: of all samples, on the device that the outputs lie on.
        ids: clients that train.
        new: clients held out of training.
    """

    def __init__(self, labels: Tensor, partition: Partition, ids: Sequence[int], new: Sequence[int]) -> None:
        self.trained = Scorer(labels, partition, ids)
        self.new = Scorer(labels, partition, new)

    def score(self, evaluation: Evaluation) -> None:
        """Add the scores of an evaluation's outputs to it."""
        for outputs in evaluation.outputs:
            (self.new if outputs.new else self.trained).score(outputs, evaluation)


def packed(hits: Floats) -> str:
    """Pack ones and zeros as bits, eight to a byte, in base64."""
    return base64.b64encode(np.packbits(hits.astype(np.bool_)).tobytes()).decode()


def _add(into: Evaluation, metric: str, on: str, mean: str, split: str, accuracy: float, loss: float) -> None:
    row = {"metric": metric, "on": on, "mean": mean, "split": split}
    into.metrics.append({**row, "quantity": "accuracy", "value": accuracy})
    into.metrics.append({**row, "quantity": "loss", "value": loss})
