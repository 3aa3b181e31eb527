"""The schedule of a cohort: steps of equal batches in phases, and in each the clients, of unequal length, in lanes.

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

from bench.data import Array
from bench.engine.prepare import Prepared
from bench.engine.step import MAIN

IDLE = -1
BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""How many lanes a narrowed schedule may have: few, as each number is a shape of its own, to be recorded."""

Pairs = list[list[tuple[int, int]]]
"""Pairs of a lane and a row, per step."""

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
        load: per step the clients that are put into their lanes before it.
        store: per step the clients that have ended after it and leave their lanes.
        kept: the lanes of the packing before this one whose clients go on in its first lanes; None: there is none.
    """

    row: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]
    load: Pairs
    store: Pairs
    kept: list[int] | None = None


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
    load: Pairs = [[] for _ in range(total)]
    store: Pairs = [[] for _ in range(total)]
    for start, lane, row in sorted(runs, key=lambda run: run[1]):
        rows[start : start + lengths[row], lane] = row
        steps[start : start + lengths[row], lane] = np.arange(lengths[row])
        load[start].append((lane, row))
        store[start + lengths[row] - 1].append((lane, row))
    return Packing(rows, steps, load, store)


def lanes_for(clients: int, most: int) -> int:
    """The fewest of `BUCKETS`, or else `most`, that hold so many clients at a time."""
    return next((lanes for lanes in BUCKETS if min(clients, most) <= lanes < most), most)


def narrowed(packing: Packing) -> list[Packing]:
    """Split a packing where the number of busy lanes falls, each part with the smallest number of lanes from `BUCKETS`
    that holds them; a client that goes on is in another lane then."""
    # A lane is idle only when no client waits, so the widths never increase.
    widths = [lanes_for(busy, packing.row.shape[1]) for busy in (packing.row != IDLE).sum(axis=1).tolist()]
    cuts = [0, *(np.flatnonzero(np.diff(widths)) + 1).tolist(), len(widths)]
    parts: list[Packing] = []
    before: list[int] = []
    for a, b in itertools.pairwise(cuts):
        if b > a:
            busy = np.flatnonzero(packing.row[a] != IDLE).tolist()
            kept = [before.index(lane) for lane in busy] if parts else None
            parts.append(_lanes_only(packing, a, b, busy, widths[a], kept))
            before = busy
    return parts


def _lanes_only(
    packing: Packing, start: int, stop: int, busy: list[int], width: int, kept: list[int] | None
) -> Packing:
    """Cut some steps out of a packing, with the lanes that are busy at the first of them."""
    rows = np.full((stop - start, width), IDLE, np.int64)
    steps = np.zeros((stop - start, width), np.int64)
    rows[:, : len(busy)], steps[:, : len(busy)] = packing.row[start:stop, busy], packing.step[start:stop, busy]
    lane_of = {lane: i for i, lane in enumerate(busy)}
    load, store = (
        [[(lane_of[lane], row) for lane, row in pairs] for pairs in moves[start:stop]]
        for moves in (packing.load, packing.store)
    )
    return Packing(rows, steps, load, store, kept)


def schedule(
    group: list[Prepared], lanes: int, threads: int, *, on_gpu: bool, padded: bool
) -> list[list[tuple[Phase, list[Packing]]]]:
    """Schedule the training of a group.

    Args:
        group: requests of one recipe.
        lanes: the largest number of lanes.
        threads: parts of a phase that run at a time, on a CPU.
        on_gpu: whether a packing continues in fewer lanes where these suffice.
        padded: whether BatchNorm leaves out padding.

    Returns:
        One list after another, each of phases that may run side by side, with the packings that follow each other.
    """
    phases = _phases(group, by_epoch=on_gpu, padded=padded)
    if on_gpu:
        return [[(phase, narrowed(pack(phase.lengths(len(group)), lanes)))] for phase in phases]
    return [[(s, [pack(s.lengths(len(group)), lanes)]) for s in _shares(phase, threads)] for phase in phases]


def batch_sizes(request: Prepared) -> Array:
    """`[steps, streams]` samples per batch, with its padding where its sum has a divisor."""
    batches = [request.streams[name].batches for name in sorted(request.streams)]
    return np.stack([np.full_like(b.sizes, b.positions.shape[1]) if b.divisor else b.sizes for b in batches], axis=1)


def _phases(group: list[Prepared], *, by_epoch: bool, padded: bool) -> list[Phase]:
    """Divide the steps into phases: one phase, in which short batches are padded, or with moving statistics that would
    see the padding one per batch size.

    Side batches count too: sizes are compared stream by stream, the main one first. With `by_epoch` runs end with
    epochs, or clients without short batches would take all their epochs while the others take one.
    """
    recipe, streams = group[0].recipe, group[0].streams
    if padded or not recipe.moves_statistics or recipe.frozen:
        full = tuple(streams[name].batches.positions.shape[1] for name in sorted(streams))
        rows = [(row, 0, p.steps) for row, p in enumerate(group) if p.steps]
        return [Phase(full, rows)] if rows else []
    epochs = [p.streams[MAIN].batches.per_epoch if by_epoch else 0 for p in group]
    return phases_of([runs_of(batch_sizes(p), epoch) for p, epoch in zip(group, epochs, strict=True)])


def _shares(phase: Phase, threads: int) -> list[Phase]:
    """Share a phase's rows among threads, about as many steps for each: packed as clients are into lanes."""
    shares: list[list[int]] = [[] for _ in range(threads)]
    for pairs in pack([stop - start for _, start, stop in phase.rows], threads).load:
        for lane, row in pairs:
            shares[lane].append(row)
    return [Phase(phase.sizes, [phase.rows[i] for i in sorted(share)]) for share in shares if share]
