"""Count what a cell does: a stand-in with few clients goes through two rounds and an evaluation without computing.

The stand-in has the cell's method, model and settings, and clients of the size that the cell's have on average. Its
operations are counted (`bench.engine.counting`), and it is counted with two numbers of clients, so that all amounts
can be extrapolated to the cell's clients by a straight line. It does not include uneven partitions, new clients, or
what a method does in later rounds only.
"""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.data import Array, Dataset, Partition
from bench.engine.counting import LARGE, Operations, Shadow, Tally
from bench.engine.recorded_steps import GraphCache
from bench.errors import UserError
from bench.federation.federation import Federation
from bench.federation.setup import make_method
from bench.method import Arrivals, is_static
from bench.models.init import without_draws
from bench.plugin import METHODS
from bench.runs.forecast.outline import ClientShares, DataSize, blank, that_train
from bench.settings import Settings
from bench.store.data_record import partition_record, shown_samples, tests_record
from bench.store.tables import Tables

_CLIENTS = 2, 4
_SENT = "up", "up_buffers", "down_receivers", "down_receivers_buffers"
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


class Counted(NamedTuple):
    """The work of a stand-in.

    Attributes:
        clients: how many it has; all take part in each round.
        first, round, evaluation: work of the first round, of the second one, and of an evaluation.
        steps: client steps of the second round.
        tests: samples that the generic model is evaluated on.
        state: bytes of tensors in a checkpoint.
        sent: bytes that travel in the second round, to each receiver and from each sender.
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
    sent: int
    tables: dict[str, tuple[int, int, int]]
    records: dict[str, int]


@dataclass(frozen=True)
class Rehearsal:
    """A stand-in with few clients and one with more, and the steps that their tallies refer to.

    Attributes:
        selected, clients: numbers of the cell's clients that train in a round, and of all that train.
    """

    few: Counted
    more: Counted
    steps: list[Operations]
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


def kind(settings: Settings) -> str:
    """The settings that decide a cell's cost and how its samples are divided, as text."""
    return plain(settings) + json.dumps(settings.partition_options, sort_keys=True)


def plain(settings: Settings) -> str:
    """The settings that decide a cell's cost once it is known which samples clients have, as JSON.

    Fractional hyperparameters do not, as steps get them as tensors; static ones do, which may be shares of samples.
    """
    fields = METHODS.options(settings.method).model_fields
    hp = {n: value for n, value in settings.hp.items() if not isinstance(value, float) or is_static(fields[n])}
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
    clients = that_train(settings, shares.clients)
    return Rehearsal(few, more, shadow.steps, _selected(settings, clients), clients)


def _selected(settings: Settings, clients: int) -> int:
    method = make_method(settings)
    if isinstance(method.trigger, Arrivals):
        return min(method.trigger.k, clients)
    if method.everyone or settings.unselected != "idle":
        return clients
    return settings.selected(clients)


def _count(
    settings: Settings, size: DataSize, shares: ClientShares, clients: int, shadow: Shadow, recordings: GraphCache
) -> Counted:
    dataset, partition = samples(size, shares, clients, blank)
    shadow.tally = Tally()
    with tempfile.TemporaryDirectory() as scratch, without_draws(LARGE), shadow.counting():
        tables = Tables(Path(scratch))
        tables.restart()
        sizes = [_sizes(Path(scratch))]
        federation = stand_in(settings, size, dataset, partition, recordings=recordings, executor="sequential")
        federation.advance()
        first, shadow.tally = shadow.tally, Tally()
        federation.advance()
        tables.append_version(federation)
        sizes.append(_sizes(Path(scratch)))
        round_, shadow.tally = shadow.tally, Tally()
        evaluation = federation.evaluate()
        tables.append_evaluation(federation.version, evaluation)
        sizes.append(_sizes(Path(scratch)))
        state = sum(t.nbytes for t in federation.state()[0].values())
    return Counted(
        clients=clients,
        first=first,
        round=round_,
        evaluation=shadow.tally,
        steps=federation.work["steps"],
        tests=max(len(partition.global_test), clients * shares.test),
        state=state,
        sent=sum(federation.ledger[-1][column] for column in _SENT),
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
    if settings.attack is not None:
        changes["attack"] = settings.attack.model_copy(
            update={"share": 0.5}
        )  # of a few clients, as many may round to none
    wanted = settings.public
    public = blank(size, wanted.size or min(size.train, 5000)) if wanted else None
    cell = settings.model_copy(update=changes)

    def blank_features(key: str, shape: tuple[int, int], compute: Callable[[], Array]) -> Array:
        return np.zeros(shape, settings.dtype)

    return Federation(cell, dataset=dataset, partition=partition, public=public, features=blank_features, **execution)


def try_messages(settings: Settings, size: DataSize) -> None:
    """Refuse a channel or an attack for which a cell's messages have nothing, by one round of two clients that compute
    nothing. A method that cannot be counted is let through; it is refused after its first round.

    Raises:
        UserError: the cell would be refused.
    """
    key = plain(settings), size
    if key in _TRIED:
        return
    dataset, partition = samples(size, ClientShares(2, 2, 1, 1, 0), 2, blank)
    shadow = Shadow()
    shadow.tally = Tally()
    try:
        with without_draws(LARGE), shadow.counting():
            stand_in(settings, size, dataset, partition, executor="sequential").advance()
    except UserError:
        raise
    except Exception:
        return
    _TRIED.add(key)


_TRIED: set[tuple[str, DataSize]] = set()


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
