"""`bench data`: how data lie over sites, before anything is trained."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.runs.conftest import Bench

SITES = {"north": (40, 30), "south": (0, 60), "small": (3, 2)}
"""Rows of each label at each site."""


@pytest.fixture
def table() -> pd.DataFrame:
    """Three sites; at one of them everybody is well, and its measurement has another unit."""
    rng = np.random.default_rng(0)
    parts = []
    for site, (ill, well) in SITES.items():
        labels = np.repeat(["ill", "well"], [ill, well])
        glucose = rng.normal(5.0, 1.0, ill + well) * (18 if site == "south" else 1)
        parts.append(pd.DataFrame({"site": site, "glucose": glucose, "outcome": labels}))
    return pd.concat(parts)


def test_sites_of_a_table(bench_here: Bench, table: pd.DataFrame, tmp_path: Path) -> None:
    """Counts are the table's, and the site with another unit is told apart by its inputs alone."""
    table.to_csv(tmp_path / "my table.csv", index=False)
    out = bench_here("data", "my table.csv", "--label", "outcome", "--site", "site", "--json").stdout
    (described,) = json.loads(out)
    assert described["classes"] == ["ill", "well"]
    sites = {site["name"]: site for site in described["sites"]}
    for name, rows in SITES.items():
        assert sites[name]["train"] + sites[name]["validation"] + sites[name]["test"] == sum(rows)
    assert sites["south"]["classes"][0] == 0
    assert sites["south"]["feature_score"] > 0.95
    counts = {name: np.array(site["classes"]) for name, site in sites.items()}
    others = counts["north"] + counts["small"]
    assert sites["south"]["label_distance"] == pytest.approx(others[0] / others.sum())  # nobody is ill there
    columns = ("--label", "outcome", "--site", "site")
    printed = bench_here("data", "my table.csv", *columns, "--html", "pages/look.html").stdout
    assert "3 clients" in printed
    assert any("small" in line for line in printed.splitlines() if line.startswith("- ")), printed
    assert printed.splitlines()[-1] == "pages/look.html"
    page = (tmp_path / "pages" / "look.html").read_text(encoding="utf-8")
    assert all(f'<th scope="row">{site}</th>' in page for site in SITES)
    (tmp_path / "sites").mkdir()
    for site, rows in table.groupby("site"):  # a folder with a file for each of them
        rows.drop(columns="site").to_csv(tmp_path / "sites" / f"{site}.csv", index=False)
    (of_folder,) = json.loads(bench_here("data", "sites", "--label", "outcome", "--json").stdout)
    assert [site["train"] for site in of_folder["sites"]] == [site["train"] for site in described["sites"]]


def test_a_grid_s_divisions(bench_here: Bench, tmp_path: Path) -> None:
    """Each division of the data stands there once, whatever the methods and seeds."""
    grid = {
        "methods": ["fedavg", "local"], "datasets": [{"name": "digits"}], "alphas": [0.1, 10.0], "seeds": [0, 1],
        "clients": 5, "rounds": 2,
    }  # fmt: skip
    (tmp_path / "grid.yaml").write_text(json.dumps(grid), encoding="utf-8")
    described = json.loads(bench_here("data", "grid.yaml", "--json").stdout)
    assert len(described) == 2
    skewed, even = ([site["label_distance"] for site in entry["sites"]] for entry in described)
    assert np.mean(skewed) > 2 * np.mean(even)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["my.csv", "--label", "outcome", "--html", "my.csv"], ".html"),
        (["my.csv", "--label", "no such", "--site", "site"], "no such"),
        (["my.csv", "--site", "site"], "label"),
        (["grid.yaml", "--label", "outcome"], "for a table"),
        (["my.tsv", "--label", "outcome"], "my.tsv is no table that can be read (a file .csv or .parquet"),
        (["my.tsv"], "my.tsv is no table that can be read"),
    ],
)
def test_what_cannot_be_read_is_said(
    arguments: list[str], words: str, bench_here: Bench, table: pd.DataFrame, tmp_path: Path
) -> None:
    table.to_csv(tmp_path / "my.csv", index=False)
    table.to_csv(tmp_path / "my.tsv", index=False, sep="\t")
    (tmp_path / "grid.yaml").write_text("methods: [fedavg]", encoding="utf-8")
    refused = bench_here("data", *arguments, code=2)
    assert words in refused.stderr
    assert "Traceback" not in refused.stderr
