"""Which lane does which step when, in how many lanes, and in phases of one batch size."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.engine.lane_schedule import BUCKETS, IDLE, Packing, narrowed, pack, phases_of, runs_of

SIZES = st.lists(st.lists(st.sampled_from([2, 3, 10]), max_size=8), max_size=6)


@given(lengths=st.lists(st.integers(0, 9), max_size=12), lanes=st.integers(1, 5))
def test_every_step_of_every_row_runs_once_and_in_order(lengths: list[int], lanes: int) -> None:
    schedule = pack(lengths, lanes)
    for row, length in enumerate(lengths):
        cells = np.argwhere(schedule.row == row)
        assert len({lane for _, lane in cells}) <= 1
        assert [int(schedule.step[t, lane]) for t, lane in cells] == list(range(length))
    for t, (loaded, stored) in enumerate(zip(schedule.load, schedule.store, strict=True)):
        assert all(schedule.row[t, lane] == row and schedule.step[t, lane] == 0 for lane, row in loaded)
        assert all(schedule.row[t, lane] == row and schedule.step[t, lane] == lengths[row] - 1 for lane, row in stored)
    for pairs in (schedule.load, schedule.store):
        assert sorted(row for step in pairs for _, row in step) == [r for r, length in enumerate(lengths) if length]
    # With the longest row first, no schedule is longer than the longest row plus an even share of all steps.
    assert len(schedule.row) <= max(lengths, default=0) + sum(lengths) / lanes


def test_nobody_is_idle_while_somebody_waits() -> None:
    schedule = pack([5, 3, 2, 2], 2)
    assert len(schedule.row) == 7
    assert (schedule.row[:5] != IDLE).all()


def _replayed(packing: Packing, before: list[tuple[int, int]], done: list[int]) -> list[tuple[int, int]]:
    """Run a packing as the engine does: a row counts its steps in a lane, goes on in the next packing, and takes the
    count from there in the end."""
    lanes = [before[lane] for lane in packing.kept or []]
    lanes += [(IDLE, 0)] * (packing.row.shape[1] - len(lanes))
    for t, (load, store) in enumerate(zip(packing.load, packing.store, strict=True)):
        for lane, row in load:
            lanes[lane] = row, 0
        for lane, row in enumerate(packing.row[t].tolist()):
            if row != IDLE:
                assert lanes[lane] == (row, packing.step[t, lane])
                lanes[lane] = row, lanes[lane][1] + 1
        for lane, row in store:
            assert lanes[lane][0] == row
            done[row] = lanes[lane][1]
    return lanes


@given(lengths=st.lists(st.integers(0, 9), max_size=30), lanes=st.integers(1, 20))
def test_narrower_lanes_do_the_same_steps_at_the_same_time(lengths: list[int], lanes: int) -> None:
    whole = pack(lengths, lanes)
    parts, done, in_lanes = narrowed(whole), [0] * len(lengths), []
    for part in parts:
        in_lanes = _replayed(part, in_lanes, done)
    assert done == lengths
    assert sum(len(part.row) for part in parts) == len(whole.row)
    busy = [sorted(row for row in rows if row != IDLE) for part in parts for rows in part.row.tolist()]
    assert busy == [sorted(row for row in rows if row != IDLE) for rows in whole.row.tolist()]
    widths = [part.row.shape[1] for part in parts]
    assert widths == sorted(set(widths), reverse=True)
    for width, part in zip(widths, parts, strict=True):
        assert width in {*BUCKETS, lanes}
        assert width <= lanes
        narrower = max((n for n in BUCKETS if n < width), default=0)
        assert ((part.row != IDLE).sum(axis=1) > narrower).all()


@pytest.mark.long
def test_nine_in_ten_lanes_are_busy_by_the_command_of_the_docs() -> None:
    """Nine in ten of the lanes that a call has; of 64 lanes far fewer. Five epochs, 100 clients, data of CIFAR-10's
    size. With a constant number of lanes, 16, 40 and 56 % are busy."""
    script = Path(__file__).parents[2] / "docs/examples/busy_lanes.py"
    printed = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed.splitlines()[2:]]
    busy, of_64 = (
        {(row[0], row[1]): int(row[column].rstrip("%")) for row in rows} for column in (2, 4)
    )  # the shares of a call's lanes and of 64
    assert [busy[alpha, "one number of lanes"] for alpha in ("0.1", "0.5", "1")] == [16, 40, 56]
    for alpha in ("0.1", "0.5", "1"):
        for schedule in ("and lanes become fewer", "and short batches are padded"):
            assert busy[alpha, schedule] >= 90
    assert [of_64[alpha, "and short batches are padded"] for alpha in ("0.1", "0.5", "1")] == [26, 74, 85]


@given(sizes=SIZES, epoch=st.integers(0, 4))
def test_phases_have_each_step_once_in_order_and_with_its_size(sizes: list[list[int]], epoch: int) -> None:
    """Whatever the order of sizes; if runs end with epochs, no phase contains parts of two epochs of one client."""
    found: list[list[int]] = [[] for _ in sizes]
    for phase in phases_of([runs_of(np.array(own, np.int64).reshape(-1, 1), epoch) for own in sizes]):
        assert len({row for row, _, _ in phase.rows}) == len(phase.rows)
        for row, start, stop in phase.rows:
            assert {(sizes[row][step],) for step in range(start, stop)} == {phase.sizes}
            assert not epoch or start // epoch == (stop - 1) // epoch
            found[row] += range(start, stop)
    assert found == [list(range(len(own))) for own in sizes]
