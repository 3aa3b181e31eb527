"""Packing clients of unequal length into a fixed number of lanes.

The longest client goes first, and a lane that finishes a client takes the next. The number of lanes is part of what the
byte promise rests on, so it never depends on how many clients there are; a lane without a client is idle and its
results are thrown away.
"""

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IDLE = -1


@dataclass(frozen=True)
class Packing:
    """Who is where.

    Attributes:
        row, step: `[steps, lanes]` each (row IDLE: nobody).
        load: per step the (lane, row) pairs that are seated before it.
        store: per step the (lane, row) pairs that are done after it.
    """

    row: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]
    load: list[list[tuple[int, int]]]
    store: list[list[tuple[int, int]]]


def pack(lengths: list[int], lanes: int) -> Packing:
    """Packing rows of the given lengths (steps); rows of length 0 are left out."""
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
