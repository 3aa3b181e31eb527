"""The archive of a league: checksums hold, the table has the entries' figures, and the metadata describe all of it."""

import hashlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from bench.results.figures import reported_figures
from bench.results.pack import SUFFIX, unpack
from bench.results.results import RunView
from reports.league.archive import COLUMNS, write_archive
from tests.conftest import ROOT

ENTRIES = ROOT / "reports" / "league" / "entries" / "league_2_small"


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, RunView]:
    folder = tmp_path_factory.mktemp("entries")
    files = [ENTRIES / f"{name}{SUFFIX}" for name in ("fedavg", "apfl")]
    return {file: unpack(file, folder / file.name) for file in files}


@pytest.fixture(scope="module")
def archive(entries: dict[Path, RunView], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_archive(entries, tmp_path_factory.mktemp("archive"), "league-2, small tier", "2.0.0").parent


def described(archive: Path) -> dict[str, Any]:
    return dict(json.loads((archive / "croissant.json").read_text(encoding="utf-8")))


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.long
def test_every_file_is_described_with_its_size_and_checksum(archive: Path) -> None:
    files = content(archive)
    sums = dict(line.split("  ")[::-1] for line in files["SHA256SUMS"].decode().splitlines())
    facts = {entry["contentUrl"]: entry for entry in described(archive)["distribution"]}
    assert sums.keys() == facts.keys() == files.keys() - {"SHA256SUMS", "croissant.json"}
    for name, entry in facts.items():
        assert entry["contentSize"] == f"{len(files[name])} B"
        assert entry["sha256"] == sums[name] == hashlib.sha256(files[name]).hexdigest()
    listed = dict(line.split("  ")[::-1] for line in (ENTRIES / "SHA256SUMS").read_text(encoding="utf-8").splitlines())
    shipped = [name for name in sums if name.startswith("entries/")]
    assert len(shipped) > 2
    assert all(sums[name] == listed[name.removeprefix("entries/")] for name in shipped)


def test_the_table_has_the_reported_figures_of_every_cell(entries: dict[Path, RunView], archive: Path) -> None:
    """Compared with the cells' own tables of metrics at the reported round."""
    table = pd.read_csv(archive / "results.csv", keep_default_na=False)
    assert list(table) == list(COLUMNS) == [field["name"] for field in described(archive)["recordSet"][0]["field"]]
    keys = ["metric", "on", "mean"]
    assert not table.duplicated(["cell", *keys]).any()
    cells = {cell.id: cell for run in entries.values() for cell in run.cells}
    assert set(table["cell"]) == cells.keys()
    for id, rows in list(table.groupby("cell"))[::17]:
        metrics = cells[str(id)].table("metrics").fillna("")
        tests = metrics[(metrics["split"] == "test") & (metrics["quantity"] == "accuracy")]
        value = tests.set_index(["round", *keys])["value"]
        chosen = {tuple(figure[key] for key in keys): figure["round"] for figure in reported_figures(cells[str(id)])}
        assert {tuple(row[keys]): int(row["round"]) for _, row in rows.iterrows()} == chosen
        for _, row in rows.iterrows():
            assert row["value"] == value[(int(row["round"]), *row[keys])]


def test_it_says_how_the_entries_were_tuned(archive: Path, tmp_path: Path) -> None:
    """Those of the default division have no tables of it."""
    assert "learning, each with the same budget of tuning, on the same tasks" in described(archive)["description"]
    file = ENTRIES / f"fedavg{SUFFIX}"
    untuned = unpack(file, tmp_path / "entry")
    (untuned.path / "tuning.csv").unlink()
    other = write_archive({file: untuned}, tmp_path / "other", "league-2, default division", "2.0.0").parent
    assert "each with its defaults and one learning rate, untuned, on the same" in described(other)["description"]


def test_the_same_entries_give_the_same_bytes(entries: dict[Path, RunView], archive: Path, tmp_path: Path) -> None:
    again = write_archive(entries, tmp_path / "again", "league-2, small tier", "2.0.0").parent
    assert content(again) == content(archive)


@pytest.mark.skipif(importlib.util.find_spec("mlcroissant") is None, reason="no mlcroissant; `make validate` has it")
def test_the_validator_takes_it_and_reads_its_records(archive: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / "validate", archive], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"valid, {len(pd.read_csv(archive / 'results.csv'))} records" in done.stdout
