"""Cells whose data change, as `bench run` leaves them: tables, the reported round, models, checks."""

from pathlib import Path

import pytest

from bench.results.figures import reported_figures
from bench.results.results import load_run
from bench.runs.cell_options import Options
from bench.runs.verify.files import disagreement
from bench.store.store import COLUMNS
from tests.runs.conftest import Bench, Cell, Grid
from tests.runs.helpers import BEST, TIMELINE, finished, view


def test_the_files_of_a_cell_agree_and_an_edited_one_does_not(cell: Cell, tmp_path: Path) -> None:
    settings = cell(method="ditto", timeline=TIMELINE, metrics=("balanced_accuracy",))
    done = finished(settings, tmp_path, Options(device="cpu"))
    assert disagreement(done) is None
    changes = done.table("changes")
    assert list(changes.columns) == list(COLUMNS["changes"])
    assert set(zip(changes["round"], changes["stage"], strict=True)) == {
        (2, 0), (2, 1), (4, 0), (4, 1), (4, 2), (6, 0), (6, 1), (6, 2),
    }  # fmt: skip
    clients = done.table("clients")
    for number, there in ((4, {0, 1, 2}), (5, {1, 2, 3})):
        of_round = clients[(clients["round"] == number) & (clients["metric"] == "pm") & (clients["split"] == "test")]
        assert set(of_round["client"]) == there
        hits = done.hits("pm", "local", number)
        right = hits.groupby("client")["correct"].sum().to_dict()
        assert right == dict(zip(of_round["client"], of_round["correct"], strict=True))
    text = (tmp_path / "clients.csv").read_text().splitlines()
    line = next(i for i, row in enumerate(text) if row.startswith("5,pm,1,test,"))
    text[line] = text[line].replace(",test,", ",test,1")
    (tmp_path / "clients.csv").write_text("\n".join(text) + "\n")
    assert disagreement(view(settings, tmp_path)) is not None


def test_the_reported_round_knows_the_last_data(cell: Cell, tmp_path: Path) -> None:
    """Before the change every label is right; the best validation round of all would be one of those."""
    timeline = [{"round": 4, "shifts": [{"name": "concept_shift", "clusters": 2}]}]
    settings = cell(method="fedavg", timeline=timeline, rounds=6)
    done = finished(settings, tmp_path, BEST)
    metrics = done.table("metrics")
    pooled = metrics[(metrics["metric"] == "gm") & (metrics["on"] == "global") & (metrics["split"] == "validation")]
    by_round = pooled[pooled["quantity"] == "accuracy"].set_index("round")["value"]
    assert by_round.idxmax() <= 4
    assert {figure["round"] for figure in reported_figures(done)} <= {5, 6}
    assert done.model(1).round in (5, 6)


def test_models_of_clients_that_arrived_are_kept_and_tested(cell: Cell, tmp_path: Path) -> None:
    settings = cell(method="ditto", timeline=[{"round": 2, "arrive": [3, 3]}], rounds=3, tests=("others",))
    done = finished(settings, tmp_path, BEST)
    assert done.model(3).round == 3
    rows = done.table("evaluated")
    assert {0, 1, 2, 3} <= set(rows[rows["split"] == "others"]["client"])


@pytest.mark.long
def test_a_run_is_verified_also_blind(grid: Grid, bench: Bench, tmp_path: Path) -> None:
    """Computed again in another process, whose worker has no label of a test of any stage."""
    file = grid(methods=["ditto", "ifca"], timeline=TIMELINE, metrics=["macro_f1"])
    bench("run", "--grid", file, "--out", tmp_path / "run", "--device", "cpu")
    for options in ((), ("--blind",)):
        out = bench("verify", tmp_path / "run", "--cells", 2, *options).stdout
        assert "2 of 2" in out or "same bytes" in out, out
    assert len(load_run(tmp_path / "run").cells[0].table("changes")) > 0
