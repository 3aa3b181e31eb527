"""Accuracy and loss of generic, personalized and local models, per client and in the mean."""

import base64
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bench.data import Floats, Indices
from bench.engine.device_data import SERVER, DeviceData
from bench.engine.engine import Engine
from bench.engine.predict import Task, accuracy_and_loss
from bench.params import Params

SPLITS = ("validation", "test")


@dataclass
class Evaluation:
    """Scores of one server version.

    Attributes:
        metrics: rows of metric (gm|pm|lm), on (global|local), mean (train_size|equal|""), split, quantity, value.
        clients: rows of metric, client, split, correct, samples.
        hits: rows of metric (gm|pm), on (global|local) and bits: which test samples were classified correctly, as
            `packed`, for local tests one client after another. Metrics that are derived from another have none.
        generic: the generic model that was scored, if there is one.
        personal: the personalized models by client; none where the method trains none: the generic model stands in.
    """

    metrics: list[dict[str, Any]] = field(default_factory=list)
    clients: list[dict[str, Any]] = field(default_factory=list)
    hits: list[dict[str, str]] = field(default_factory=list)
    generic: Params | None = None
    personal: dict[int, Params] = field(default_factory=dict)


class _SamplePositions:
    """Positions of the clients' samples in a list of scored samples; clients without samples are left out.

    Attributes:
        clients: ids.
        samples: how many each has.
        at: the places, client after client.
        shares: in each kind of mean, `[clients]`.
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
        found: Floats = np.add.reduceat(values[self.at], self._begins)
        return found


class Scorer:
    """Scores models on a partition's validation and test samples."""

    def __init__(self, engine: Engine, device_data: DeviceData, sizes: dict[int, int]) -> None:
        self._engine = engine
        self._pool = device_data.local
        self._sizes = sizes
        ids = sorted(sizes)
        parts = {"validation": device_data.partition.validation, "test": device_data.partition.test}
        union = {s: np.concatenate([np.zeros(0, np.int64), *(parts[s][i] for i in ids)]) for s in SPLITS}
        common = device_data.partition.global_test
        whole = {"validation": union["validation"], "test": common if len(common) else union["test"]}
        self._needed = np.unique(np.concatenate([whole["test"], *union.values()]))
        self._global_at = {s: np.searchsorted(self._needed, positions) for s, positions in whole.items()}
        self._samples = {s: {i: len(parts[s][i]) for i in ids} for s in SPLITS}
        self._local_at = {
            s: _SamplePositions(ids, self._counted(s, ids), np.searchsorted(self._needed, union[s]), sizes)
            for s in SPLITS
        }
        self._own = {i: np.concatenate([parts[s][i] for s in SPLITS]) for i in ids}
        self._known: tuple[list[int], dict[str, _SamplePositions]] = [], {}

    def score(
        self, generic: Params | None, names: tuple[str, ...], own: dict[str, dict[int, Params]], into: Evaluation
    ) -> None:
        """Score all models, waiting only once for a GPU.

        Args:
            generic: one model for all, scored on the common test set and, as each of `names`, on the clients' samples.
            own: by name of the metric, models of clients, each scored on its client's samples.
        """
        tasks = [] if generic is None else [(generic, self._needed)]
        tasks += [(models[i], self._own[i]) for models in own.values() for i in sorted(models)]
        if not tasks:
            return
        owners = [] if generic is None else [SERVER]
        hit, loss = self._evaluate(tasks, owners + [i for models in own.values() for i in sorted(models)])
        begin = 0
        if generic is not None:
            begin = len(self._needed)
            self._score_globally(hit[:begin], loss[:begin], into)
            self._score_locally(names, self._local_at, hit[:begin], loss[:begin], into)
        for name, models in own.items():
            ids = sorted(models)
            end = begin + sum(len(self._own[i]) for i in ids)
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
        if ids != self._known[0]:  # mostly it is asked for all clients
            samples = [self._counted(s, ids) for s in SPLITS]
            split = np.repeat(np.tile(np.arange(len(SPLITS)), len(ids)), np.stack(samples, axis=1).ravel())
            at = [np.flatnonzero(split == k) for k in range(len(SPLITS))]
            found = {
                s: _SamplePositions(ids, n, there, self._sizes) for s, n, there in zip(SPLITS, samples, at, strict=True)
            }
            self._known = ids, found
        return self._known[1]

    def _counted(self, split: str, ids: list[int]) -> npt.NDArray[np.int64]:
        return np.array([self._samples[split][i] for i in ids], np.int64)

    def _evaluate(self, tasks: list[Task], owners: list[int]) -> tuple[Floats, Floats]:
        """Return, for each sample of the tasks in order, whether it is classified correctly, and its loss."""
        logits = self._engine.outputs("train", tasks, owners=owners)
        found = accuracy_and_loss(self._pool, torch.cat(logits), np.concatenate([p for _, p in tasks]))
        right, loss = torch.stack([values.to(torch.float64) for values in found]).cpu().numpy()
        return right, loss

    def _score_locally(
        self, names: tuple[str, ...], places: dict[str, _SamplePositions], hit: Floats, loss: Floats, into: Evaluation
    ) -> None:
        """Add scores per client, and their means weighted by training samples and equally."""
        for split, own in places.items():
            if not own.clients:
                continue
            correct = own.sums(hit)
            accuracy, cost = correct / own.samples, own.sums(loss) / own.samples
            if split == "test" and names[0] in ("gm", "pm"):
                into.hits.append({"metric": names[0], "on": "local", "bits": packed(hit[own.at])})
            means = [(mean, float(share @ accuracy), float(share @ cost)) for mean, share in own.shares.items()]
            for name in names:
                for mean, right, lost in means:
                    _add(into, name, "local", mean, split, right, lost)
                into.clients += [
                    {"metric": name, "client": i, "split": split, "correct": int(right), "samples": n}
                    for i, right, n in zip(own.clients, correct.tolist(), own.samples.tolist(), strict=True)
                ]


def packed(hits: Floats) -> str:
    """Ones and zeros as bits, eight to a byte, in base64."""
    return base64.b64encode(np.packbits(hits.astype(np.bool_)).tobytes()).decode()


def _add(into: Evaluation, metric: str, on: str, mean: str, split: str, accuracy: float, loss: float) -> None:
    row = {"metric": metric, "on": on, "mean": mean, "split": split}
    into.metrics.append({**row, "quantity": "accuracy", "value": accuracy})
    into.metrics.append({**row, "quantity": "loss", "value": loss})
