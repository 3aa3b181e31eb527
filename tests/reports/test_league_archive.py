"""The archive of a league: checksums, figures and metadata; and the shipped entries, in a checkout or fetched once."""

import hashlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from bench.errors import UserError
from bench.results.figures import reported_figures
from bench.results.pack import SUFFIX, unpack
from bench.results.results import RunView
from reports.league import shipped
from reports.league.archive import COLUMNS, write_archive
from tests.conftest import ROOT
from tools.league import release_file

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
def test_every_file_is_described_with_its_size_and_checksum(
    entries: dict[Path, RunView], archive: Path, tmp_path: Path
) -> None:
    """The same entries give the same bytes."""
    files = content(archive)
    assert content(write_archive(entries, tmp_path / "again", "league-2, small tier", "2.0.0").parent) == files
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


@pytest.mark.long
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


@pytest.mark.long
def test_it_says_how_the_entries_were_tuned(archive: Path, tmp_path: Path) -> None:
    """Those of the default division have no tables of it."""
    assert "learning, each with the same budget of tuning, on the same tasks" in described(archive)["description"]
    file = ENTRIES / f"fedavg{SUFFIX}"
    untuned = unpack(file, tmp_path / "entry")
    (untuned.path / "tuning.csv").unlink()
    other = write_archive({file: untuned}, tmp_path / "other", "league-2, default division", "2.0.0").parent
    assert "each with its defaults and one learning rate, untuned, on the same" in described(other)["description"]


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("mlcroissant") is None, reason="no mlcroissant; `make validate` has it")
def test_the_validator_takes_it_and_reads_its_records(archive: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / "validate", archive], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"valid, {len(pd.read_csv(archive / 'results.csv'))} records" in done.stdout


NAME = "pfleague-league-entries.tar"


def test_the_release_file_of_the_checkout_has_the_checksum_that_is_named() -> None:
    """`python -m tools.league ship FOLDER` writes it."""
    assert shipped.Release.read().sha256 == hashlib.sha256(release_file()).hexdigest()


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation without entries, with an empty cache, and the folder in which its release file is published."""
    entries = tmp_path / "entries" / "league_2_small"
    entries.mkdir(parents=True)
    for name in ("local.tar.xz", "fedavg.tar.xz", "partitions.json.xz"):
        (entries / name).write_text(name)
    server = tmp_path / "server"
    server.mkdir()
    content = release_file(entries.parent)
    (server / NAME).write_bytes(content)
    about = {"url": (server / NAME).as_uri(), "sha256": hashlib.sha256(content).hexdigest()}
    (tmp_path / "release.json").write_text(json.dumps(about))
    monkeypatch.setattr(shipped, "CHECKOUT", tmp_path / "nowhere")
    monkeypatch.setattr(shipped, "RELEASE", tmp_path / "release.json")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return server


def test_entries_are_fetched_once(published: Path) -> None:
    files = shipped.shipped("league_2_small")
    assert [file.name for file in files] == ["fedavg.tar.xz", "local.tar.xz"]
    assert [file.read_text() for file in files] == ["fedavg.tar.xz", "local.tar.xz"]
    assert (files[0].parent / "partitions.json.xz").exists()
    (published / NAME).unlink()
    assert shipped.shipped("league_2_small") == files
    assert shipped.shipped("league_1_small") == []


def test_without_a_network_the_file_may_be_put_into_the_cache(published: Path, tmp_path: Path) -> None:
    file = (published / NAME).rename(tmp_path / NAME)
    with pytest.raises(UserError, match=f"cannot be fetched .* `curl -L --create-dirs -o {tmp_path}/cache/pfleague"):
        shipped.shipped("league_2_small")
    file.rename(tmp_path / "cache" / "pfleague" / NAME)
    assert len(shipped.shipped("league_2_small")) == 2


@pytest.mark.parametrize("place", ["server", "cache/pfleague"])
def test_another_file_is_refused(published: Path, tmp_path: Path, place: str) -> None:
    file = tmp_path / place / NAME
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"of another version")
    with pytest.raises(UserError, match=r"its SHA256 is [0-9a-f]{64}, not "):
        shipped.shipped("league_2_small")
    assert not list((tmp_path / "cache" / "pfleague").glob("league-*"))
