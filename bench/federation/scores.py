"""Accuracy, loss and further scores of generic, personalized and local models, per client and in the mean."""

import base64
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.data import EMPTY, Floats, Indices, Partition
from bench.engine.predict import accuracy_and_loss
from bench.errors import in_words, refusing_exits
from bench.params import Params
from bench.plugin import METRICS, file_of, is_external

SPLITS = ("validation", "test")


@dataclass(frozen=True)
class Outputs:
    """Outputs of models on the samples that they are scored on, without any label.

    Attributes:
        names: metrics that the generic model is scored as; empty where there is none.
        own: by name of the metric, the clients whose models are scored, each on its client's samples.
        logits: `[samples, classes]` of the generic model, then of the models of `own` in their order.
        new: whether the clients are held out of training.
        stage: the number of the stage whose tests the samples are (`bench.data.Partition.stages`), where the models are
            compared over changes of the data; else None.
    """

    names: tuple[str, ...]
    own: dict[str, list[int]]
    logits: Tensor
    new: bool = False
    stage: int | None = None


@dataclass
class Evaluation:
    """Scores of one server version.

    Attributes:
        outputs: the outputs that are scored.
        metrics: rows of metric (gm|pm|lm), on (global|local), mean (train_size|equal|benign|""), split, quantity,
            value. `benign`, of cells with an attack, is weighted as `train_size`, over the clients that do not attack.
        clients: rows of metric, client, split, correct, samples.
        hits: rows of metric (gm|pm), on (global|local) and bits: which test samples were classified correctly, as
            `packed`, for local tests one client after another. Metrics that are derived from another have none.
        scores: rows as in `metrics` of further scores, each score a quantity; empty where the cell asks for none.
        client_scores: rows of metric, client, split, quantity, value (nan where a client's samples do not define it).
        changes: rows as in `metrics`, and the `stage` whose tests they are about; only of rounds that end a stage.
        generic: the generic model that was scored, if there is one.
        personal: the personalized models by client; none where the method trains none: the generic model stands in.
    """

    outputs: list[Outputs] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    clients: list[dict[str, Any]] = field(default_factory=list)
    hits: list[dict[str, str]] = field(default_factory=list)
    scores: list[dict[str, Any]] = field(default_factory=list)
    client_scores: list[dict[str, Any]] = field(default_factory=list)
    changes: list[dict[str, Any]] = field(default_factory=list)
    generic: Params | None = None
    personal: dict[int, Params] = field(default_factory=dict)


class FurtherScores:
    """Computes the registered scores of some names.

    A score of the user's own that raises an exception is missing (nan) there: hours of training are worth more.

    Attributes:
        problems: texts about scores that failed, each about the first time, by score.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._functions = {name: METRICS.get(name) for name in names}
        self.problems: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._functions)

    def values(self, labels: Indices, logits: Floats, samples: str) -> dict[str, float]:
        """Compute all scores of one sample or more; all are missing (nan) where a logit is not finite.

        Args:
            labels, logits: `[n]` and `[n, classes]`.
            samples: what the samples are, for messages.
        """
        if not np.isfinite(logits).all():
            return dict.fromkeys(self._functions, math.nan)
        return {
            name: self._value(name, function, labels, logits, samples) for name, function in self._functions.items()
        }

    def _value(self, name: str, function: Any, labels: Indices, logits: Floats, samples: str) -> float:
        if not is_external(function):
            return float(function(labels, logits))
        try:
            with refusing_exits():  # copies, so that it can change none for another score
                return float(function(labels.copy(), logits.copy()))
        except Exception as error:
            reason = in_words(error, file_of(function))
            self.problems.setdefault(name, f"{failure(name)} on {samples}, where it is missing now: {reason}")
            return math.nan


def failure(name: str) -> str:
    """The beginning of the text that a score failed."""
    return f"the metric {name!r} failed"


def mean_of_present(values: Floats, shares: Floats) -> float:
    """Mean over the clients that have a value, `[clients]` each, by their shares; nan where none has."""
    present = ~np.isnan(values) & (shares > 0)
    return float(shares[present] @ values[present] / shares[present].sum()) if present.any() else math.nan


class SamplePositions:
    """Positions of the clients' samples in a list of scored samples; clients without samples are left out.

    Attributes:
        samples: number of samples of each client.
        at: positions of the samples, client after client.
        shares: the clients' weights in each kind of mean, `[clients]`.
    """

    def __init__(
        self, positions: Mapping[int, Indices], sizes: Mapping[int, int], malicious: Collection[int] | None = None
    ) -> None:
        present = {i: at for i, at in positions.items() if len(at)}
        self.clients = list(present)
        self.samples = np.array([len(at) for at in present.values()], np.int64)
        self.at = np.concatenate([EMPTY, *present.values()])
        train = np.array([sizes[i] for i in self.clients], np.float64)
        self.shares = {"train_size": train / train.sum(), "equal": np.full(len(train), 1 / max(1, len(train)))}
        if malicious is not None:
            benign = np.where(np.isin(self.clients, list(malicious)), 0, train)
            if benign.any():
                self.shares["benign"] = benign / benign.sum()
        self._begins = np.cumsum(self.samples) - self.samples

    def sums(self, values: Floats) -> Floats:
        """Sum values per sample of the list by client."""
        totals: Floats = np.add.reduceat(values[self.at], self._begins)
        return totals

    def each(self) -> Iterator[tuple[int, Indices]]:
        """Yield each client with the positions of its samples in the list."""
        if self.clients:
            yield from zip(self.clients, np.split(self.at, self._begins[1:]), strict=True)


class Scorer:
    """Scores outputs on a partition's validation and test samples; it needs no model and no method.

    Args:
        labels: of all samples, on the device that the outputs lie on.
        ids: the clients.
        metrics: names of further scores.
        malicious: the malicious ones of them; None: there are no means over benign clients.

    Attributes:
        needed: positions of the samples that the generic model is scored on, sorted.
        own: by client, the positions of its validation samples and then of its test samples.
        further: the further scores.
    """

    def __init__(
        self,
        labels: Tensor,
        partition: Partition,
        ids: Sequence[int],
        metrics: Sequence[str] = (),
        malicious: Collection[int] | None = None,
    ) -> None:
        self._labels = labels
        self._malicious = malicious
        self.further = FurtherScores(metrics)
        self._sizes = {i: len(partition.train[i]) for i in sorted(ids)}
        ids = list(self._sizes)
        parts = {"validation": partition.validation, "test": partition.test}
        union = {s: np.concatenate([EMPTY, *(parts[s][i] for i in ids)]) for s in SPLITS}
        common = partition.global_test
        whole = {"validation": union["validation"], "test": common if len(common) else union["test"]}
        self.needed = np.unique(np.concatenate([whole["test"], *union.values()]))
        self._global_at = {s: np.searchsorted(self.needed, positions) for s, positions in whole.items()}
        self._local_at = {
            s: self._positions({i: np.searchsorted(self.needed, parts[s][i]) for i in ids}) for s in SPLITS
        }
        self._parts_of = {i: [parts[s][i] for s in SPLITS] for i in ids}
        self.own = {i: np.concatenate(of_client) for i, of_client in self._parts_of.items()}

    def score(self, outputs: Outputs, into: Evaluation) -> None:
        """Score all models, waiting only once for a GPU."""
        positions = self._scored_samples(outputs)
        hit, loss = self._evaluate(outputs.logits, positions)
        pooled = len(self.needed) if outputs.names else 0
        if pooled:
            self._score_globally(hit[:pooled], loss[:pooled], into)
        parts = list(self._parts(outputs))
        for names, places, part in parts:
            self._score_locally(names, places, hit[part], loss[part], into)
        if self.further:
            logits: Floats = outputs.logits.to(torch.float64).cpu().numpy()
            labels: Indices = self._labels.cpu().numpy()[positions]
            if pooled:
                self._score_pooled_further(labels[:pooled], logits[:pooled], into)
            for names, places, part in parts:
                self._score_clients_further(names, places, labels[part], logits[part], into)

    def _parts(self, outputs: Outputs) -> Iterator[tuple[tuple[str, ...], dict[str, SamplePositions], slice]]:
        """Yield the metrics, the places by split and the part of the list of each group of models."""
        begin = 0
        if outputs.names:
            begin = len(self.needed)
            yield outputs.names, self._local_at, slice(begin)
        for name, ids in outputs.own.items():
            end = begin + sum(len(self.own[i]) for i in ids)
            yield (name,), self._places(ids), slice(begin, end)
            begin = end

    def _score_globally(self, hit: Floats, loss: Floats, into: Evaluation) -> None:
        for split, at in self._global_at.items():
            if len(at):
                values = {"accuracy": float(hit[at].mean()), "loss": float(loss[at].mean())}
                into.metrics += _rows("gm", "global", "", split, values)
                if split == "test":
                    into.hits.append({"metric": "gm", "on": "global", "bits": packed(hit[at])})

    def _places(self, ids: list[int]) -> dict[str, SamplePositions]:
        """Return the places in a list that has each client's validation samples and then its test samples."""
        at: dict[str, dict[int, Indices]] = {s: {} for s in SPLITS}
        end = 0
        for i in ids:
            for s, part in zip(SPLITS, self._parts_of[i], strict=True):
                at[s][i] = np.arange(end, end := end + len(part))
        return {s: self._positions(positions) for s, positions in at.items()}

    def _positions(self, positions: Mapping[int, Indices]) -> SamplePositions:
        return SamplePositions(positions, self._sizes, self._malicious)

    def _scored_samples(self, outputs: Outputs) -> Indices:
        positions = [self.needed] if outputs.names else []
        positions += [self.own[i] for ids in outputs.own.values() for i in ids]
        at = np.concatenate(positions)
        if len(outputs.logits) != len(at):
            raise ValueError(f"{len(outputs.logits)} outputs for {len(at)} samples")
        return at

    def _evaluate(self, logits: Tensor, at: Indices) -> tuple[Floats, Floats]:
        """Return, for each sample in order, whether it is classified correctly, and its loss."""
        scored = accuracy_and_loss(self._labels, logits, at)
        right, loss = torch.stack([values.to(torch.float64) for values in scored]).cpu().numpy()
        return right, loss

    def _score_locally(
        self, names: tuple[str, ...], places: dict[str, SamplePositions], hit: Floats, loss: Floats, into: Evaluation
    ) -> None:
        """Add scores per client, and their means weighted by training samples and equally."""
        for split, clients in places.items():
            if not clients.clients:
                continue
            correct = clients.sums(hit)
            accuracy, cost = correct / clients.samples, clients.sums(loss) / clients.samples
            if split == "test" and names[0] in ("gm", "pm"):
                into.hits.append({"metric": names[0], "on": "local", "bits": packed(hit[clients.at])})
            for name in names:
                for mean, share in clients.shares.items():
                    values = {"accuracy": float(share @ accuracy), "loss": float(share @ cost)}
                    into.metrics += _rows(name, "local", mean, split, values)
                into.clients += [
                    {"metric": name, "client": i, "split": split, "correct": int(right), "samples": n}
                    for i, right, n in zip(clients.clients, correct.tolist(), clients.samples.tolist(), strict=True)
                ]

    def _score_pooled_further(self, labels: Indices, logits: Floats, into: Evaluation) -> None:
        """Add further scores of the generic model on all samples of a split together."""
        for split, at in self._global_at.items():
            if len(at):
                values = self.further.values(labels[at], logits[at], f"all {split} samples")
                into.scores += _rows("gm", "global", "", split, values)

    def _score_clients_further(
        self,
        names: tuple[str, ...],
        places: dict[str, SamplePositions],
        labels: Indices,
        logits: Floats,
        into: Evaluation,
    ) -> None:
        """Add further scores per client, and their means over the clients that have them."""
        for split, clients in places.items():
            by_client = {
                client: self.further.values(labels[at], logits[at], f"the {split} samples of client {client}")
                for client, at in clients.each()
            }
            for quantity in next(iter(by_client.values()), {}):
                values = np.array([scores[quantity] for scores in by_client.values()])
                means = [(mean, mean_of_present(values, share)) for mean, share in clients.shares.items()]
                for name in names:
                    row = {"metric": name, "split": split, "quantity": quantity}
                    into.scores += [{**row, "on": "local", "mean": mean, "value": value} for mean, value in means]
                    into.client_scores += [
                        {**row, "client": client, "value": scores[quantity]} for client, scores in by_client.items()
                    ]


class Scorers:
    """The scorers of a cell: of the clients that train, and of those held out of training.

    Args:
        labels, metrics, malicious: as of `Scorer`.
        partition: the partition, with its changes.
        ids, new: clients that train, and that are held out of training.
        now: the number of the stage whose data the clients have.
    """

    def __init__(
        self,
        labels: Tensor,
        partition: Partition,
        ids: Sequence[int],
        new: Sequence[int],
        metrics: Sequence[str] = (),
        now: int = 0,
        malicious: Collection[int] | None = None,
    ) -> None:
        self._labels = labels
        self._changes = partition.changes
        self._stages = partition.stages
        self._ids = set(ids)
        self._now = now
        self._of_stages: dict[int, Scorer] = {}
        self.trained = Scorer(labels, self._stages[now], ids, metrics, malicious)
        self.new = Scorer(labels, self._stages[now], new, metrics, malicious)

    def compared(self, version: int, rounds: int) -> range:
        """The stages on whose tests the models of a version are scored, too: where a stage ends, all up to the next."""
        ends = version in {change.round for change in self._changes} or (self._changes and version == rounds)
        return range(min(self._now + 2, len(self._stages)) if ends else 0)

    def stage(self, number: int) -> Scorer:
        """The scorer on a stage's tests, of the clients that are there now and were, or will be, there then."""
        if number not in self._of_stages:
            stage = self._stages[number]
            ids = [i for i in stage.clients if i in self._ids]
            self._of_stages[number] = Scorer(self._labels, stage, ids)
        return self._of_stages[number]

    @property
    def problems(self) -> dict[str, str]:
        """Texts about scores of the user's own that failed, each about the first time, by score."""
        return self.new.further.problems | self.trained.further.problems

    def score(self, evaluation: Evaluation) -> None:
        """Add the scores of an evaluation's outputs to it."""
        for outputs in evaluation.outputs:
            if outputs.stage is None:
                (self.new if outputs.new else self.trained).score(outputs, evaluation)
                continue
            of_stage = Evaluation()
            self.stage(outputs.stage).score(outputs, of_stage)
            rows = [row for row in of_stage.metrics if row["split"] == "test"]
            evaluation.changes += [{"stage": outputs.stage, **row} for row in rows]


def packed(hits: Floats) -> str:
    """Pack ones and zeros as bits, eight to a byte, in base64."""
    return base64.b64encode(np.packbits(hits.astype(np.bool_)).tobytes()).decode()


def _rows(metric: str, on: str, mean: str, split: str, values: Mapping[str, float]) -> list[dict[str, Any]]:
    row = {"metric": metric, "on": on, "mean": mean, "split": split}
    return [{**row, "quantity": quantity, "value": value} for quantity, value in values.items()]
