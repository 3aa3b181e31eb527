"""How shifts are applied: every client's samples pass through the cell's shifts, in their order.

A registered shift is a function `(own, **options) -> own`: it returns a client's samples of one part with other inputs,
other labels, or some of them only. What it draws has addresses that begin with (seed, "shift", name), so it depends on
neither the method nor the order of clients.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from bench.data import Dataset, Indices, Partition
from bench.errors import UserError
from bench.plugin import SHIFTS
from bench.rng import generator
from datasets.arrays import Array

Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")
_NONE: Indices = np.empty(0, np.int64)


@dataclass(frozen=True)
class Own:
    """One client's samples of one part, as a shift gets and returns them.

    Attributes:
        dataset: all samples as they were loaded.
        client, clients: which client, of how many.
        part: what the samples are for.
        at: `[n]` which samples of the data set they are.
        x, y: `[n, ...]` inputs as they are stored, not normalised yet, and `[n]` labels, after the shifts before.
        held: sorted labels that the client trains or validates on.
        name, seed: of the shift and of the cell's partition; they begin the addresses of its draws.
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
        """The generator at an address below the shift's own."""
        return generator(self.seed, "shift", self.name, *address)

    def group(self, groups: int) -> int:
        """Which of so many groups the client is in: drawn, and of sizes that differ by one at most."""
        places = self.rng("groups").permutation(self.clients)
        return int(places[self.client]) % groups

    def only(self, which: npt.NDArray[np.bool_]) -> "Own":
        """Some of the samples."""
        return replace(self, at=self.at[which], x=self.x[which], y=self.y[which])


def apply(
    dataset: Dataset, partition: Partition, shifts: Sequence[dict[str, Any]], seed: int
) -> tuple[Dataset, Partition]:
    """The samples as the clients have them.

    Two clients may test on one sample and see it differently: where a shift changes local tests, each client gets its
    own copies of them, after all other samples, and the generic model is tested on their union. Where none does, the
    common test stays. Samples that nobody has stay as they are.

    Args:
        dataset, partition: before any shift.
        shifts: of the cell; each has its `name` and its options.
        seed: of the partition.

    Raises:
        UserError: a shift does not fit the data, or returns what is no data.
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
    """What a shift returned, if it is data of the kind that it got.

    Raises:
        UserError: it is not.
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
    """Every client's own copies of its tests after all other samples."""
    of = np.concatenate([own.at for own in tests])
    ends = len(shifted.y) + np.cumsum([len(own.at) for own in tests])
    places = tuple(np.arange(end - len(own.at), end) for end, own in zip(ends, tests, strict=True))
    rows, groups = (None if one is None else np.concatenate([one, one[of]]) for one in (shifted.rows, shifted.groups))
    x = np.concatenate([shifted.x, *(own.x for own in tests)])
    y = np.concatenate([shifted.y, *(own.y for own in tests)])
    return replace(shifted, x=x, y=y, rows=rows, groups=groups), replace(seen, test=places, global_test=_NONE)
