"""Rows for a model that was trained on another table: encoded as in training, or refused with row and column."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.errors import UserError
from datasets.new_rows import samples
from datasets.tables import table


def frame(seed: int = 0) -> pd.DataFrame:
    """60 rows with gaps in a number and in a category, and a number whose name is a category's."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.normal(50, 9, 60).round(1),
            "pressure": np.where(rng.random(60) < 0.3, np.nan, rng.normal(120, 9, 60).round(1)),
            "ward": rng.choice(["north", "south", None, "Ost=West"], 60),
            "group": rng.integers(1, 4, 60),
            "site": np.array(["A", "B"])[np.arange(60) % 2],
            "outcome": rng.choice(["ill", "well"], 60),
        }
    )


def described(rows: pd.DataFrame) -> Mapping[str, Any]:
    """What a model keeps of the table that it was trained on."""
    known = table(rows, label="outcome", site="site").table
    assert known is not None
    return known


@pytest.mark.parametrize("form", ["frame", "csv", "semicolons", "parquet"])
def test_rows_are_encoded_as_in_training(form: str, tmp_path: Path) -> None:
    """Whatever the file's kind, the order of columns, and whether labels and sites are there."""
    given_rows = frame()
    data = table(given_rows, label="outcome", site="site", categories=["group"])
    assert data.table is not None
    assert data.missing is not None
    assert data.rows is not None
    new = given_rows[["group", "ward", "pressure", "age", "outcome"]]
    rows: pd.DataFrame | Path = new if form == "frame" else tmp_path / ("r.parquet" if form == "parquet" else "r.csv")
    if form == "csv":
        new.to_csv(rows, index=False)
    elif form == "semicolons":
        new.to_csv(rows, index=False, sep=";", decimal=",")
    elif form == "parquet":
        new.to_parquet(rows)
    x, notes = samples(rows, data.table)
    assert notes == []
    assert x.dtype == np.float64
    np.testing.assert_array_equal(x[data.rows], data.x)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**16), rows=st.lists(st.integers(0, 59), min_size=1, max_size=5))
def test_a_row_s_encoding_depends_on_no_other_row(seed: int, rows: list[int]) -> None:
    given_rows = frame(seed)
    known = described(given_rows)
    whole, _ = samples(given_rows, known)
    np.testing.assert_array_equal(samples(given_rows.iloc[rows], known)[0], whole[rows])


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("age", "fifty", ["row 2", "'age'", "'fifty'"]),
        ("age", "5,5", ["row 2", "'age'", "decimal point"]),
        ("age", "<5", ["row 2", "'age'"]),
        ("pressure", np.inf, ["row 2", "'pressure'", "infinite"]),
        ("pressure", 1e300, ["row 2", "'pressure'", "huge"]),
        ("pressure", "2026-01-01", ["row 2", "'pressure'"]),
    ],
)
def test_a_value_that_is_no_number_is_refused(column: str, value: object, words: list[str]) -> None:
    new = frame(1).astype({column: object})
    new.loc[1, column] = value
    with pytest.raises(UserError) as refused:
        samples(new, described(frame()))
    assert all(word in str(refused.value) for word in words), refused.value


def test_other_columns_are_refused_or_named() -> None:
    known = described(frame())
    with pytest.raises(UserError, match=r"no column 'pressure'.*'presure'"):
        samples(frame().rename(columns={"pressure": "presure"}), known)
    with pytest.raises(UserError, match="2 columns 'age'"):
        samples(pd.concat([frame(), frame()[["age"]]], axis=1), known)
    with pytest.raises(UserError, match="no rows"):
        samples(frame().iloc[:0], known)
    _, notes = samples(frame().assign(height=1.0), known)
    assert len(notes) == 1
    assert "height" in notes[0]


def test_what_training_did_not_know_is_zero_and_said() -> None:
    """Categories in another spelling, a gap in a column that had none; of a number a gap is the mean, silently."""
    full = frame().assign(ward=np.array(["north", "south"])[np.arange(60) % 2])
    new = full.astype({"ward": object}).iloc[:4].reset_index(drop=True)
    new["ward"] = ["North", None, "south", "?"]
    new.loc[0, "age"] = np.nan
    x, notes = samples(new, described(full))
    wards = x[:, 3:5]  # after age, pressure, pressure missing
    assert wards.tolist() == [[0, 0], [0, 0], [0, 1], [0, 0]]
    assert np.isnan(x[0, 0])
    assert len(notes) == 2
    assert "'North' (row 1)" in notes[0]
    assert "'north'" in notes[0]
    assert "row 2 and 1 more" in notes[1]
