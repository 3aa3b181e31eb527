"""Pages beside the report: one for each client, and that of the data before any training."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import bench
from bench.config.checked import CheckedSettings
from bench.results.data_description import describe
from reports.page.client_pages import write_client_pages
from reports.page.data_page import data_sections, write_data_page
from reports.reading.load import GM, PM, load
from reports.tables.fairness import client_accuracies
from reports.tables.table import Table
from tests.reports.conftest import change_run
from tests.runs.conftest import arrays  # noqa: F401  (a fixture)
from tests.runs.helpers import make_run


@pytest.mark.long
def test_a_client_sees_its_data_its_scores_and_its_gain(arrays: Path, tmp_path: Path) -> None:  # noqa: F811
    """Two seeds on one partition: each client has one page, with means over both."""
    settings = {"rounds": 2, "alphas": [0.3], "seeds": [0, 1], "partition_seed": 5}
    run = make_run(tmp_path / "run", arrays, ["fedavg", "local", "ditto"], **settings)
    pages = sorted((bench.report(run, clients=True).parent / "clients").glob("*/*/index.html"))
    assert [path.parent.name for path in pages] == [f"client-{i}" for i in range(4)]
    store = load([run])
    keys = ["row", "client", "seed"]
    personal, generic = (client_accuracies(store, of).set_index(keys)["accuracy"].sort_index() for of in (PM, GM))
    record = store.cells[0].json("partition")
    for client, path in enumerate(pages):
        scores = pd.read_csv(path.parent / "tables" / "scores.csv").set_index(["row", "column"])
        for row in ("fedavg", "ditto"):
            own, alone = personal[row, client], personal["local", client]
            shown = scores.loc[(row, "personalized model")]
            assert (shown["value"], shown["spread"]) == pytest.approx((own.mean(), own.std()), abs=6e-3)
            assert scores.loc[(row, "gain over alone"), "value"] == pytest.approx((own - alone).mean(), abs=6e-3)
            assert scores.loc[(row, "generic model"), "value"] == pytest.approx(generic[row, client].mean(), abs=6e-3)
        data = pd.read_csv(path.parent / "tables" / "data.csv")
        assert data[data["column"] == "this client"]["value"].tolist() == record["counts"][client]
        assert f"trains on {record['n_train'][client]} samples" in path.read_text(encoding="utf-8")


def test_a_seed_that_diverged_counts_at_chance_level(store_writer: Callable[..., Path], tmp_path: Path) -> None:
    """As in all tables: else a client's mean is that of the seeds that went well."""
    states = {("ditto", 1.0, 1): "diverged"}
    run = store_writer(tmp_path / "run", seeds=2, alphas=(1.0,), methods=("ditto", "local"), states=states)
    store = load([change_run(run, lambda _: {"partition_seed": 0})])
    accuracies = client_accuracies(store)
    (first,) = accuracies[(accuracies["row"] == "ditto") & (accuracies["client"] == 0)]["accuracy"]
    page = next(path for path in write_client_pages(store, tmp_path / "report") if path.parent.name == "client-0")
    scores = pd.read_csv(page.parent / "tables" / "scores.csv").set_index(["row", "column"])
    assert scores.loc[("ditto", "personalized model"), "value"] == pytest.approx((first + 10) / 2, abs=6e-3)


ROWS = {"<b>A</b>": (12, 28), "B & C": (60, 60), "empty": (4, 0)}
"""Rows of the labels `ill` and `well` at each site, whose names are no HTML."""


@pytest.fixture
def described(tmp_path: Path) -> dict[str, Any]:
    parts = []
    for site, (ill, well) in ROWS.items():
        labels, doses = ["ill"] * ill + ["well"] * well, [1.5, None] * ((ill + well) // 2)
        parts.append(pd.DataFrame({"site": site, "dose": doses, "outcome": labels}))
    pd.concat(parts).to_csv(tmp_path / "t.csv", index=False)
    options = {"path": str(tmp_path / "t.csv"), "label_column": "outcome", "site_column": "site"}
    cell = CheckedSettings(
        method="local", dataset="csv", dataset_options=options, partition="natural", clients=len(ROWS)
    )
    return describe(cell, tmp_path)


def entries(table: Table) -> dict[str, dict[str, Any]]:
    """The entries of a table by row and column."""
    names = [column.name for column in table.columns]
    return {label: dict(zip(names, row, strict=True)) for label, row in table.rows}


def test_numbers_on_the_page_are_the_table_s(described: dict[str, Any]) -> None:
    sections = {section.id: section for section in data_sections(described)}
    rows = entries(sections["sites"].tables[0])
    for site, (ill, well) in ROWS.items():
        row = rows[site]
        assert row["train"].value + row["validation"].value + row["test"].value == ill + well
        assert row["ill"].value + row["well"].value == row["train"].value
    assert [rows[site]["± points"].note for site in ROWS] == ["too small", "", "too small"]  # 10, 30 and 1 tests
    assert rows["empty"]["feature score"].note == "–"
    channels = entries(sections["features"].tables[0])
    assert {name: row["rows without it (%)"].value for name, row in channels.items()} == {"dose": 50, "dose missing": 0}
    points = " ".join(sections["findings"].points)
    assert all(text in points for text in ("dose (50 %)", "site empty has one class only", "too small to test"))


def test_the_page_needs_nothing_else_and_has_each_anchor_once(described: dict[str, Any], tmp_path: Path) -> None:
    """Also where two divisions stand on it; names of the user's are no HTML."""
    write_data_page(tmp_path / "of two" / "page.html", [described, {**described, "data": "again"}])
    page = (tmp_path / "of two" / "page.html").read_text(encoding="utf-8")
    assert "<b>A</b>" not in page
    assert page.count("&lt;b&gt;A&lt;/b&gt;") > page.count("<b>A</b>") == 0
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    anchors = re.findall(r'id="([^"]+)"', page)
    assert sorted(set(anchors)) == sorted(anchors)
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(anchors)


@pytest.mark.long
def test_many_sites_and_many_classes_fit(described: dict[str, Any]) -> None:
    """Classes are counted then, and no column or colour stands for each."""
    site = {**described["sites"][1], "classes": [3] * 9 + [0]}
    many = {**described, "classes": [str(k) for k in range(10)], "sites": [{**site, "name": k} for k in range(200)]}
    table = next(section for section in data_sections(many) if section.id == "sites").tables[0]
    assert {row["classes"].value for row in entries(table).values()} == {9}
