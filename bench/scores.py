"""Accuracy and loss of generic, personalized and local models, per client and in the mean."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bench.arena import Arena
from bench.data import Indices
from bench.engine import Engine
from bench.outputs import accuracy_and_loss
from bench.params import Params

SPLITS = ("validation", "test")
Floats = npt.NDArray[np.float64]


@dataclass
class Evaluation:
    """Scores of one server version.

    Attributes:
        metrics: rows of metric (gm|pm|lm), on (global|local), mean (train_size|equal|""), split, quantity, value.
        clients: rows of metric, client, split, correct, samples.
    """

    metrics: list[dict[str, Any]] = field(default_factory=list)
    clients: list[dict[str, Any]] = field(default_factory=list)


class Scorer:
    """Scores models on a partition's validation and test samples."""

    def __init__(self, engine: Engine, arena: Arena, sizes: dict[int, int]) -> None:
        self._engine = engine
        self._pool = arena.local
        self._sizes = sizes
        parts = {"validation": arena.partition.validation, "test": arena.partition.test}
        self._local: dict[str, dict[int, Indices]] = {s: {i: parts[s][i] for i in sizes} for s in SPLITS}
        union = {s: np.concatenate([np.zeros(0, np.int64), *self._local[s].values()]) for s in SPLITS}
        common = arena.partition.global_test
        whole = {"validation": union["validation"], "test": common if len(common) else union["test"]}
        self._needed = np.unique(np.concatenate([whole["test"], *union.values()]))
        self._global_at = {s: np.searchsorted(self._needed, positions) for s, positions in whole.items()}
        self._local_at = {
            s: {i: np.searchsorted(self._needed, positions) for i, positions in own.items()}
            for s, own in self._local.items()
        }

    def generic(self, w: Params, into: Evaluation, names: tuple[str, ...]) -> None:
        """Score one model for all: on the common test set and, as each of the names, on the clients' own samples."""
        hit, loss = self._look([(w, self._needed)])[0]
        for split, at in self._global_at.items():
            if len(at):
                _add(into, "gm", "global", "", split, float(hit[at].mean()), float(loss[at].mean()))
        own = {s: {i: (hit[at], loss[at]) for i, at in clients.items()} for s, clients in self._local_at.items()}
        self._locals(names, own, into)

    def personal(self, name: str, models: dict[int, Params], into: Evaluation) -> None:
        """Score each client's own model on its own samples."""
        ids = sorted(models)
        tasks = [(models[i], np.concatenate([self._local[s][i] for s in SPLITS])) for i in ids]
        found: dict[str, dict[int, tuple[Floats, Floats]]] = {s: {} for s in SPLITS}
        for i, (hit, loss) in zip(ids, self._look(tasks), strict=True):
            cut = len(self._local["validation"][i])
            found["validation"][i] = hit[:cut], loss[:cut]
            found["test"][i] = hit[cut:], loss[cut:]
        self._locals((name,), found, into)

    def _look(self, tasks: list[tuple[Params, Indices]]) -> list[tuple[Floats, Floats]]:
        """Per task and sample: right or not, and loss."""
        logits, positions = self._engine.outputs("train", tasks), [p for _, p in tasks]
        right, loss = accuracy_and_loss(self._pool, torch.cat(logits), np.concatenate(positions))
        cuts = np.cumsum([len(p) for p in positions])[:-1]
        per_task = (np.split(found.to(torch.float64).cpu().numpy(), cuts) for found in (right, loss))
        return list(zip(*per_task, strict=True))

    def _locals(
        self, names: tuple[str, ...], found: dict[str, dict[int, tuple[Floats, Floats]]], into: Evaluation
    ) -> None:
        """Per client, and weighted by training samples and equally; a client without samples of a split is left out."""
        for split in SPLITS:
            scored = {i: pair for i, pair in sorted(found[split].items()) if len(pair[0])}
            if not scored:
                continue
            sizes = np.array([self._sizes[i] for i in scored], np.float64)
            samples = np.array([len(hit) for hit, _ in scored.values()])
            first = np.cumsum(samples) - samples
            correct, total = (
                np.add.reduceat(np.concatenate(part), first) for part in zip(*scored.values(), strict=True)
            )
            cost = total / samples
            shares = {"train_size": sizes / sizes.sum(), "equal": np.full(len(sizes), 1 / len(sizes))}
            for name in names:
                for mean, share in shares.items():
                    accuracy = float((share * (correct / samples)).sum())
                    _add(into, name, "local", mean, split, accuracy, float((share * cost).sum()))
                into.clients += [
                    {"metric": name, "client": i, "split": split, "correct": int(right), "samples": n}
                    for i, right, n in zip(scored, correct, samples.tolist(), strict=True)
                ]


def _add(into: Evaluation, metric: str, on: str, mean: str, split: str, accuracy: float, loss: float) -> None:
    row = {"metric": metric, "on": on, "mean": mean, "split": split}
    into.metrics.append({**row, "quantity": "accuracy", "value": accuracy})
    into.metrics.append({**row, "quantity": "loss", "value": loss})
