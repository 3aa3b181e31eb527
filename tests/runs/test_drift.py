"""What rounding moves is as often up as down: a shift of all cells is seen; honest drift, however far, is not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.rng import generator
from bench.runs.verify.drift import ENOUGH, FEWEST, LEVEL, shift


def drifts(cells: int, seed: int, by: float = 0.0) -> list[dict[str, float]]:
    """Differences as those between two kinds of processor: most are 0, few are far, one metric further than another."""
    rng = generator("tests", "drift", seed)
    far = rng.standard_t(2, size=(cells, 2)) * (rng.random((cells, 1)) < 0.3)
    return [{"gm": 3 * float(row[0]), "pm": float(row[1]) + by} for row in far]


@pytest.mark.parametrize("by", [-3.0, 0.5, 3.0])
def test_a_shift_of_every_cell_is_seen(by: float) -> None:
    found = shift(drifts(ENOUGH + 10, 1, by))
    assert found is not None
    assert found.name == "pm"
    assert found.mean == pytest.approx(by, abs=1)
    assert found.p <= LEVEL


def test_fewer_cells_than_the_level_needs_say_nothing() -> None:
    """Of n differences on one side, 2 of the 2^n ways to flip signs are as one-sided: by hand, 14 are too few."""
    assert FEWEST == 15
    assert shift([{"pm": 3.0}] * 14) is None
    found = shift([{"pm": 3.0}] * 15)
    assert found is not None
    assert found.p == 2 / 2**15
    assert shift([{"pm": 3.0}] * 15 + [{"pm": 0.0}] * 9) == found  # cells that are the same do not count
    assert shift([{"pm": 3.0}] * 14 + [{"pm": -3.0}]) is None
    assert shift([]) is None


def test_honest_drift_is_no_shift() -> None:
    assert not any(shift(drifts(40, seed)) for seed in range(40))


def test_one_figure_of_many_is_enough() -> None:
    cells = [{"gm": float(x), "pm": float(y), "bytes": -0.1} for x, y in generator("tests", "x").normal(size=(25, 2))]
    found = shift(cells)
    assert found is not None
    assert (found.name, found.cells) == ("bytes", 25)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-100, 100), min_size=0, max_size=16), st.floats(0.01, 100))
def test_neither_scale_nor_direction_matters(values: list[float], scale: float) -> None:
    clear = [round(value, 3) for value in values]
    found = [shift([{"pm": sign * value} for value in clear]) for sign in (1.0, -1.0, scale)]
    assert len({one is None for one in found}) == 1
    if found[0] is not None:
        assert all(np.isclose(one.p, found[0].p) for one in found if one)
