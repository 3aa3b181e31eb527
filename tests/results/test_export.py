"""Exported models predict, alone and from the rows of the user's file, what the cell's own evaluation counted."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from bench.errors import UserError
from bench.exported import check_samples, load_model
from bench.federation.cell_data import load_dataset, load_partition
from bench.places import file_stems
from bench.results.results import CellView, load_run
from bench.results.saved_models import SavedModels
from bench.settings import Settings
from tests.results.saved import finished, rounds, scored_tests
from tests.runs.conftest import Bench
from tests.warm import PATIENCE, Python

Cell = Callable[..., Settings]

SITES = ("Köln", "St. Jude/A", "St. Jude:A", "generic")
"""Names that clash as files, or are none."""


def write_table(file: Path) -> None:
    """A table with gaps, categories, and a site with another unit and no value in one column."""
    rng, number = np.random.default_rng(0), np.repeat(range(len(SITES)), 60)
    ill = rng.random(240) < 0.4 + 0.1 * number
    pressure = np.where(rng.random(240) < 0.3, np.nan, rng.normal(120, 15, 240) + 9 * ill).round(1)
    columns = {
        "site": np.array(SITES)[number],
        "glucose": (rng.normal(5, 1, 240) + ill).round(2) * np.where(number == 1, 18, 1),
        "pressure": np.where(number == 3, np.nan, pressure),
        "smoker": rng.choice(["yes", "no", ""], 240),
        "outcome": np.where(ill, "ill", "well"),
    }
    pd.DataFrame(columns).to_csv(file, index=False)


def of_table(file: Path, **changes: object) -> Settings:
    options = {"path": str(file), "label_column": "outcome", "site_column": "site"}
    base: dict[str, object] = {
        "method": "knnper", "dataset": "csv", "dataset_options": options, "partition": "natural", "model": "mlp",
        "clients": len(SITES), "rounds": 2, "lr": 0.1,
    }  # fmt: skip
    return Settings(**{**base, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("normalise", [None, "pooled", "per_client"])
@pytest.mark.long
def test_kept_and_exported_models_of_a_table_score_as_the_cell_did(normalise: str | None, tmp_path: Path) -> None:
    """A memory of features at each site, under each way to normalise, on rows with gaps; what could not be told from
    such rows is refused."""
    write_table(tmp_path / "t.csv")
    cell = finished(of_table(tmp_path / "t.csv", normalise=normalise), tmp_path / "0123456789abcdef", "best")
    cell.export(tmp_path / "models")
    exported = load_model(tmp_path / "models" / "generic.pt")
    assert exported.needs_site == (normalise == "per_client")
    if exported.needs_site:
        with pytest.raises(UserError, match="as a site normalises"):
            exported.predict(tmp_path / "t.csv")
    data, table = load_dataset(cell.settings), pd.read_csv(tmp_path / "t.csv")
    partition, saved = load_partition(cell.settings, data), SavedModels(cell)
    x, y = torch.from_numpy(data.x), torch.from_numpy(data.y)
    assert data.rows is not None
    assert x.isnan().any(dim=0).sum() == 1
    files = json.loads((tmp_path / "models" / "models.json").read_text(encoding="utf-8"))["sites"]
    assert list(files) == sorted(SITES)
    generic = saved.load()
    for metric, row in scored_tests(cell, rounds(cell)):
        own, rows = saved.load(row.client), partition.test[row.client]
        with torch.no_grad():
            at = [own] if normalise == "per_client" else []
            logits = own(x[rows]) if metric == "pm" else generic(x[rows], *at)
        assert int((logits.argmax(1) == y[rows]).sum()) == row.correct
        site, of_user = load_model(tmp_path / "models" / files[partition.names[row.client]]["file"]), data.rows[rows]
        assert set(table["site"][of_user]) == {site.site}
        model = site if metric == "pm" else exported
        predicted, notes = model.predict(table.iloc[of_user], *([site] if model.needs_site else []))
        assert notes == []
        assert (predicted["predicted"].to_numpy() == table["outcome"][of_user].to_numpy()).sum() == row.correct
    if normalise == "per_client":
        for at_nobody in ((), (generic,)):
            with pytest.raises(UserError, match="the generic model is no client's"):
                generic(x, *at_nobody)
    with pytest.raises(UserError, match="leave `at` out"):
        saved.load(0)(x, saved.load(1))
    with pytest.raises(UserError, match="sample 0 holds a number that is infinite"):
        saved.load(0)(torch.full_like(x, float("inf")))
    with pytest.raises(UserError, match="samples of shape"):
        saved.load(0)(x[:, 1:])


def test_a_missing_number_is_refused_where_data_have_none() -> None:
    x = torch.tensor([[1.0, 2.0], [float("nan"), 0.0]])
    check_samples(x, (2,), of_bytes=False, vocabulary=0, of_table=True)
    with pytest.raises(UserError, match="sample 1 holds a number that is not finite"):
        check_samples(x, (2,), of_bytes=False, vocabulary=0, of_table=False)


@pytest.mark.long
def test_the_command_and_the_script_from_elsewhere(
    bench: Bench, bench_here: Bench, python: Python, environment: dict[str, str], tmp_path: Path
) -> None:
    """`bench export` and the exported `predict.py`, in a folder that is far from the package's; the script first in a
    new interpreter."""
    write_table(tmp_path / "t.csv")
    grid = {
        "methods": ["fedavg", "knnper"],
        "datasets": [{"name": "csv", "path": "t.csv", "label_column": "outcome", "site_column": "site"}],
        "partition": "natural", "clients": len(SITES), "rounds": 2, "model": "mlp", "normalise": "per_client",
    }  # fmt: skip
    (tmp_path / "grid.yaml").write_text(json.dumps(grid), encoding="utf-8")

    bench_here("run", "--grid", "grid.yaml", "--out", "run", "--keep", "best", "--jobs", "1")
    cell = next(c for c in load_run(tmp_path / "run").cells if c.settings.method == "knnper")
    assert "2 cells" in bench_here("export", "run", "--out", "m", code=2).stderr
    assert "--out" in bench_here("export", "run", cell.id, code=2).stderr
    assert "m" in bench("export", "run", cell.id[:6], "--out", "m").stdout.splitlines()
    assert "not empty" in bench_here("export", "run", cell.id, "--out", "m", code=2).stderr

    def predict(*arguments: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
        return python("predict.py", *arguments, folder=tmp_path / "m", code=code)

    done = subprocess.run(
        [sys.executable, "predict.py", "Köln.pt", "../t.csv"], cwd=tmp_path / "m", env=environment, capture_output=True,
        text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = done.stdout.splitlines()
    assert rows[0] == "predicted,probability of ill,probability of well"
    assert len(rows) == 1 + 60 * len(SITES)
    pd.read_csv(tmp_path / "t.csv").assign(glucose="high").to_csv(tmp_path / "bad.csv", index=False)
    bad = predict("Köln.pt", "../bad.csv", code=1)
    assert bad.stderr.startswith("predict.py: ../bad.csv: row 1, column 'glucose': 'high' is not a number")
    predict("generic.pt", "../t.csv", code=1)
    assert "no normalisation" in predict("generic.pt", "../t.csv", "generic.pt", code=1).stderr
    assert "give no file of a site beside it" in predict("Köln.pt", "../t.csv", "Köln.pt", code=1).stderr
    assert predict("generic.pt", "../t.csv", "Köln.pt").stdout
    assert predict("--help").stdout.startswith("Predict new rows: python predict.py MODEL.pt ROWS.csv")


def test_what_cannot_be_exported_is_refused_and_nothing_is_written(cell: Cell, tmp_path: Path) -> None:
    """No models were kept; the samples were changed; something lies in the folder."""
    plain = finished(cell(rounds=1), tmp_path / "0123456789abcdef", "none")
    with pytest.raises(UserError, match="--keep best"):
        plain.export(tmp_path / "m")
    changed = CellView(plain.id, "x", cell(rounds=1, shifts=[{"name": "noise"}]), plain.folder, plain.status)
    with pytest.raises(UserError, match="shifts"):
        changed.export(tmp_path / "m")
    assert sorted(path.name for path in tmp_path.iterdir() if "m" in path.name[:2]) == []
    with pytest.raises(UserError, match="not empty"):
        plain.export(tmp_path)


def test_no_two_sites_share_a_file() -> None:
    """Not even where a file system tells no capital letters apart, or `generic` is the name of a site."""
    names = ["a/b", "a:b", "A-B", "generic", "", "..", "x" * 300]
    stems = file_stems(names, taken=["generic"])
    assert len({stem.casefold() for stem in stems} | {"generic"}) == len(names) + 1
    assert all("/" not in stem and len(stem) < 77 and not stem.startswith(".") for stem in stems)
