"""The papers' numbers, and ours beside them."""

import json

import numpy as np
import pytest
from pydantic import ValidationError

from bench.config.grid import load_grid
from bench.errors import UserError
from reports.published.comparison import PublishedRow, comparison, published_table, published_tables
from reports.reading.load import GM, load
from tests.reports.conftest import cell_id


@pytest.mark.parametrize(
    ("name", "waiting"),
    [
        *(pytest.param(f"spfl_table{k}", {"10 missing"}, marks=pytest.mark.long) for k in (1, 2)),
        ("spfl_table7", {"3 missing", "missing"}),
    ],
)
def test_every_printed_number_finds_the_cells_of_its_grid(tmp_path, name, waiting):
    """Labels stand for the paper's methods where ours has another name; ten seeds wait behind each number, and three
    of the undefined k2 of Table 7, which is our default."""
    grid = load_grid(name, [])
    cells = [
        {"id": cell_id(f"{k}"), "label": cell.name, "settings": cell.model_dump(mode="json")}
        for k, cell in enumerate(grid.cells)
    ]
    (tmp_path / "run.json").write_text(json.dumps({"grid": name, "cells": cells}), encoding="utf-8")
    table = comparison(load([tmp_path]), published_table(grid.published or "spfl_t7"))
    notes = {label: {entry.note for entry in entries[1::3]} for label, entries in table.rows}
    assert set().union(*notes.values()) == waiting
    assert notes.get("k2", {"3 missing"}) == {"3 missing"}
    assert name == "spfl_table7" or not any("Ours is not the paper's setting" in note for note in table.notes)


def test_an_unknown_table_is_refused_with_the_nearest_and_a_dash_must_be_declared():
    with pytest.raises(UserError, match="Did you mean 'scd_t1'"):
        published_table("scd_1")
    with pytest.raises(ValidationError, match="goes with `na: true`"):
        PublishedRow(method="a", label="A", metric="GM", mean=None, std=None)


def test_ours_beside_theirs_and_the_difference(store):
    table = comparison(store, published_table("scd_t1"))
    group = [k for k, column in enumerate(table.columns) if column.group == "α=0.1, GM"]
    rows = dict(table.rows)
    theirs, ours, difference = (rows["FedAvg"][k] for k in group)
    scores = store.scores("fedavg", "digits, α=0.1", GM).values()
    assert (theirs.value, theirs.spread) == (73.51, 0.17)
    assert ours.value == pytest.approx(sum(scores) / 3)
    assert difference.value == pytest.approx(ours.value - 73.51)
    assert [rows["FedRoD"][k].note for k in group[1:]] == ["missing", "–"]
    assert [column.name for column in table.columns[:3]] == ["paper", "ours", "Δ"]
    notes = " ".join(table.notes)
    assert "dataset digits (paper: cifar10)" in notes
    assert "rounds 12 (paper: 500)" in notes


def test_a_difference_has_an_interval_where_the_paper_says_n_and_spread(store):
    """Ours as measured; theirs: 73.51 ± 0.17 of three, as three numbers with that mean and deviation."""
    printed = published_table("scd_t1")
    table = comparison(store, printed)
    at = next(k for k, column in enumerate(table.columns) if (column.group, column.name) == ("α=0.1, GM", "Δ"))
    scores = list(store.scores("fedavg", "digits, α=0.1", GM).values())
    gap, half = np.mean(scores) - 73.51, 4.302653 * np.sqrt((np.var(scores, ddof=1) + 0.17**2) / 3)  # t of 2 degrees
    assert dict(table.rows)["FedAvg"][at].note == f"({gap - half:+.2f}, {gap + half:+.2f})"
    assert "of 3 runs;" in table.caption

    silent = printed.model_copy(update={"setting": {**printed.setting, "trials": 0}})
    table = comparison(store, silent)
    assert dict(table.rows)["FedAvg"][at].note == ""
    assert "gives no number of runs" in table.caption


def test_cells_that_differ_in_what_no_axis_names_are_not_pooled(store_writer, tmp_path):
    """Two learning rates of one method: neither is the paper's number, and no more so is their mean."""
    common = {"seeds": 2, "alphas": (0.1,), "methods": ("fedavg", "scd")}
    runs = [store_writer(tmp_path / f"{lr}", lr=lr, prefix=f"{lr}", **common) for lr in (0.01, 0.1)]
    table = comparison(load(runs), published_table("scd_t1"))
    at = next(k for k, column in enumerate(table.columns) if (column.group, column.name) == ("α=0.1, GM", "ours"))
    ours, difference = dict(table.rows)["FedAvg"][at : at + 2]
    assert (ours.value, ours.note, difference.note) == (None, "ambiguous", "–")
    assert any(note.startswith("Ambiguous: several of our cells match") for note in table.notes)
    alone = comparison(load(runs[:1]), published_table("scd_t1"))
    assert dict(alone.rows)["FedAvg"][at].note == "(n=2)"


def test_axes_of_the_method_are_rows_and_its_setting_chooses_cells(store):
    tau = comparison(store, published_table("scd_t6"))
    assert [label for label, _ in tau.rows][:2] == ["tau=0", "tau=0.1"]
    participation = comparison(store, published_table("scd_t10"))
    assert {column.group for column in participation.columns} >= {"C=0.1, GM"}


@pytest.mark.parametrize("name", published_tables())
def test_every_printed_cell_can_stand_beside_any_run(store, name):
    assert len(published_table(name).rows) == published_table(name).printed["cells"]
    table = comparison(store, published_table(name))
    printed_columns = [k for k, column in enumerate(table.columns) if column.name == "paper"]
    numbers = [entries[k] for _, entries in table.rows for k in printed_columns if entries[k].value is not None]
    printed = published_table(name).rows
    finite = [row for row in printed if row.mean is not None and row.mean != float("inf")]
    assert len(numbers) == len(finite), "two printed cells fell on one place"
