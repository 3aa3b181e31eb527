import math
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cli.commands import print_table
from bench.cli.results import print_summary, status
from bench.cli.run import _finish
from bench.errors import UserError
from bench.results.cell_names import CELL_COLUMNS, task_name
from bench.results.reported_round import choose_round
from bench.results.results import load_run, tidy
from bench.results.summary import summary
from bench.settings import Settings
from bench.store import store
from bench.store.store import Status
from bench.store.tables import Tables
from reports.reading.load import GM, PM, load
from reports.tables.accuracy import main_table
from tests.runs.helpers import make_run

CELL = "c0ffee0000000000"
BOUND = math.log(4 + 2)
"""The largest loss of a guess, for four test samples of two classes."""
Write = Callable[..., Path]
Rows = list[tuple[int, str, str, str, str, float]]
Scored = Sequence[tuple[int, str, list[int]]]
"""Round, split, and the clients whose local models are scored."""

# round, metric, on, mean, split, accuracy
ROWS: Rows = [
    (2, "gm", "global", "", "validation", 0.50),
    (2, "gm", "global", "", "test", 0.61),
    (2, "gm", "local", "train_size", "validation", 0.99),  # does not choose the GM's round: pooled validation does
    (2, "gm", "local", "train_size", "test", 0.62),
    (2, "pm", "local", "train_size", "validation", 0.70),
    (2, "pm", "local", "train_size", "test", 0.71),
    (2, "pm", "local", "equal", "test", 0.72),
    (4, "gm", "global", "", "validation", 0.60),
    (4, "gm", "global", "", "test", 0.63),
    (4, "gm", "local", "train_size", "validation", 0.10),
    (4, "gm", "local", "train_size", "test", 0.64),
    (4, "pm", "local", "train_size", "validation", 0.70),  # a tie: the later round is chosen
    (4, "pm", "local", "train_size", "test", 0.79),
    (4, "pm", "local", "equal", "test", 0.78),
    (6, "gm", "global", "", "validation", 0.40),
    (6, "gm", "global", "", "test", 0.90),
    (6, "gm", "local", "train_size", "validation", 0.10),
    (6, "gm", "local", "train_size", "test", 0.91),
    (6, "pm", "local", "train_size", "validation", 0.60),
    (6, "pm", "local", "train_size", "test", 0.75),
    (6, "pm", "local", "equal", "test", 0.74),
]


@pytest.fixture
def write(tmp_path: Path, cell: Callable[..., Settings]) -> Callable[..., Path]:
    """Write a run of one cell."""

    def write(rows: Rows, status: Status, local: Scored = (), loss: float = 9.0, **changes: object) -> Path:
        settings = cell(**changes)
        entry = {"id": CELL, "label": "FedAvg", "settings": settings.model_dump()}
        store.write_json(tmp_path / "run.json", {"grid": "g", "cells": [entry]})
        folder = tmp_path / CELL
        folder.mkdir()
        rounds = settings.rounds if status.state == "done" else status.rounds
        store.write_status(folder, replace(status, rounds=rounds, total=settings.rounds))
        store.write_json(folder / "settings.json", settings.model_dump())
        sizes = {"n_train": [3, 3], "n_test": [2, 2], "counts": [[1, 2], [2, 1]]}
        store.write_json(folder / "partition.json", {"hash": "", "summary": "", **sizes})
        tables = Tables(folder)
        tables.restart()
        (folder / "hits.csv").unlink()  # which samples they were is not kept
        names = ("metric", "on", "mean", "split", "value")
        for version, *values in rows:
            row = dict(zip(names, values, strict=True))
            tables.append(
                "metrics", version, [{**row, "quantity": "accuracy"}, {**row, "quantity": "loss", "value": loss}]
            )
        for version, split, clients in local:
            scored = {"metric": "lm", "split": split, "correct": 1, "samples": 2}
            tables.append("clients", version, [{**scored, "client": client} for client in clients])
        return tmp_path

    return write


def figures(run: Path) -> dict[tuple[str, str, str, str], tuple[int, float]]:
    rows = tidy(run).to_dict("records")
    return {(r["metric"], r["on"], r["mean"], r["selection"]): (r["round"], r["value"]) for r in rows}


def test_honest_figures_are_of_the_round_that_validation_chose(write: Write) -> None:
    run = write(ROWS, Status("done", derived=["pm"]))
    found = {key: figure for key, figure in figures(run).items() if key[3] in ("validation", "last")}
    assert found == {
        ("gm", "global", "", "validation"): (4, 0.63),
        ("gm", "global", "", "last"): (6, 0.90),
        ("gm", "local", "train_size", "validation"): (4, 0.64),
        ("gm", "local", "train_size", "last"): (6, 0.91),
        ("pm", "local", "train_size", "validation"): (4, 0.79),
        ("pm", "local", "train_size", "last"): (6, 0.75),
        ("pm", "local", "equal", "validation"): (4, 0.78),
        ("pm", "local", "equal", "last"): (6, 0.74),
    }
    table = tidy(run)
    assert set(table["derived"][table["metric"] == "pm"]) == {True}
    assert set(table["derived"][table["metric"] == "gm"]) == {False}
    assert set(table["label"]) == {"FedAvg"}
    assert set(table["dataset"]) == {"blobs"}


@pytest.mark.parametrize(
    ("protocol", "best"),
    [("paper", [("pm", 4, 0.79), ("pm", 4, 0.78), ("gm", 6, 0.90), ("gm", 6, 0.91)]), ("honest", [])],
)
def test_without_validation_data_paper_takes_the_best_test_figure_and_honest_the_last_one(
    write: Write, protocol: str, best: list[tuple[str, int, float]]
) -> None:
    found = figures(write([row for row in ROWS if row[4] == "test"], Status("done"), protocol=protocol))
    assert sorted((key[0], *figure) for key, figure in found.items() if key[3] == "best") == sorted(best)
    assert {key[3] for key in found} - {"best"} == {"last", "tail"}


@pytest.mark.parametrize(("values", "mean"), [((0.9, math.nan, 0.5), 0.7), ((math.nan, math.nan), math.nan)])
def test_the_mean_of_the_last_rounds_is_of_those_with_a_figure(
    write: Write, values: tuple[float, ...], mean: float
) -> None:
    """A score of one class alone may not be defined."""
    tests = [(round_, "pm", "local", "equal", "test", value) for round_, value in enumerate(values, 1)]
    run = write(tests, Status("done"))
    assert figures(run)["pm", "local", "equal", "tail"] == (len(values), pytest.approx(mean, nan_ok=True))


LOCAL: Rows = [
    (2, "lm", "local", "equal", "validation", 0.99),
    (2, "lm", "local", "train_size", "validation", 0.99),
    (4, "lm", "local", "equal", "test", 0.73),
    (4, "lm", "local", "train_size", "validation", 0.90),
    (6, "lm", "local", "equal", "test", 0.39),
    (6, "lm", "local", "train_size", "validation", 0.60),
    (8, "lm", "local", "equal", "test", 0.38),
    (8, "lm", "local", "train_size", "validation", 0.50),
]
SCORED: Scored = [
    (2, "validation", [7]),  # the client that is trained first has no test samples
    (4, "validation", [7]),
    (4, "test", [1]),
    (6, "validation", [3, 7]),
    (6, "test", [1, 3]),
    (8, "validation", [3, 7]),
    (8, "test", [1, 3]),
]


@pytest.mark.parametrize(
    ("protocol", "chosen"),
    [("honest", {"validation": (6, 0.39), "peak": (6, 0.39)}), ("paper", {"best": (6, 0.39)})],
)
def test_local_models_are_reported_of_a_round_in_which_as_many_are_scored_as_in_the_last(
    write: Write, protocol: str, chosen: dict[str, tuple[int, float]]
) -> None:
    """Round 2 has no test figure, and in round 4 only one client, which was trained first, is scored."""
    splits = ("test",) if protocol == "paper" else ("validation", "test")
    rows, scored = [row for row in LOCAL if row[4] in splits], [one for one in SCORED if one[1] in splits]
    found = figures(write(rows, Status("done"), scored, protocol=protocol))
    reported = {selection: figure for (*_, selection), figure in found.items()}
    assert reported == chosen | {"last": (8, 0.38), "tail": (8, pytest.approx((0.39 + 0.38) / 2))}


def test_a_round_without_a_test_figure_cannot_be_chosen(write: Write) -> None:
    rows: Rows = [(2, "pm", "local", "train_size", "validation", 0.9), *(row for row in ROWS if row[0] > 2)]
    assert figures(write(rows, Status("done")))["pm", "local", "equal", "validation"] == (4, 0.78)


@pytest.mark.parametrize("state", ["failed", "diverged", "interrupted", "waiting"])
def test_an_unfinished_cell_has_a_row_without_a_figure(write: Write, state: store.CellState) -> None:
    row = tidy(write(ROWS, Status(state))).to_dict("records")
    assert [(r["status"], r["metric"], pd.isna(r["value"])) for r in row] == [(state, "", True)]


@given(st.dictionaries(st.integers(1, 99), st.sampled_from([0.1, 0.5, 0.9]), min_size=1))
def test_the_latest_of_the_best_means_of_five(curve: dict[int, float]) -> None:
    rounds = sorted(curve)
    means = {r: round(sum(last := [curve[q] for q in rounds if q <= r][-5:]) / len(last), 9) for r in rounds}
    assert choose_round(dict(sorted(curve.items()))) == max(r for r in rounds if means[r] == max(means.values()))


def test_all_tables_of_a_run(write: Write) -> None:
    """All scores stand in one, and each row says which it is of; those who know of accuracy alone see no other."""
    view = load_run(write(ROWS, Status("done"), loss=0.5))
    whole = view.scores()
    assert list(dict.fromkeys(whole["score"])) == ["accuracy", "loss"]
    for score in ("accuracy", "loss"):
        part = whole[whole["score"] == score].reset_index(drop=True)
        pd.testing.assert_frame_equal(part, view.scores(score))
    pd.testing.assert_frame_equal(view.results, view.scores("accuracy"))
    assert set(whole[whole["score"] == "loss"]["value"]) == {0.5}
    assert len(view.metrics) == 2 * len(ROWS)
    assert list(view.metrics.columns) == [*CELL_COLUMNS, *store.COLUMNS["metrics"]]
    whose = {tuple(row) for row in view.metrics[list(CELL_COLUMNS)].itertuples(index=False)}
    assert whose == {("FedAvg", "blobs", "", 1.0, 0, CELL)}
    assert len(view.ledger) == 0
    assert list(view.ledger.columns) == [*CELL_COLUMNS, *store.COLUMNS["ledger"]]
    assert view.cells[0].name == "fedavg blobs alpha=1 seed=0"


def test_a_run_of_another_version(write: Write) -> None:
    run = write(ROWS, Status("done"))
    text = (run / "run.json").read_text(encoding="utf-8")
    (run / "run.json").write_text(
        text.replace('"settings": {', '"settings": {"from_the_future": 1, '), encoding="utf-8"
    )
    with pytest.raises(UserError, match="written by another version"):
        load_run(run)


@pytest.mark.parametrize("state", ["done", "failed"])
def test_the_report_that_a_run_names_can_be_pasted(
    write: Write,
    capsys: pytest.CaptureFixture[str],
    tmp_path_factory: pytest.TempPathFactory,
    state: store.CellState,
) -> None:
    """It is suggested only if a cell is done."""
    run = shutil.copytree(write(ROWS, Status(state)), tmp_path_factory.mktemp("with") / "a space")
    _finish(run, quiet=False)
    assert (f"bench report '{run}'  makes" in capsys.readouterr().err) == (state == "done")


@pytest.mark.parametrize(
    ("steps", "calls", "said"),
    [
        ("as planned", {"eager": 30}, ""),  # short cells end before anything is recorded, which is no fault
        ("as planned", {}, ""),
        ("as planned", {"eager": 25, "torchscript": 75}, ", 75% of its training calls sped up by torchscript"),
        ("fallen back", {"eager": 30}, ", fallen back"),
    ],
)
def test_status_says_what_was_sped_up_where_something_was(
    write: Write, capsys: pytest.CaptureFixture[str], steps: str, calls: dict[str, int], said: str
) -> None:
    run = write(ROWS, Status("done", backend="torchscript", steps=steps))
    store.write_json(run / CELL / "timing.json", {"seconds": 1.0, "steps": calls})
    status(run)
    line = capsys.readouterr().out.splitlines()[0]
    assert line.endswith(f": done, round 6/6{said}")


def test_cells_of_one_label_task_and_seed_are_never_averaged() -> None:
    """Two experiments that nothing names stand in rows of their own; seeds of one experiment have a mean."""
    row = {"dataset": "digits", "case": "", "alpha": 1.0, "status": "done", "protocol": "honest", "metric": "pm"}
    row |= {"on": "local", "mean": "", "selection": "last", "derived": False}
    row |= {"epsilon_client": np.nan, "epsilon_sample": np.nan}
    cells = [("a", "x", 0, 0.9), ("a", "y", 1, 0.8), ("b", "z", 0, 0.5), ("b", "w", 0, 0.3), ("b", "v", 1, 0.2)]
    figures = pd.DataFrame([{**row, "label": n, "cell": c, "seed": s, "value": v} for n, c, s, v in cells])
    ((_, table),) = summary(figures)
    column = table["digits α=1 PM"]
    assert column.to_dict() == {"a": "85.00 ± 7.07", "b z": "50.00", "b w": "30.00", "b v": "20.00"}


@pytest.mark.parametrize("columns", [10, 40, 200])
def test_a_narrow_terminal_cuts_no_number(
    write: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    print_summary(write(ROWS, Status("done", derived=["pm"])))
    said = capsys.readouterr().out
    assert "…" not in said
    assert "63.00" in said
    assert "[79.00]" in said  # derived; square as in reports, because round brackets hold notes there


def test_five_cases_of_thirty_methods_fit_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts, each with the methods' names; no number is broken over lines."""
    monkeypatch.setenv("COLUMNS", "80")
    heads = [f"digits case {case}, robust α=0.1 {model}" for case in range(5) for model in ("GM", "PM")]
    entries = {f"[b] method {k}": [f"[{10 + k}.{case:02d} ± 1.25]" for case in range(10)] for k in range(30)}
    print_table(pd.DataFrame.from_dict(entries, orient="index", columns=heads))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    for name, row in entries.items():
        shown = [line for line in lines if line.startswith(f"{name} ")]
        assert [text for line in shown for text in re.findall(r"\[[\d.]+ .*?\]", line)] == row


@pytest.mark.parametrize(
    ("case", "heading"), [("A", "A α=1 GM"), ("A, few", "A few α=1 GM"), ("", "A α=1 GM"), ("few", "A few α=1 GM")]
)
def test_a_heading_says_the_label_of_its_data_once(
    write: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    case: str, heading: str,
) -> None:  # fmt: skip
    """If a grid has several labelled data sets, the label is also part of the case; a task's name says it alike."""
    monkeypatch.setenv("COLUMNS", "200")
    options = {"path": "a.npz", "name": "A"}
    run = write(ROWS, Status("done"), dataset="npz", dataset_options=options, case=case, alpha=1.0)
    print_summary(run)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "GM" in line)
    assert line.split("  ")[0].strip() == heading or line.strip().startswith(f"{heading} ")
    assert task_name(load_run(run).cells[0].settings) == heading.replace("α", "alpha").removesuffix(" GM")


@pytest.mark.parametrize(
    ("loss", "derived", "lost"),
    [
        (0.99 * BOUND, ["gm"], False), (1.01 * BOUND, ["gm"], True), (math.inf, ["gm"], True), (math.nan, ["gm"], True),
        (math.inf, ["pm"], False), (math.inf, ["gm", "pm"], False), (math.inf, [], False),
    ],
)  # fmt: skip
def test_a_mean_of_models_that_is_worse_than_any_guess_is_no_number(
    loss: float, derived: list[str], lost: bool, write: Write
) -> None:
    """Only a mean of models: the derived models of the others, and a bound's, were trained."""
    found = figures(write(ROWS, Status("done", derived=derived), loss=loss))
    assert all(math.isnan(value) == lost for (metric, *_), (_, value) in found.items() if metric == "gm")
    assert not any(math.isnan(value) for (metric, *_), (_, value) in found.items() if metric == "pm")
    assert found["gm", "global", "", "validation"][0] == 4, "the round is chosen as always"


@pytest.mark.long
def test_one_lost_seed_makes_a_derived_figure_a_dash(arrays: Path, tmp_path: Path) -> None:
    """FedGC's clients lower the classes that they lack by 1e6. With seed 0 all have all, with seed 1 some lack one."""
    seen = {}
    for seeds in ([0], [0, 1]):
        view = load_run(make_run(tmp_path / str(seeds), arrays, ["fedgc"], rounds=1, seeds=seeds))
        loss = view.cells[-1].table("metrics").query("metric == 'gm' and split == 'test' and quantity == 'loss'")
        ((_, table),) = summary(tidy(view))
        report = load([view])
        entry, personal = dict(main_table(report, (GM, PM), "both", "Both").rows)["fedgc"]
        assert personal.value is not None
        seen[len(seeds)] = loss["value"].min() > 1e4, table.iloc[0, 0], entry.value, entry.note
    assert seen[2] == (True, "-", None, "–"), "what is stored stays, and the mean is not that of the lucky seed"
    assert seen[1][1:3] == (f"[{seen[1][2]:.2f}]", pytest.approx(float(seen[1][1].strip("[]")), abs=0.01))
