"""Data that change: the samples of every client before and after each change of a cell's `timeline`.

A stage is the time between two changes. Its lists are those of the cell's partition, after the exchanges up to then,
without the classes that are still to come and without the clients that are not there; then come the stage's shifts. So
nobody ever trains on a sample that is tested or validated on in another stage. The addresses of draws begin with (seed,
"timeline"); those of shifts are the same in all stages.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from bench.data import EMPTY, Change, Dataset, Indices, Partition
from bench.errors import UserError
from bench.rng import generator
from bench.samples.division import summary_of
from bench.samples.shifts import apply as shifted
from bench.settings import DataChange, ShiftPart, clients_between

_Lists = tuple[Indices, ...]


def apply(
    dataset: Dataset,
    partition: Partition,
    shifts: Sequence[ShiftPart],
    timeline: Sequence[DataChange],
    late: Collection[int],
    seed: int,
) -> tuple[Dataset, Partition]:
    """The data set with the samples of all stages, and the first stage with the `changes` that follow.

    Samples of a stage with shifts are copies after all others; stages without any share the loaded samples.

    Args:
        dataset, partition: before any shift.
        shifts: those of the first stage.
        timeline: the cell's changes, in order.
        late: clients that are not there at first.
        seed: seed of the partition.

    Raises:
        UserError: more classes are added than there are, a stage has no training samples, or a shift does not fit.
    """
    owners = list(range(len(partition)))  # by client: whose samples of the partition it has
    present = set(owners) - {*late}
    order, count = _classes(dataset, timeline, seed)
    whole, stages, rounds = dataset, list[Partition](), [0, *(change.round for change in timeline)]
    for number, change in enumerate((None, *timeline)):
        if change is not None:
            owners = _exchanged(owners, change.exchange, number, seed)
            present = (present - clients_between(change.leave)) | clients_between(change.arrive)
            count += change.add_classes or 0
            shifts = shifts if change.shifts is None else change.shifts
        stage = _lists(dataset, partition, owners, present, order[:count])
        if not any(map(len, stage.train)):
            raise UserError(f"timeline: after round {rounds[number]} no client has training samples; change less")
        if shifts:
            whole, stage = _appended(whole, *shifted(dataset, stage, shifts, seed))
        stages.append(stage)
    summary = summary_of(whole, stages[0].train, stages[0].validation, stages[0].test)
    changes = tuple(Change(after, stage) for after, stage in zip(rounds[1:], stages[1:], strict=True))
    return whole, replace(stages[0], summary=f"{summary}, then changed {len(changes)} times", changes=changes)


def _classes(dataset: Dataset, timeline: Sequence[DataChange], seed: int) -> tuple[Indices, int]:
    """The classes in the order in which they come, and the number of those that are there at first.

    Raises:
        UserError: nothing is left to begin with.
    """
    order = generator(seed, "timeline", "classes").permutation(dataset.num_classes)
    later = sum(change.add_classes or 0 for change in timeline)
    if later >= dataset.num_classes:
        raise UserError(
            f"timeline: add_classes adds {later} classes, and {dataset.name} has {dataset.num_classes}, of which one "
            "must be there at first; add fewer"
        )
    return order, dataset.num_classes - later


def _exchanged(owners: list[int], share: float | None, number: int, seed: int) -> list[int]:
    """Let a share of the clients, drawn for the change of this number, pass their samples on in a circle."""
    if share is None:
        return owners
    drawn = generator(seed, "timeline", "exchange", number).permutation(len(owners))[: round(share * len(owners))]
    new = list(owners)
    for client, giver in zip(drawn.tolist(), np.roll(drawn, 1).tolist(), strict=True):
        new[client] = owners[giver]
    return new


def _lists(
    dataset: Dataset, partition: Partition, owners: list[int], present: Collection[int], classes: Indices
) -> Partition:
    """The partition of one stage before its shifts."""
    known = np.isin(dataset.y, classes)

    def of_clients(lists: _Lists) -> _Lists:
        return tuple(
            lists[owner][known[lists[owner]]] if client in present else EMPTY for client, owner in enumerate(owners)
        )

    return replace(
        partition,
        train=of_clients(partition.train),
        validation=of_clients(partition.validation),
        test=of_clients(partition.test),
        global_test=partition.global_test[known[partition.global_test]],
    )


def _appended(whole: Dataset, dataset: Dataset, stage: Partition) -> tuple[Dataset, Partition]:
    """Append the samples of a stage to all others, and return the stage with their new positions."""
    lists = stage.train, stage.validation, stage.test, (stage.global_test,)
    used = np.unique(np.concatenate([indices for part in lists for indices in part]))
    train, validation, test, (common,) = (
        tuple(len(whole.y) + np.searchsorted(used, indices) for indices in part) for part in lists
    )
    larger = whole.extended(dataset.x[used], dataset.y[used], dataset, used)
    return larger, replace(stage, train=train, validation=validation, test=test, global_test=common)
