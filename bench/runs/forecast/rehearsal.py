"""Count what a cell does: a stand-in with few clients goes through two rounds and an evaluation without computing.

The stand-in has the cell's method, model and settings, and clients of the size that the cell's have on average. Its
operations are counted (`bench.engine.counting`), and it is counted with two numbers of clients, so that all amounts
can be extrapolated to the cell's clients by a straight line. It does not include uneven partitions, new clients, or
what a method does in later rounds only.
"""

import json
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.data import Array, Dataset, Partition, TokenShape
from bench.engine.counting import CountedStep, Shadow, Tally
from bench.engine.device_data import KEEP_NORMALISED
from bench.engine.recorded_steps import GraphCache
from bench.errors import UserError
from bench.federation.cell_data import load_partition
from bench.federation.federation import Federation
from bench.federation.setup import make_method
from bench.method import Arrivals
from bench.settings import Settings
from bench.store.data_record import partition_record, shown_samples, tests_record
from bench.store.growing_tables import Tables

_CLIENTS = 2, 4
_LATER: dict[str, Any] = {
    "seed": 0,
    "partition_seed": None,
    "alpha": None,
    "label": "",
    "case": "",
    "lr": 0.1,
    "metrics": (),
    "select_by": "accuracy",
    "tests": (),
}
"""Settings in which cells of equal cost differ, and a value that stands for all."""


class DataSize(NamedTuple):
    """Size of a data set: shape of a sample, numbers of classes, training and test samples, bytes of a number."""

    shape: tuple[int, ...]
    classes: int
    train: int
    test: int
    itemsize: int = 1


class ClientShares(NamedTuple):
    """Mean numbers of samples of a client that has some, the common test samples, and the number of such clients."""

    clients: int
    train: int
    validation: int
    test: int
    common: int


class Counted(NamedTuple):
    """The work of a stand-in.

    Attributes:
        clients: how many it has; all take part in each round.
        first, round, evaluation: work of the first round, of the second one, and of an evaluation.
        steps: client steps of the second round.
        tests: samples that the generic model is evaluated on.
        state: bytes of tensors in a checkpoint.
        live, peak: bytes of tensors between rounds, and at the peak of the second round outside of steps.
        evaluated, working: bytes more that an evaluation leaves, and at its peak.
        tables: by file, bytes of a header, of the lines of a round, and of those of an evaluation.
        records: by file, bytes that are written once.
    """

    clients: int
    first: Tally
    round: Tally
    evaluation: Tally
    steps: int
    tests: int
    state: int
    live: int
    peak: int
    evaluated: int
    working: int
    tables: dict[str, tuple[int, int, int]]
    records: dict[str, int]


@dataclass(frozen=True)
class Rehearsal:
    """A stand-in with few clients and one with more, and the steps that their tallies refer to.

    Attributes:
        selected, clients: numbers of the cell's clients that train in a round, and of all.
    """

    few: Counted
    more: Counted
    steps: list[CountedStep]
    selected: int
    clients: int

    def at(self, amount: Callable[[Counted], float], clients: int) -> float:
        """Extrapolate an amount to so many clients."""
        few, more = amount(self.few), amount(self.more)
        slope = max(0.0, more - few) / (self.more.clients - self.few.clients)
        return max(0.0, few + slope * (clients - self.few.clients))


class CannotRehearseError(Exception):
    """The method reads numbers of large tensors, or does something else that cannot be counted."""


_KNOWN: dict[tuple[str, DataSize, ClientShares], Rehearsal] = {}


def rehearse(settings: Settings, size: DataSize, shares: ClientShares) -> Rehearsal:
    """Count a cell. Cells that differ only in what makes no difference to their cost share one count.

    Raises:
        CannotRehearseError: the method cannot be counted.
        UserError: the cell would be refused.
    """
    key = plain(settings), size, shares
    if key not in _KNOWN:
        _KNOWN[key] = _rehearse(settings, size, shares)
    return _KNOWN[key]


def plain(settings: Settings) -> str:
    """The settings that decide a cell's cost, as JSON: fractional hyperparameters do not, as steps get them as
    tensors."""
    hp = {name: value for name, value in settings.hp.items() if not isinstance(value, float)}
    same = settings.model_copy(update=_LATER).model_dump(mode="json")
    return json.dumps({**same, "hp": hp, "partition_options": {}}, sort_keys=True)


def _rehearse(settings: Settings, size: DataSize, shares: ClientShares) -> Rehearsal:
    unit = len(settings.architectures) or 1  # so that each number of clients has all architectures alike
    shadow, recordings = Shadow(), GraphCache()
    try:
        few, more = (_count(settings, size, shares, unit * clients, shadow, recordings) for clients in _CLIENTS)
    except UserError:
        raise
    except Exception as error:
        raise CannotRehearseError(f"{type(error).__name__}: {error}") from error
    return Rehearsal(few, more, shadow.steps, _selected(settings, shares.clients), shares.clients)


def _selected(settings: Settings, clients: int) -> int:
    method = make_method(settings)
    if isinstance(method.trigger, Arrivals):
        return min(method.trigger.k, clients)
    if method.everyone or settings.unselected != "idle":
        return clients
    return max(1, round(settings.participation * clients))


def _count(
    settings: Settings, size: DataSize, shares: ClientShares, clients: int, shadow: Shadow, recordings: GraphCache
) -> Counted:
    dataset, partition = samples(size, shares, clients, blank)
    shadow.tally = Tally()
    with tempfile.TemporaryDirectory() as scratch, shadow.counting():
        tables = Tables(Path(scratch))
        tables.restart()
        sizes = [_sizes(Path(scratch))]
        federation = stand_in(settings, size, dataset, partition, recordings=recordings, executor="sequential")
        federation.advance()
        first, shadow.tally, shadow.peak = shadow.tally, Tally(), shadow.live
        federation.advance()
        tables.append_version(federation)
        sizes.append(_sizes(Path(scratch)))
        round_, peak, live = shadow.tally, shadow.peak, shadow.live
        shadow.tally, shadow.peak = Tally(), live
        evaluation = federation.evaluate()
        evaluated, working = shadow.live - live, shadow.peak - shadow.live
        tables.append_evaluation(federation.version, evaluation)
        sizes.append(_sizes(Path(scratch)))
        state = sum(t.nbytes for t in federation.state()[0].values())
    at_once = len(dataset.y) * dataset.x[0].size * federation.engine.dtype.itemsize
    if at_once <= KEEP_NORMALISED and not dataset.vocabulary:  # this much of the data lies there as networks see them
        live, peak = live - at_once, peak - at_once
    return Counted(
        clients=clients,
        first=first,
        round=round_,
        evaluation=shadow.tally,
        steps=federation.work["steps"],
        tests=max(len(partition.global_test), clients * shares.test),
        state=state,
        live=live,
        peak=peak,
        evaluated=evaluated,
        working=working,
        tables=_growth(*sizes),
        records=_records(settings, dataset, partition, federation.clients.ids),
    )


def _sizes(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in folder.iterdir()}


def _growth(
    header: dict[str, int], round_: dict[str, int], evaluation: dict[str, int]
) -> dict[str, tuple[int, int, int]]:
    return {name: (size, round_[name] - size, evaluation[name] - round_[name]) for name, size in header.items()}


def _records(settings: Settings, dataset: Dataset, partition: Partition, ids: list[int]) -> dict[str, int]:
    records: dict[str, Any] = {
        "settings.json": settings.model_dump(mode="json"),
        "partition.json": partition_record(dataset, partition),
        "tests.json": tests_record(partition, ids),
    }
    if settings.shifts and dataset.x.ndim == 4:
        records["samples.json"] = shown_samples(dataset, partition)
    return {name: len(json.dumps(record, indent=1)) for name, record in records.items()}


def stand_in(
    settings: Settings, size: DataSize, dataset: Dataset, partition: Partition, **execution: Any
) -> Federation:
    """Build a federation of a few clients, all of which take part."""
    changes = {"clients": len(partition.train), "participation": 1.0, "new_clients": 0, "stragglers": {}}
    changes |= {"metrics": (), "tests": ()}
    wanted = settings.public
    public = blank(size, wanted.size or min(size.train, 5000)) if wanted else None
    cell = settings.model_copy(update=changes)

    def blank_features(key: str, shape: tuple[int, int], compute: Callable[[], Array]) -> Array:
        return np.zeros(shape, settings.dtype)

    return Federation(cell, dataset=dataset, partition=partition, public=public, features=blank_features, **execution)


def blank(size: DataSize, train: int, test: int = 0) -> Dataset:
    """Samples that take no memory, with the classes in turn as labels."""
    samples = train + test
    y = np.arange(samples) % size.classes
    tokens = isinstance(size.shape, TokenShape)
    shape = size.shape[:1] if tokens else size.shape
    zero = np.zeros(1, np.int32 if tokens else np.uint8)
    x = np.lib.stride_tricks.as_strided(zero, (samples, *shape), (0,) * (len(shape) + 1))
    if isinstance(size.shape, TokenShape):
        return Dataset("blank", x, y, train, size.classes, (), (), "", vocabulary=size.shape.vocabulary)
    return Dataset("blank", x, y, train, size.classes, (0.5,) * shape[0], (0.25,) * shape[0], "")


def samples(
    size: DataSize, shares: ClientShares, clients: int, make: Callable[[DataSize, int], Dataset]
) -> tuple[Dataset, Partition]:
    """Clients of the mean size, one after the other: training, validation and tests."""
    each = shares.train, shares.validation, shares.test
    train, validation, test = (
        tuple(np.arange(n) + i * n + clients * sum(each[:k]) for i in range(clients)) for k, n in enumerate(each)
    )
    used = clients * sum(each)
    common = used + np.arange(round(shares.common * clients / shares.clients))
    return make(size, used + len(common)), Partition(train, validation, test, common)


def shares(settings: Settings, dataset: Dataset) -> ClientShares:
    """Return the mean client of a cell, from one partition for all cells that differ in seed and alpha only.

    Raises:
        UserError: the data set cannot be divided so.
    """
    key = settings.model_dump_json(include=_DIVIDED_BY), dataset.n_train, len(dataset.y)
    if key not in _SHARES:
        _SHARES[key] = _mean_client(load_partition(settings, dataset))
    return _SHARES[key]


_DIVIDED_BY = {
    "dataset",
    "dataset_options",
    "partition",
    "partition_options",
    "clients",
    "protocol",
    "validation_share",
}
_SHARES: dict[tuple[str, int, int], ClientShares] = {}


def _mean_client(partition: Partition) -> ClientShares:
    clients = [i for i, samples in enumerate(partition.train) if len(samples)]
    train, validation, test = (
        math.ceil(sum(len(part[i]) for i in clients) / max(1, len(clients)))
        for part in (partition.train, partition.validation, partition.test)
    )
    return ClientShares(len(clients), train, validation, test, len(partition.global_test))
