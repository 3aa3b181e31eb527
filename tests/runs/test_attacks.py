"""Attacks in runs: what is refused before training, the attack's success, and summaries, reports and checks."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bench as front_door
from bench.config.grid import load_grid
from bench.errors import UserError
from bench.federation.cell_data import load_all
from bench.results.results import CellView, load_run, tidy
from bench.results.summary import summary
from bench.runs.plan import plan, planned_remarks
from bench.runs.verify.files import disagreement
from reports.reading.load import BENIGN, load
from reports.tables import accuracy
from tests.runs.helpers import BEST, make_run

ATTACK: dict[str, Any] = {"name": "backdoor", "share": 0.25, "target": 1, "size": 3}


@pytest.fixture(scope="module")
def made(arrays: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two cells under a backdoor."""
    folder = tmp_path_factory.mktemp("made") / "run"
    settings: dict[str, Any] = {"rounds": 3, "alphas": [0.3], "attack": ATTACK, "metrics": ["macro_f1"]}
    return make_run(folder, arrays, ["fedavg", "ditto"], options=BEST, **settings)


def malicious(cell: CellView) -> list[int]:
    record: dict[str, Any] = json.loads((cell.folder / "partition.json").read_text(encoding="utf-8"))
    return list(record["malicious"])


def test_the_success_of_a_backdoor_is_what_a_user_would_compute(made: Path) -> None:
    """On benign clients' tests of other classes, with three bright pixels by three: how many are the target."""
    for cell in load_run(made).cells:
        dataset, partition, _ = load_all(cell.settings)
        (liar,) = malicious(cell)
        table = cell.table("evaluated")
        table = table[(table["split"] == "triggered") & (table["quantity"] == "accuracy")]
        hits, sizes = {}, {}
        for i in set(range(4)) - {liar}:
            at = partition.test[i][dataset.y[partition.test[i]] != 1]
            x = dataset.x[at].copy()
            x[..., -3:, -3:] = dataset.x.max()
            for metric, client in (("gm", None), ("pm", i)):
                with torch.no_grad():
                    taken = cell.model(client=client)(torch.from_numpy(x)).argmax(1).numpy() == 1
                hits[metric, i], sizes[i] = taken, len(partition.train[i])
                row = table[(table["metric"] == metric) & (table["client"] == i)]
                if metric == "pm":
                    assert row["value"].tolist() == [pytest.approx(taken.mean())] if len(at) else not len(row)
        pooled = np.concatenate([hits["gm", i] for i in sorted(sizes)])
        row = table[(table["metric"] == "gm") & (table["on"] == "global")]
        assert row["value"].tolist() == [pytest.approx(pooled.mean())]
        scored = [i for i in sizes if len(hits["pm", i])]
        mean = sum(sizes[i] * hits["pm", i].mean() for i in scored) / sum(sizes[i] for i in scored)
        for of in ("train_size", "benign"):
            row = table[(table["metric"] == "pm") & (table["mean"] == of)]
            assert row["value"].tolist() == [pytest.approx(mean)]
        assert liar not in set(table["client"])


def test_summary_report_and_checks_know_benign_clients(made: Path) -> None:
    view = load_run(made)
    assert not any(disagreement(cell) for cell in view.cells)
    ((_, table),) = summary(tidy(view))
    assert [column.partition(" \N{GREEK SMALL LETTER ALPHA}=0.3 ")[2] for column in table] == [
        "GM", "PM", "GM benign", "PM benign",
    ]  # fmt: skip
    benign = accuracy.main_table(load([view]), BENIGN, "benign", "Benign clients under attack")
    cell = view.cells[1]
    figures = tidy(view).query("metric == 'pm' and mean == 'benign' and selection == 'validation'")
    (chosen,) = figures[figures["cell"] == cell.id].itertuples()
    rows = cell.table("clients").query(f"metric == 'pm' and split == 'test' and round == {chosen.round}")
    rows = rows[~rows["client"].isin(malicious(cell))]
    weights = np.array(json.loads((cell.folder / "partition.json").read_text())["n_train"])
    shares = weights[rows["client"]] / weights[rows["client"]].sum()
    assert chosen.value == pytest.approx(float(shares @ (rows["correct"] / rows["samples"])))
    assert dict(benign.rows)["ditto"][1].value == pytest.approx(100 * chosen.value)


@pytest.mark.long
def test_the_report_has_tables_of_benign_clients_and_of_the_success(made: Path, tmp_path: Path) -> None:
    page = front_door.report(shutil.copytree(made, tmp_path / "run")).read_text(encoding="utf-8")
    assert "Benign clients under attack" in page
    assert "PM triggered" in page


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"channel": ["top_k"]}, "fedproto .*channel: method 'fedproto' sends no model value, only 'means', 'count'"),
        (
            {"attack": "noise"},
            "fedproto .*attack 'noise': method 'fedproto' sends no model value.*take an attack by data",
        ),
        ({"attack": {"name": "noise", "share": 0.1}}, "share = 0.1 of 4 clients that train is 0"),
        ({"attack": {"name": "backdoor", "target": 3}}, "target = 3 is no class of"),
        ({"methods": ["fedbuff"], "attack": "alie"}, "attack 'alie' needs the updates of a round's clients"),
        ({"methods": ["centralized"], "attack": "ipm"}, "attack 'ipm': the method 'centralized' sends no messages"),
        pytest.param(  # pictures of 6 x 6, of which one pixel is left
            {"methods": ["fedavg"], "model": "resnet18", "batch_size": 1},
            "batch_size: 1: BatchNorm in model 'resnet18' has no variance of a single sample",
            marks=pytest.mark.long,
        ),
    ],
)
def test_what_makes_no_sense_is_refused_before_training(
    settings: dict[str, Any], problem: str, arrays: Path, tmp_path: Path
) -> None:
    grid = {
        "datasets": [{"name": "npz", "path": str(arrays)}], "methods": ["fedproto"], "alphas": [1], "clients": 4,
        "model": "mlp", "rounds": 1, **settings,
    }  # fmt: skip
    with pytest.raises(UserError, match=problem):
        front_door.run(grid, out=tmp_path / "run", tracking=False, quiet=True)
    assert not list(tmp_path.glob("run/*/status.json"))


@pytest.mark.parametrize(
    ("settings", "notes"),
    [
        ({"server": "krum"}, ["krum tolerates f = 2 malicious clients in the smallest round, of n = 10"]),
        ({"server": "median", "attack": "honest"}, ["median tolerates f = 4 malicious clients .*, of n = 10"]),
        ({"server": "bulyan"}, ["bulyan guarantees nothing .* f = 2 .* of n = 10, and needs n >= 4f \\+ 3 = 11$"]),
        ({"server": "krum", "participation": 0.4}, ["expects f = 1 malicious clients of n = 4, and needs .* = 5$"]),
        (
            {"server": {"name": "trimmed_mean", "share": 0.1}, "attack": {"name": "sign_flip", "share": 0.3}},
            ["tolerates f = 1 .*, of n = 10; attack sign_flip may have 3 malicious clients there$"],
        ),
        (
            {"server": "median", "participation": 0.5, "attack": {"name": "label_flip", "share": 0.3}},
            ["tolerates f = 2 .*, of n = 5; attack label_flip may have 3 malicious clients there$"],
        ),
        ({"server": "median", "new_clients": 3}, ["tolerates f = 3 malicious clients .*, of n = 7$"]),
        ({"server": "median", "clock": {"dropout": 0.1}}, ["tolerates f = 0 malicious clients .*, of n = 1$"]),
        (
            {"server": "median", "selection": "poisson", "participation": 0.5},
            ["tolerates f = 0 malicious clients .*, of n = 1$"],
        ),
        ({"server": "norm_clip", "attack": "sign_flip"}, []),
        ({"attack": "sign_flip"}, []),
    ],
)
def test_what_a_server_tolerates_is_said_before_training(settings: dict[str, Any], notes: list[str]) -> None:
    grid = {"methods": ["fedavg"], "datasets": ["digits"], "alphas": [100], "clients": 10, "model": "mlp", **settings}
    (cell,) = plan(load_grid(grid).cells, Path("data"), download=False)
    found = [note for note in planned_remarks([cell]) if note.startswith("server ")]
    assert len(found) == len(notes)
    for note, expected in zip(found, notes, strict=True):
        assert re.search(expected, note), note


def test_a_test_with_a_trigger_needs_an_attack_that_has_one(arrays: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", arrays, ["fedavg"], options=BEST, rounds=1)
    with pytest.raises(UserError, match="triggered needs a cell with an attack that has a trigger"):
        front_door.evaluate(run, tests=["triggered"], quiet=True)
