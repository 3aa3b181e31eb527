"""What makes a comparison on a table mean little is named, and nothing else is."""

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bench.errors import UserError
from datasets.doubts import TELLING, odd_numbers, repeated, telling
from datasets.tables import table
from tools.worlds import table as world

Y = np.arange(60) % 3
RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("kind", "values", "tells"),
    [
        ("number", Y * 1.0, True),
        ("number", np.where(np.arange(60) == 7, 0.0, Y * 1.0), True),  # in 59 rows of 60
        ("number", np.zeros(60), False),
        ("number", np.full(60, np.nan), False),
        ("number", np.repeat(np.arange(6.0), 10), False),
        ("number", np.where(Y == 1, np.nan, Y), True),
        ("number", Y * 2.0 + np.linspace(0, 1, 60), True),  # another value in each row
        ("number", (Y * 7 + 4) % 10 + 10.0 * (np.arange(60) % 2), True),  # codes whose order means nothing
        ("number", np.arange(60.0), False),
        ("category", np.array([f"c{i}" for i in range(60)], object), False),  # a name for each row
        ("category", np.array([f"c{v}" for v in Y], object), True),
        ("category", np.array([None if v == 1 else "ab"[v // 2] for v in Y], object), True),
        ("category", np.array(list("ab") * 30, object), False),
    ],
)
def test_a_column_tells_the_label_only_if_it_does(kind: Any, values: Any, tells: bool) -> None:
    assert (telling(kind, values, Y) >= TELLING) == tells


def test_a_rare_label_is_told_by_the_rare_rows() -> None:
    """Always saying the majority is right in 97 % of rows and tells nothing."""
    y = np.arange(1000) % 33 == 0
    assert telling("number", np.zeros(1000), y) < 0.6
    assert telling("number", RNG.normal(size=1000), y) < 0.8
    assert telling("number", y + 0.1 * RNG.normal(size=1000), y) > TELLING
    third = np.where(np.arange(1000) < 2, 2, y)
    assert telling("number", third + 0.1 * RNG.normal(size=1000), third) > TELLING
    few = np.arange(60) < 2  # two rows that may well be the largest by chance
    assert telling("number", -np.arange(60.0), few) == 0


DAYS = pd.date_range("2023-11-20", periods=60)
SECONDS = 1_700_438_400 + 12_345 + 86_400 * np.arange(60)


@pytest.mark.parametrize(
    ("name", "values", "what"),
    [
        ("mrn", 4_000_000 + 37_123 * np.arange(60), "whole number in each row, such as 4000000"),
        ("patient_id", RNG.permutation(9000)[:60], "whole number in each row"),
        ("case number", RNG.permutation(9000)[:60], "whole number in each row"),
        ("a", 100_000 + RNG.permutation(800_000)[:60], "whole number in each row"),
        ("admitted", DAYS.strftime("%Y%m%d").astype(int), "dates as numbers, such as 20231120"),
        ("admitted", np.repeat(DAYS.strftime("%Y%m").astype(int), 3), "dates as numbers, such as 202311"),
        ("t", SECONDS, "dates as numbers, such as 1700"),
        ("t", 1000 * SECONDS, "dates as numbers"),
        ("steps", RNG.permutation(20_000)[:60], ""),
        ("income", 1000 * RNG.permutation(np.arange(8, 300))[:60], ""),
        ("year", 1960 + np.arange(60), ""),
        ("zip", np.repeat(10_000 + 7 * np.arange(30), 2), ""),
        ("cells", 100_000_000 * (12 + np.arange(60) % 9), ""),
        ("mrn", RNG.normal(size=60), ""),
        ("mrn", 4_000_000 + 37_123 * np.arange(15), ""),  # few rows
    ],
)
@pytest.mark.parametrize("gaps", [False, True])
def test_identifiers_and_dates_as_numbers_are_named(name: str, values: Any, what: str, gaps: bool) -> None:
    floats = np.array(values, float)
    if gaps:
        floats = np.where(np.arange(len(floats)) % 7 == 3, np.nan, floats)
    said = odd_numbers(name, floats)
    assert (what in said) if what else said == "", said
    assert not said or "--leave-out" in said


def test_visits_of_one_person_are_named_unless_a_column_says_whose_they_are() -> None:
    rng = np.random.default_rng(1)
    person = np.repeat(np.arange(60), 3)
    x = rng.normal(size=(60, 5))[person] + 0.02 * rng.normal(size=(180, 5))
    ill = (rng.random(60) < 0.4)[person].astype(int)
    frame = pd.DataFrame({f"x{k}": x[:, k].round(2) for k in range(5)}).assign(site=person % 3, who=person, ill=ill)
    data = table(frame.drop(columns="who"), label="ill", site="site")
    assert "--subject" in data.doubts["repeats"]
    assert any(data.doubts["repeats"] in note for note in data.notes)
    assert "repeats" not in table(frame, label="ill", site="site", subject="who").doubts
    assert "repeats" not in table(frame.iloc[::3].drop(columns="who"), label="ill", site="site").doubts


@pytest.mark.parametrize("seed", range(8))
def test_rows_that_lie_near_each_other_by_chance_are_no_visits(seed: int) -> None:
    """Few columns, rounded numbers, other units at a site, gaps, few rows: as tables have them."""
    rng = np.random.default_rng(seed)
    rows, wide = int(rng.integers(30, 300)), int(rng.integers(1, 4))
    site = rng.integers(0, 3, rows)
    features: Any = {"a": ("category", rng.choice(["x", "y"], rows))}
    for number in range(wide):
        values = np.exp(rng.normal(size=rows)).round(int(rng.integers(0, 3))) * np.where(site == 1, 18, 1)
        features[f"x{number}"] = ("number", np.where(rng.random(rows) < 0.1, np.nan, values))
    assert repeated(features, rng.integers(0, 2, rows), site) is None


def test_a_decision_over_a_column_that_tells_the_label_needs_a_word(tmp_path: Any) -> None:
    import bench

    for name, accept in (("leak", "code"), ("repeated", "repeats")):
        with pytest.raises(UserError, match=rf"say --accept {accept}$"):
            bench.decide(world(name, 0), tmp_path / name, label="outcome", site="site", quiet=True)
    with pytest.raises(UserError, match=re.escape("--accept cod: ") + ".*needs code to be accepted"):
        bench.decide(world("leak", 0), tmp_path / "leak", label="outcome", site="site", accept=["cod"], quiet=True)
