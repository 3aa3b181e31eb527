"""Tables that say themselves which rows are for tests, such as those of the last year."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bench.data import Dataset
from bench.errors import UserError
from datasets.tables import table
from tests.datasets.helpers import divide
from tests.warm import PATIENCE, Start


def frame(rows: int = 120) -> pd.DataFrame:
    """Two sites; the rows of 2023 and 2024 are for tests, at the end or anywhere."""
    rng = np.random.default_rng(0)
    year = rng.integers(2018, 2025, rows)
    data = pd.DataFrame({"age": rng.normal(50, 9, rows), "site": np.arange(rows) % 2, "ill": rng.integers(0, 2, rows)})
    return data.assign(year=year, part=np.where(year > 2022, "test", "train"))


def read(rows: pd.DataFrame, **options: Any) -> Dataset:
    return table(rows, label="ill", site="site", **{"part": "part", "leave_out": ("year",), **options})


def test_the_rows_that_a_table_names_are_the_tests() -> None:
    """Statistics are of the others, and the column is no feature."""
    rows = frame()
    data = read(rows)
    assert data.rows is not None
    tested = np.flatnonzero(rows["part"] == "test")
    assert data.rows[data.n_train :].tolist() == tested.tolist()
    assert data.rows[: data.n_train].tolist() == np.flatnonzero(rows["part"] == "train").tolist()
    assert data.features == ("age",)
    assert data.mean == pytest.approx((rows["age"][rows["part"] == "train"].mean(),))
    for seed in (0, 1):
        partition = divide(data, clients=2, seed=seed)
        assert sorted(np.concatenate(partition.test).tolist()) == list(range(data.n_train, 120))


def test_the_validation_part_joins_training() -> None:
    rows = frame()
    rows.loc[rows["year"] == 2022, "part"] = " Validation"
    assert read(rows).n_train == (rows["part"] != "test").sum()


def test_what_is_wrong_with_the_column_is_said() -> None:
    rows = frame()
    for changed, options, message in (
        (rows.assign(part="train"), {}, "'part' has no row to test"),
        (rows.assign(part="test"), {}, "'part' has no row to train"),
        (
            rows.assign(part=rows["part"].where(rows.index != 4, "later")),
            {}, r"'part' holds 'later' in 1 row \(the first: row 5\); it should hold train, validation or test",
        ),
        (rows.assign(part=rows["part"].where(rows.index != 4)), {}, "'part' holds nothing in 1 row"),
        (rows.assign(part=(rows["year"] > 2022).astype(int)), {}, "'part' holds 1 in 120 rows"),
        (rows, {"part": "parts"}, "`part_column` names. Did you mean 'part'"),
        (rows, {"part": "site"}, "'site' has two uses"),
        (rows, {"leave_out": ("year", "part")}, "has two uses"),
        (rows.assign(who=np.arange(120) // 3), {"subject": "who"}, "the training part and the test part both have"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=message):
            read(changed, **options)


def test_subjects_and_parts_go_together() -> None:
    rows = frame().assign(who=lambda s: s["part"] + (s.index // 4).astype(str))
    data = read(rows, subject="who")
    assert data.subjects is not None
    assert not np.intersect1d(data.subjects[: data.n_train], data.subjects[data.n_train :]).size


def test_a_site_without_tests_or_without_training_is_noted() -> None:
    rows = frame()
    for site, part, note in ((0, "train", "site 0 has no row for tests"), (1, "test", "site 1 has no row to train on")):
        changed = rows.assign(part=rows["part"].where(rows["site"] != site, part))
        assert any(note in text for text in read(changed).notes)
        assert not any(note in text for text in read(rows).notes)


@pytest.mark.long
def test_the_command_takes_the_column(start_in: Start, tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "t.csv", index=False)
    columns = ["--label", "ill", "--site", "site", "--part", "part", "--leave-out", "year"]
    with start_in(["data", "t.csv", *columns, "--json"], tmp_path) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    rows = frame()
    for site in (0, 1):
        assert f'"test": {((rows["part"] == "test") & (rows["site"] == site)).sum()}' in out
