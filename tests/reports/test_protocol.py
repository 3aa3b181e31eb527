"""Protocols: every setting has a source, and only cells with these settings stand beside a printed number."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from bench.config.grid import load_grid
from bench.errors import UserError
from bench.settings import Settings
from reports.published.comparison import _position, agrees, comparison, published_table
from reports.published.protocol import FOLDER, STANDINGS, frozen_cells, protocol, protocols
from reports.reading.load import load
from tests.conftest import ROOT
from tests.reports.conftest import change_run, change_status

AXES = {"name", "published", "methods", "cases", "set"}
NAMES = list(protocols())
TABLES = [table for name in NAMES for table in protocol(name).grids]


def given(document: object) -> set[str]:
    """The settings that a grid file gives, wherever in it; axes by their plural."""
    if isinstance(document, list):
        return set().union(*map(given, document))
    if not isinstance(document, dict):
        return set()
    inner = set().union(*(given(value) for key, value in document.items() if key in (*AXES, "datasets")))
    return {key.replace("alphas", "alpha") for key in document.keys() - AXES} | inner


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_of_a_protocol_has_one_source(name: str) -> None:
    """What a grid gives is known or assumed in every scenario, once; a point is about something that the grids give."""
    checked = protocol(name)
    for table, grid in ((table, load_grid(name)) for table, name in checked.grids.items()):
        assert grid.published == table
        document = yaml.safe_load(grid.source)
        wanted = given(document)
        for cell in {str((c.dataset, c.case, c.alpha)): c for c in grid.cells}.values():
            parts = [checked.standings(cell, local=local) for local in (False, True)]
            names = [n for part in parts for standing in ("known", "assumed") for n in part[standing]]
            assert len(names) == len(set(names))
            own = set(cell.dataset_options)
            elsewhere = {option for other in grid.cells for option in other.dataset_options} - own
            assert wanted - elsewhere <= set(names)
            assert not {n for n in names if "." in n} - {f"{c.method}.{key}" for c in grid.cells for key in c.hp}, (
                "a hyperparameter that no method has"
            )


@pytest.mark.parametrize("table", TABLES)
def test_every_printed_number_has_the_cells_of_its_grid(table: str) -> None:
    """As many trials as it is a mean of, which differ in nothing but the seed."""
    printed = published_table(table)
    cells = frozen_cells(table)
    for row in printed.rows:
        position = {"method": row.method, **_position(printed, row)}
        mine = [cell for cell in cells if all(agrees(cell, axis, value) for axis, value in position.items())]
        assert [cell["seed"] for cell in mine] == list(range(printed.runs)), row
        assert len({json.dumps({**cell, "seed": 0}, default=str) for cell in mine}) == 1, row


def run_of(folder: Path, store_writer, methods: tuple[str, ...] = ("fedavg", "ditto"), **changes: object) -> Path:
    """A run that has PFLlib's cells of CIFAR-100 at 0.1, but for the changes, and made-up accuracies."""
    frozen = [cell for cell in load_grid("pfllib_table1").cells if (cell.dataset, cell.alpha) == ("cifar100", 0.1)]
    return run_with(folder, store_writer, frozen, "pfllib_1", methods, **changes)


def run_with(
    folder: Path, store_writer, frozen: list[Settings], published: str, methods: tuple[str, ...], **changes: object
) -> Path:
    """A run that has the protocol's cells of one scenario, but for the changes, and made-up accuracies."""
    cells = {(cell.method, cell.seed): cell for cell in frozen}
    seeds = len({cell.seed for cell in frozen})
    run = store_writer(folder, seeds=seeds, alphas=(0.1,), methods=methods, published=published)

    def frozen_settings(cell: dict[str, Any]) -> dict[str, Any]:
        settings = cells[cell["settings"]["method"], cell["settings"]["seed"]].model_dump(mode="json") | changes
        change_status(run / cell["id"], rounds=settings["rounds"], total=settings["rounds"])
        return settings

    return change_run(run, frozen_settings)


def entries_of(run: Path, label: str) -> dict[str, object]:
    table = comparison(load([run]), published_table("pfllib_1"))
    group = "partition=dirichlet_pfllib, dataset=cifar100, model=cnn, PM"
    columns = {column.name: k for k, column in enumerate(table.columns) if column.group == group}
    return {name: dict(table.rows)[label][k] for name, k in columns.items()}


@pytest.mark.long
def test_cells_with_the_protocol_s_settings_stand_beside_its_number(store_writer, tmp_path: Path) -> None:
    """Its name and its scores may differ."""
    run = run_of(tmp_path / "run", store_writer, case="mine", metrics=["auroc"])
    beside = entries_of(run, "Ditto")
    assert (beside["paper"].value, beside["paper"].spread) == (52.87, 0.64)
    assert beside["ours"].n == 3
    assert beside["Δ"].value == pytest.approx(beside["ours"].value - 52.87)
    far = abs(beside["Δ"].value) > beside["ours"].spread + 0.64
    assert beside["within"].note == ("no" if far else "yes")
    assert entries_of(run, "FedPer")["ours"].note == "missing"


@pytest.mark.parametrize(
    ("row", "changes", "text"),
    [
        ("FedAvg", {"rounds": 5}, "rounds 5 (protocol: 2000)"),
        ("FedAvg", {"protocol": "honest"}, "protocol honest (protocol: paper)"),
        ("FedAvg", {"partition_seed": 0, "lr": 0.1}, "partition_seed 0 (protocol: 1), lr 0.1 (protocol: 0.005)"),
        ("Ditto", {"hp": {"lam": 0.5, "personal_epochs": None, "personal_lr": None}}, "lam 0.5 (protocol: 1.0)"),
        (
            "FedAvg",
            {"lr": 0.1, "epochs": 2, "momentum": 0.9, "precision": "bf16", "eval_every": 5},
            "precision bf16 (protocol: fp32), epochs 2 (protocol: 1), lr 0.1 (protocol: 0.005) and 2 more",
        ),
    ],
)
def test_another_setting_is_named_in_place_of_a_number(
    store_writer, tmp_path: Path, row: str, changes: dict[str, Any], text: str
) -> None:
    beside = entries_of(run_of(tmp_path / "run", store_writer, (row.lower(),), **changes), row)
    assert beside["paper"].value == {"FedAvg": 31.89, "Ditto": 52.87}[row]
    assert (beside["ours"].value, beside["ours"].note) == (None, f"not comparable: {text}")
    assert beside["Δ"].note == beside["within"].note == "–"


@pytest.mark.parametrize("classes", [2, 5])
def test_the_end_of_a_curve_stands_beside_flower_s(store_writer, tmp_path: Path, classes: int) -> None:
    """Of the scenario with these classes alone, and the mean of its last ten rounds."""
    grid = load_grid("flower_fedrep")
    frozen = [c for c in grid.cells if c.dataset == "cifar10" and c.partition_options["k"] == classes]
    run = run_with(tmp_path / "run", store_writer, frozen, "flower_fedrep", ("fedavg",))
    table = comparison(load([run]), published_table("flower_fedrep"))
    beside = dict(table.rows)["FedAvg"]
    scenarios = (("cifar10", 2), ("cifar10", 5), ("cifar100", 5), ("cifar100", 20))
    groups = [f"dataset={name}, partition_options.k={k}, PM_last_10" for name, k in scenarios]
    assert [column.group for column in table.columns[::4]] == groups
    at = 4 * (0 if classes == 2 else 1)
    assert [beside[k].value for k in range(0, 16, 4)] == [37.6, 50.9, 9.0, 10.7]
    assert [beside[k + 1].note for k in range(0, 16, 4)] == ["(n=1)" if k == at else "missing" for k in range(0, 16, 4)]
    metrics = load([run]).cells[0].view.table("metrics")
    own = metrics[(metrics["metric"] == "pm") & (metrics["on"] == "local") & (metrics["mean"] == "train_size")]
    curve = own[(own["split"] == "test") & (own["quantity"] == "accuracy")].sort_values("round")["value"]
    assert len(curve) > 10
    assert beside[at + 1].value == pytest.approx(100 * curve.iloc[-10:].mean())
    assert beside[at + 2].value == pytest.approx(beside[at + 1].value - beside[at].value)
    assert beside[at + 3].note == "–"


def test_the_page_has_pfllib_s_own_numbers() -> None:
    """Mean and standard deviation over five seeds of the best tested round, from the curves that its code computed."""
    curves = pd.read_csv(ROOT / "docs" / "protocols" / "pfllib.csv", comment="#")
    page = (ROOT / "docs" / "lab-notes.md").read_text(encoding="utf-8")
    for method, runs in curves[curves["round"] > 0].groupby("method"):
        best = runs.groupby("seed")["accuracy"].max()
        assert len(best) == 5
        assert f"| `{method}` | {best.mean():.2f} ± {best.std():.2f} |" in page


def test_flower_s_numbers_are_the_ends_of_its_curves() -> None:
    """Means over the last ten rounds, and the standard deviations that the table's note names."""
    read = pd.read_csv(ROOT / "docs" / "protocols" / "flower_fedrep.csv", comment="#")
    table = published_table("flower_fedrep")
    spreads = []
    for row in table.rows:
        of_row = (read["dataset"] == row.axes["dataset"]) & (read["classes"] == row.axes["partition_options.k"])
        ends = read[of_row & (read["method"] == row.method)]
        assert sorted(ends["round"]) == list(range(91, 101))
        assert row.mean == round(ends["accuracy"].mean(), 1)
        spreads.append(round(ends["accuracy"].std(), 1))
    assert f"{spreads[0]}, {spreads[1]}, {spreads[2]} and {spreads[3]} points" in table.notes[1]
    assert f"{spreads[4]}, {spreads[5]}, {spreads[6]} and {spreads[7]}" in table.notes[1]


@pytest.mark.parametrize("name", NAMES)
def test_the_short_form_stands_beside_no_number(name: str) -> None:
    checked = protocol(name)
    short = load_grid(checked.short.grid, checked.short.set)
    assert short.published is None
    assert short.name.endswith("_short")
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(NAMES)
    assert set(STANDINGS) == {point.standing for point in checked.points}
    with pytest.raises(UserError, match=f"Did you mean '{name}'"):
        protocol(f"{name}x")
