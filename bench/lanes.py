"""Packing clients of unequal length into a fixed number of lanes.

The longest client goes first, and a lane that finishes a client takes the next. Between two such changes the lanes stay
as they are: that is a segment. The number of lanes is part of what the byte promise rests on, so it never depends on
how many clients there are; a lane without a client is idle and its results are thrown away.
"""

import heapq
import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IDLE = -1


@dataclass(frozen=True)
class Segment:
    """Steps `start .. stop-1` of the schedule, during which no lane changes hands.

    Attributes:
        load: (lane, row) pairs to load before the segment.
        store: (lane, row) pairs to store after it.
    """

    start: int
    stop: int
    load: list[tuple[int, int]]
    store: list[tuple[int, int]]


@dataclass(frozen=True)
class Schedule:
    """Who is where: `row` and `step`, both `[steps, lanes]` (row IDLE: nobody), and the segments."""

    row: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]
    segments: list[Segment]


def pack(lengths: list[int], lanes: int) -> Schedule:
    """Schedule rows of the given lengths (steps); rows of length 0 are left out."""
    free = [(0, lane) for lane in range(lanes)]
    runs: list[tuple[int, int, int]] = []
    for row in sorted((r for r, length in enumerate(lengths) if length), key=lambda r: (-lengths[r], r)):
        start, lane = heapq.heappop(free)
        heapq.heappush(free, (start + lengths[row], lane))
        runs.append((start, lane, row))
    total = max((start + lengths[row] for start, _, row in runs), default=0)
    rows = np.full((total, lanes), IDLE, np.int64)
    steps = np.zeros((total, lanes), np.int64)
    for start, lane, row in runs:
        stop = start + lengths[row]
        rows[start:stop, lane] = row
        steps[start:stop, lane] = np.arange(lengths[row])
    marks = sorted({0, total, *(s for s, _, _ in runs), *(s + lengths[r] for s, _, r in runs)})
    segments = [
        Segment(
            a,
            b,
            load=[(lane, row) for start, lane, row in runs if start == a],
            store=[(lane, row) for start, lane, row in runs if start + lengths[row] == b],
        )
        for a, b in itertools.pairwise(marks)
    ]
    return Schedule(rows, steps, segments)
