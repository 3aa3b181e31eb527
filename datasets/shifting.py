"""Applying shifts: every client's samples pass through the cell's shifts one after the other.

A registered shift is a function `(own, **options) -> own`: it gets a client's samples of one part and returns them with
other inputs or other labels, or returns only some of them. The addresses of its draws begin with (seed, "shift", name),
so the draws depend neither on the method nor on the order of clients.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from bench.data import Array, Dataset, Indices, Partition
from bench.errors import UserError
from bench.plugin import SHIFTS
from bench.rng import generator

Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")
_NONE: Indices = np.empty(0, np.int64)


@dataclass(frozen=True)
class Own:
    """One client's samples of one part, as a shift gets and returns them.

    Attributes:
        dataset: all samples as they were loaded.
        client, clients: the client's number and the number of clients.
        part: what the samples are used for.
        at: `[n]` their indices in the data set.
        x, y: `[n, ...]` inputs as stored (not normalised) and `[n]` labels, after the preceding shifts.
        held: sorted labels that the client trains or validates on.
        name, seed: name of the shift and seed of the cell's partition; the addresses of its draws begin with them.
    """

    dataset: Dataset
    client: int
    clients: int
    part: Part
    at: Indices
    x: Array
    y: Indices
    held: Indices
    name: str
    seed: int

    def rng(self, *address: int | str) -> np.random.Generator:
        """The generator whose address starts with the shift's own and ends with the given one."""
        return generator(self.seed, "shift", self.name, *address)

    def group(self, groups: int) -> int:
        """The client's group, 0 .. groups - 1: assigned at random, in sizes that differ by at most one."""
        places = self.rng("groups").permutation(self.clients)
        return int(places[self.client]) % groups

    def only(self, which: npt.NDArray[np.bool_]) -> "Own":
        """The samples where the mask `which`, `[n]`, is true."""
        return replace(self, at=self.at[which], x=self.x[which], y=self.y[which])


def apply(
    dataset: Dataset, partition: Partition, shifts: Sequence[dict[str, Any]], seed: int
) -> tuple[Dataset, Partition]:
    """Apply the cell's shifts to every client's samples, and return the changed data set and partition.

    Two clients may share a test sample and see it differently. Therefore, if a shift changes local tests, each client
    gets its own copies of its test samples, appended after all other samples, and the generic model is tested on their
    union. If no shift does, the common test set stays. Samples that no client has stay unchanged.

    Args:
        dataset, partition: before any shift.
        shifts: the cell's shifts; each has its `name` and its options.
        seed: seed of the partition.

    Raises:
        UserError: a shift does not fit the data, or returns invalid data.
    """
    x, y = dataset.x.copy(), dataset.y.copy()
    lists: dict[Part, list[Indices]] = {part: [] for part in PARTS}
    tests: list[Own] = []
    for client in range(len(partition)):
        own = _of_client(dataset, partition, client, shifts, seed)
        for part in PARTS[:2]:
            x[own[part].at], y[own[part].at] = own[part].x, own[part].y
            lists[part].append(own[part].at)
        tests.append(own["test"])
    shifted = replace(dataset, x=x, y=y)
    seen = replace(partition, train=tuple(lists["train"]), validation=tuple(lists["validation"]))
    same = (_untouched(dataset, own, at) for own, at in zip(tests, partition.test, strict=True))
    return (shifted, seen) if all(same) else _with_copies(shifted, seen, tests)


def _of_client(
    dataset: Dataset, partition: Partition, client: int, shifts: Sequence[dict[str, Any]], seed: int
) -> dict[Part, Own]:
    """A client's samples after all shifts."""
    lists = {"train": partition.train, "validation": partition.validation, "test": partition.test}
    found: dict[Part, Own] = {}
    for part in PARTS:
        at = lists[part][client]
        found[part] = Own(dataset, client, len(partition), part, at, dataset.x[at], dataset.y[at], _NONE, "", seed)
    for shift in shifts:
        options = {key: value for key, value in shift.items() if key != "name"}
        held = np.unique(np.concatenate([found["train"].y, found["validation"].y]))
        for part, own in found.items():
            if len(own.at):
                given = replace(own, held=held, name=shift["name"])
                found[part] = _checked(given, SHIFTS.get(shift["name"])(given, **options))
    return found


def _checked(given: Own, own: Own) -> Own:
    """Return what a shift returned, after checking it against what the shift was given.

    Raises:
        UserError: shapes or types differ, labels are out of range, or there are samples that the client does not have.
    """
    expected = (len(own.at), *given.dataset.x.shape[1:]), given.dataset.x.dtype
    if (own.x.shape, own.x.dtype) != expected or own.y.shape != own.at.shape:
        raise UserError(
            f"shift {given.name!r} returns inputs {own.x.dtype} {own.x.shape} and labels {own.y.shape} for "
            f"{len(own.at)} samples; inputs should be {expected[1]} {expected[0]}"
        )
    if len(own.y) and not 0 <= own.y.min() <= own.y.max() < given.dataset.num_classes:
        raise UserError(f"shift {given.name!r} returns labels outside 0 .. {given.dataset.num_classes - 1}")
    if not np.isin(own.at, given.at).all():
        raise UserError(f"shift {given.name!r} returns samples that client {given.client} does not have")
    return own


def _untouched(dataset: Dataset, own: Own, at: Indices) -> bool:
    return np.array_equal(own.at, at) and np.array_equal(own.y, dataset.y[at]) and np.array_equal(own.x, dataset.x[at])


def _with_copies(shifted: Dataset, seen: Partition, tests: list[Own]) -> tuple[Dataset, Partition]:
    """Append every client's own copies of its test samples after all other samples."""
    of = np.concatenate([own.at for own in tests])
    ends = len(shifted.y) + np.cumsum([len(own.at) for own in tests])
    places = tuple(np.arange(end - len(own.at), end) for end, own in zip(ends, tests, strict=True))
    rows, groups = (None if one is None else np.concatenate([one, one[of]]) for one in (shifted.rows, shifted.groups))
    x = np.concatenate([shifted.x, *(own.x for own in tests)])
    y = np.concatenate([shifted.y, *(own.y for own in tests)])
    return replace(shifted, x=x, y=y, rows=rows, groups=groups), replace(seen, test=places, global_test=_NONE)
