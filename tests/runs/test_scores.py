"""A cell's further scores: tables, resumption, choice of the round, finished cells, verification, packing."""

import csv
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import bench as front_door
from bench.errors import UserError
from bench.results.figures import reported_figures
from bench.results.pack import pack, unpack
from bench.results.reported_round import choose_round
from bench.results.results import load_run
from bench.runs.cell import run_cell
from bench.runs.cell_options import Options
from bench.runs.plan import plan
from bench.runs.tracking import curve_points, reported_points
from bench.runs.verify.files import disagreement, read_rows
from bench.runs.verify.recomputed import compare
from tests.runs.conftest import Bench, Cell
from tests.runs.forger import Row, change_entries, change_rows, write_rows
from tests.runs.helpers import BEST, EVERY_ROUND, finished, make_run, stop_after, view


@pytest.mark.long
@pytest.mark.parametrize(("before", "after"), [((), ("auroc",)), (("auroc",), ()), (("ece",), ("auroc", "ece"))])
def test_a_half_done_cell_goes_on_with_other_metrics(
    cell: Cell, tmp_path: Path, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    """It keeps what it has, and says which rounds lack a score; the tables that all cells have do not change."""
    finished(cell(), tmp_path / "whole")
    assert run_cell(cell(metrics=before), tmp_path / "parts", EVERY_ROUND, stop=stop_after(3)).state == "interrupted"
    done = finished(cell(metrics=after), tmp_path / "parts")
    table = done.table("scores")
    rounds = {name: sorted(set(table[table["quantity"] == name]["round"])) for name in {*before, *after}}
    everything = {"before": [1, 2, 3], "after": [4, 5, 6]}
    expected = {
        name: everything["before"] * (name in before) + everything["after"] * (name in after) for name in rounds
    }
    assert rounds == expected
    assert any("rounds 1 to 3 have no auroc" in text for text in done.status.warnings) == ("auroc" not in before)
    same = ("metrics.csv", "clients.csv", "hits.csv", "ledger.csv")
    assert all((tmp_path / "parts" / n).read_bytes() == (tmp_path / "whole" / n).read_bytes() for n in same)


@pytest.mark.long
def test_any_score_chooses_the_reported_round_on_validation(cell: Cell, tmp_path: Path) -> None:
    """And the models that are kept are of that round."""
    common = {"method": "ditto", "lr": 1.5, "alpha": 0.2, "rounds": 8, "seed": 2, "metrics": ["auroc", "nll"]}
    finished(cell(**common, select_by="nll"), tmp_path, BEST)
    rounds = {}
    for name, sign in (("accuracy", 1), ("auroc", 1), ("nll", -1), ("loss", -1)):
        done = view(cell(**common, select_by=name), tmp_path)
        table = pd.concat([done.table("metrics"), done.table("scores")])
        rows = table[(table["quantity"] == name) & (table["split"] == "validation") & (table["metric"] == "pm")]
        of_clients = rows[rows["mean"] == "train_size"]
        curve = dict(zip(of_clients["round"].tolist(), (sign * of_clients["value"]).tolist(), strict=True))
        figures = [figure for figure in reported_figures(done) if figure["metric"] == "pm"]
        assert {figure["round"] for figure in figures} == {choose_round(curve)}
        rounds[name] = choose_round(curve)
        tests = table[(table["round"] == rounds[name]) & (table["split"] == "test") & (table["metric"] == "pm")]
        for other in ("accuracy", "auroc"):
            shown = {f["mean"]: f["value"] for f in reported_figures(done, other) if f["metric"] == "pm"}
            assert shown == dict(tests[tests["quantity"] == other][["mean", "value"]].itertuples(index=False))
    assert len({*rounds.values()}) > 1, "the scores should not all choose the same round"
    assert view(cell(**common, select_by="nll"), tmp_path).model(client=0).round == rounds["nll"]


@pytest.fixture
def scored_run(tmp_path: Path, arrays: Path) -> Path:
    settings = {"metrics": ["auroc", "ece"], "rounds": 2, "alphas": [0.2]}
    return make_run(tmp_path / "run", arrays, ["fedavg", "ditto"], options=Options(device="cpu"), **settings)


def test_results_have_the_scores_also_of_a_packed_run(scored_run: Path, tmp_path: Path, bench_here: Bench) -> None:
    run = load_run(scored_run)
    assert set(run.metrics["quantity"]) == {"accuracy", "loss", "auroc", "ece"}
    assert list(run.clients.columns[-2:]) == ["auroc", "ece"]
    assert len(run.clients) == sum(len(cell.table("clients")) for cell in run.cells)
    client = run.clients.iloc[-1]
    table = run.cells[1].table("client_scores")
    of_client = (table["client"] == client["client"]) & (table["metric"] == client["metric"])
    of_client &= (table["split"] == client["split"]) & (table["round"] == client["round"])
    assert client["ece"] == table[of_client & (table["quantity"] == "ece")]["value"].item()
    accuracies, areas = run.results, run.scores("auroc")
    keys = ["label", "metric", "on", "mean", "selection", "round"]
    assert areas[keys].to_dict("records") == accuracies[keys].to_dict("records")
    with pytest.raises(UserError, match=r"no cell has the metric 'auroca'\. Did you mean 'auroc'"):
        run.scores("auroca")
    text = bench_here("results", scored_run, "--metric", "auroc").stdout
    assert "auroc, protocol honest" in text
    assert "%" not in text
    pack(scored_run, tmp_path / "run.tar.xz")
    assert unpack(tmp_path / "run.tar.xz", tmp_path / "again").scores("auroc").equals(areas)


@pytest.mark.long
def test_finished_cells_that_lack_a_score_are_named(scored_run: Path, arrays: Path, bench_here: Bench) -> None:
    """The second run of a grid with other metrics does nothing again, and fails nowhere."""
    change_entries(scored_run, lambda entry: entry["settings"].update(metrics=["auroc", "brier"], select_by="brier"))
    assert [cell.status.state for cell in load_run(scored_run).cells] == ["done", "done"]
    out = bench_here("status", scored_run).stdout
    assert "2 finished cells ran without brier, which the grid asks for: `bench evaluate` computes it" in out
    assert "2 finished cells lack the validation score of `select_by`: they report the last round" in out
    assert set(load_run(scored_run).results["selection"]) == {"last", "tail"}
    assert "accuracy (%), protocol honest, round: last" in bench_here("results", scored_run).stdout
    assert "ran without brier" in bench_here("results", scored_run, "--metric", "auroc").stdout
    assert bench_here("verify", scored_run, "--cells", "2").stdout.count("the same bytes") == 2


def test_verify_recomputes_the_scores(scored_run: Path, tmp_path: Path) -> None:
    """What was edited is seen: in the means or the clients' values alone, and in all together."""
    cells = load_run(scored_run).cells
    shutil.copytree(cells[1].folder, tmp_path / "again")
    assert disagreement(cells[1]) is None
    assert compare(cells[1], tmp_path / "again").text == "the same bytes"

    def raise_value(row: Row) -> None:
        row["value"] = repr(float(row["value"]) * 1.01)

    change_rows(cells[1].folder, "scores", raise_value)
    assert "by the clients' values" in str(disagreement(cells[1]))
    change_rows(cells[1].folder, "client_scores", raise_value)
    assert disagreement(cells[1]) is None
    assert compare(cells[1], tmp_path / "again").text.startswith("other numbers on the same path: scores.csv, line 2")
    write_rows(cells[1].folder, "client_scores", read_rows(cells[1].folder, "client_scores")[1:])
    assert "not the clients of clients.csv" in str(disagreement(cells[1]))


def test_mlflow_gets_the_scores_that_are_not_missing(tmp_path: Path, arrays: Path) -> None:
    settings = {"metrics": ["auroc"], "rounds": 2, "alphas": [0.05]}
    (cell,) = load_run(make_run(tmp_path / "run", arrays, ["ditto"], **settings)).cells
    table = cell.table("scores").query("split == 'test' and metric == 'pm' and mean == 'equal'")
    points = [(p.round, p.value) for p in curve_points(cell) if p.name == "pm/local/equal/test/auroc"]
    assert points == list(table[["round", "value"]].dropna().itertuples(index=False, name=None))
    reported = {p.name: p.value for p in reported_points(cell)}
    shown = [f["value"] for f in reported_figures(cell, "auroc") if (f["metric"], f["mean"]) == ("pm", "equal")]
    assert [reported["reported/pm/local/equal/auroc"]] == shown
    assert "reported/pm/local/equal" in reported


def test_one_cell_is_not_scored_in_two_ways(cell: Cell) -> None:
    with pytest.raises(UserError, match=r"has this cell twice with different `metrics`.*at the top of the grid"):
        plan([cell(label="a"), cell(label="b", metrics=["ece"])], Path("data"), download=False)


OWN = '''
import bench

@bench.metric("test_top2")
def top2(labels, logits):
    """Share of samples whose label is among the two largest."""
    return (logits.argsort(1)[:, -2:] == labels[:, None]).any(1).mean()
'''


@pytest.mark.long
def test_a_plugins_metric_runs_in_workers_and_is_verified_with_it(
    bench: Bench, grid: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    file = grid(methods=["fedavg", "local"], metrics=["test_top2"], rounds=2, plugins=["own.py"])
    bench("run", "--grid", file, "--out", "run", "--quiet")
    with (load_run(tmp_path / "run").cells[0].folder / "scores.csv").open() as rows:
        values = [float(row["value"]) for row in csv.DictReader(rows)]
    assert all(0.6 < value <= 1 for value in values)  # two of three classes
    known = bench("verify", "run", "--plugin", "own.py").stdout
    assert known.count("the same bytes") == 2
    assert "not checked" not in known
    for option in ([], ["--blind"]):
        assert bench("verify", "run", *option).stdout.count("the same bytes; not checked: test_top2") == 2
    report = bench("report", "run").stdout.strip()
    assert "test_top2" in Path(tmp_path, report).read_text(encoding="utf-8")
    refused = bench("run", "--grid", file, "--out", "other", "--set", "metrics=[test_top3]", code=2).stderr
    assert "unknown metric 'test_top3'. Did you mean 'test_top2'?" in refused


def test_what_cannot_be_is_refused(cell: Cell) -> None:
    def refused(**changes: Any) -> str:
        with pytest.raises((UserError, ValueError)) as error:
            front_door.Settings(**{**cell().model_dump(), **changes})
        return str(error.value)

    assert "unknown metric 'aurok'. Did you mean 'auroc'?" in refused(metrics=["aurok"])
    assert "select_by: ece needs that score: add it to `metrics`" in refused(select_by="ece")
    assert "protocol paper reports the best test accuracy" in refused(
        select_by="ece", metrics=["ece"], protocol="paper"
    )
    assert "'ece' is listed twice" in refused(metrics=["ece", "ece"])
    front_door.Settings(**{**cell().model_dump(), "select_by": "loss"})


@pytest.mark.long
def test_callbacks_see_the_scores(cell: Cell, tmp_path: Path) -> None:
    seen: list[set[str]] = []

    class Seen(front_door.Callback):
        def after_evaluation(self, at: front_door.Moment) -> None:
            seen.append(set(at.rows["quantity"]))

    front_door.run(cell(rounds=2, metrics=["ece"]), out=tmp_path / "run", callbacks=[Seen()], jobs=1, quiet=True)
    assert seen == [{"accuracy", "loss", "ece"}] * 2
