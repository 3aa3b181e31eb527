"""The schedule of a cohort: steps of equal batches together, and clients of unequal length in lanes.

The longest client goes first, and a lane that finishes a client takes the next; a lane without a client is idle and its
results are thrown away. On a CPU the number of lanes is part of what the byte promise rests on, so it never depends on
how many clients there are. Where lanes are many, most of them would wait for the longest client: there the schedule
goes on in fewer lanes as soon as those hold all that still train.
"""

import heapq
import itertools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

IDLE = -1
BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""How many lanes a narrowed schedule may have: few, as each number is a shape of its own, to be recorded."""

StepRange = tuple[tuple[int, ...], int, int]
"""Steps `start .. stop-1` of a client, with the batch size of each stream in all of them."""


class Phase(NamedTuple):
    """Steps `start .. stop-1` of some rows, all of one batch size in each stream."""

    sizes: tuple[int, ...]
    rows: list[tuple[int, int, int]]

    def lengths(self, count: int) -> list[int]:
        """Numbers of steps in this phase, for each of `count` rows."""
        lengths = [0] * count
        for row, start, stop in self.rows:
            lengths[row] = stop - start
        return lengths


@dataclass(frozen=True)
class Packing:
    """A schedule of rows in lanes: which row is in which lane at each step.

    Attributes:
        row, step: `[steps, lanes]` each (row IDLE: nobody).
        load: per step the (lane, row) pairs of clients that are put into their lanes before it.
        store: per step the (lane, row) pairs of clients that have ended after it.
    """

    row: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]
    load: list[list[tuple[int, int]]]
    store: list[list[tuple[int, int]]]


def runs_of(sizes: npt.NDArray[np.int64], epoch: int = 0) -> list[StepRange]:
    """Maximal runs of equal rows of `[steps, streams]` sizes; none goes beyond an `epoch` of so many steps (0: any)."""
    changes = (np.flatnonzero(np.diff(sizes, axis=0).any(axis=1)) + 1).tolist()
    marks = sorted({0, *changes, *(range(epoch, len(sizes), epoch) if epoch else ()), len(sizes)})
    return [(tuple(int(size) for size in sizes[a]), a, b) for a, b in itertools.pairwise(marks)]


def phases_of(waiting: list[list[StepRange]]) -> list[Phase]:
    """Group runs of equal batch size into phases, and keep the order of each row's runs.

    The smallest waiting size comes first: so short batches at the end of an epoch are done before all rows continue
    with full batches.
    """
    waiting = [list(runs) for runs in waiting]
    phases = []
    while any(waiting):
        sizes = min(runs[0][0] for runs in waiting if runs)
        rows = []
        for row, runs in enumerate(waiting):
            if runs and runs[0][0] == sizes:
                _, start, stop = runs.pop(0)
                rows.append((row, start, stop))
        phases.append(Phase(sizes, rows))
    return phases


def pack(lengths: list[int], lanes: int) -> Packing:
    """Pack rows of these lengths (steps) into lanes; rows of length 0 are left out."""
    free = [(0, lane) for lane in range(lanes)]
    runs: list[tuple[int, int, int]] = []
    for row in sorted((r for r, length in enumerate(lengths) if length), key=lambda r: (-lengths[r], r)):
        start, lane = heapq.heappop(free)
        heapq.heappush(free, (start + lengths[row], lane))
        runs.append((start, lane, row))
    total = max((start + lengths[row] for start, _, row in runs), default=0)
    rows = np.full((total, lanes), IDLE, np.int64)
    steps = np.zeros((total, lanes), np.int64)
    load: list[list[tuple[int, int]]] = [[] for _ in range(total)]
    store: list[list[tuple[int, int]]] = [[] for _ in range(total)]
    for start, lane, row in runs:
        stop = start + lengths[row]
        rows[start:stop, lane] = row
        steps[start:stop, lane] = np.arange(lengths[row])
        load[start].append((lane, row))
        store[stop - 1].append((lane, row))
    return Packing(rows, steps, load, store)


def lanes_for(clients: int, most: int) -> int:
    """The fewest of `BUCKETS`, or else `most`, that hold so many clients at a time."""
    return next((lanes for lanes in BUCKETS if min(clients, most) <= lanes < most), most)


def narrowed(packing: Packing) -> list[Packing]:
    """Split a packing where the number of busy lanes falls, each part with the smallest number of lanes from `BUCKETS`
    that holds them.

    A row that continues in the next packing leaves its lane and enters a new one.
    """
    # A lane is idle only when no client waits, so the widths never increase.
    widths = [lanes_for(busy, packing.row.shape[1]) for busy in (packing.row != IDLE).sum(axis=1).tolist()]
    cuts = [0, *(np.flatnonzero(np.diff(widths)) + 1).tolist(), len(widths)]
    return [_lanes_only(packing, a, b, widths[a]) for a, b in itertools.pairwise(cuts) if b > a]


def _lanes_only(packing: Packing, start: int, stop: int, lanes: int) -> Packing:
    """Cut some steps out of a packing, with the lanes that are busy at the first of them."""
    kept = np.flatnonzero(packing.row[start] != IDLE).tolist()
    place = {lane: i for i, lane in enumerate(kept)}
    rows = np.full((stop - start, lanes), IDLE, np.int64)
    steps = np.zeros((stop - start, lanes), np.int64)
    rows[:, : len(kept)], steps[:, : len(kept)] = packing.row[start:stop, kept], packing.step[start:stop, kept]
    load, store = (
        [[(place[lane], row) for lane, row in pairs] for pairs in moves[start:stop]]
        for moves in (packing.load, packing.store)
    )
    load[0] = _busy_lanes(rows[0])
    store[-1] = _busy_lanes(rows[-1])
    return Packing(rows, steps, load, store)


def _busy_lanes(rows: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    return [(lane, row) for lane, row in enumerate(rows.tolist()) if row != IDLE]
