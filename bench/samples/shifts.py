"""Applying shifts: every client's samples pass through the cell's shifts one after the other.

A registered shift is a function `(own, **options) -> own`: it gets a client's samples of one part and returns them with
other inputs or other labels, or returns only some of them. The addresses of its draws begin with (seed, "shift", name),
so the draws depend neither on the method nor on the order of clients.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bench.data import EMPTY, Dataset, Indices, Own, Part, Partition
from bench.errors import UserError
from bench.plugin import SHIFTS
from bench.settings import ShiftPart

PARTS: tuple[Part, ...] = ("train", "validation", "test")


def apply(dataset: Dataset, partition: Partition, shifts: Sequence[ShiftPart], seed: int) -> tuple[Dataset, Partition]:
    """Apply the cell's shifts to every client's samples, and return the changed data set and partition.

    Two clients may share a test sample and see it differently. Therefore, if a shift changes local tests, each client
    gets its own copies of its test samples, appended after all other samples, and the generic model is tested on their
    union. If no shift does, the common test set stays. Samples that no client has stay unchanged.

    Args:
        dataset, partition: before any shift.
        shifts: the cell's.
        seed: seed of the partition.

    Raises:
        UserError: a shift does not fit the data, or returns invalid data.
    """
    if dataset.missing is not None:
        raise UserError(f"shifts: {dataset.name} lacks some numbers; fill them in, or take `shifts` out")
    x, y = dataset.x.copy(), dataset.y.copy()
    lists: dict[Part, list[Indices]] = {part: [] for part in PARTS}
    tests: list[Own] = []
    for client in range(len(partition)):
        samples = _of_client(dataset, partition, client, shifts, seed)
        for part in PARTS[:2]:
            x[samples[part].at], y[samples[part].at] = samples[part].x, samples[part].y
            lists[part].append(samples[part].at)
        tests.append(samples["test"])
    shifted = replace(dataset, x=x, y=y)
    seen = replace(partition, train=tuple(lists["train"]), validation=tuple(lists["validation"]))
    unchanged = (_untouched(dataset, samples, at) for samples, at in zip(tests, partition.test, strict=True))
    return (shifted, seen) if all(unchanged) else with_copies(shifted, seen, tests)


def _of_client(
    dataset: Dataset, partition: Partition, client: int, shifts: Sequence[ShiftPart], seed: int
) -> dict[Part, Own]:
    """Pass a client's samples through all shifts."""
    lists = {"train": partition.train, "validation": partition.validation, "test": partition.test}
    samples: dict[Part, Own] = {}
    for part in PARTS:
        at = lists[part][client]
        samples[part] = Own(dataset, client, len(partition), part, at, dataset.x[at], dataset.y[at], EMPTY, "", seed)
    for shift in shifts:
        held = np.unique(np.concatenate([samples["train"].y, samples["validation"].y]))
        for part, before_shift in samples.items():
            if len(before_shift.at):
                argument = replace(before_shift, held=held, name=shift.name)
                samples[part] = _checked(argument, SHIFTS.get(shift.name)(argument, **shift.options))
    return samples


def _checked(argument: Own, result: Own) -> Own:
    """Check the samples that a shift returned against those that it got, and return them.

    Raises:
        UserError: shapes or types differ, labels are out of range, or there are samples that the client does not have.
    """
    expected = (len(result.at), *argument.dataset.x.shape[1:]), argument.dataset.x.dtype
    if (result.x.shape, result.x.dtype) != expected or result.y.shape != result.at.shape:
        raise UserError(
            f"shift {argument.name!r} returns inputs {result.x.dtype} {result.x.shape} and labels {result.y.shape} for "
            f"{len(result.at)} samples; inputs should be {expected[1]} {expected[0]}"
        )
    if len(result.y) and not 0 <= result.y.min() <= result.y.max() < argument.dataset.num_classes:
        raise UserError(f"shift {argument.name!r} returns labels outside 0 .. {argument.dataset.num_classes - 1}")
    if not np.isin(result.at, argument.at).all():
        raise UserError(f"shift {argument.name!r} returns samples that client {argument.client} does not have")
    return result


def _untouched(dataset: Dataset, samples: Own, at: Indices) -> bool:
    pairs = (samples.at, at), (samples.y, dataset.y[at]), (samples.x, dataset.x[at])
    return all(np.array_equal(new, old) for new, old in pairs)


def with_copies(shifted: Dataset, seen: Partition, tests: Sequence[Own]) -> tuple[Dataset, Partition]:
    """Append every client's own copies of its test samples after all other samples."""
    of = np.concatenate([test.at for test in tests])
    ends = len(shifted.y) + np.cumsum([len(test.at) for test in tests])
    places = tuple(np.arange(end - len(test.at), end) for end, test in zip(ends, tests, strict=True))
    x, y = (np.concatenate(parts) for parts in ([test.x for test in tests], [test.y for test in tests]))
    return shifted.extended(x, y, shifted, of), replace(seen, test=places, global_test=EMPTY)
