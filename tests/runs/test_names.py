"""Run folders of any legal name: everything lies inside them, and two of them share nothing."""

import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from bench.runs.tracking import embedded_uri, mirror_run, sqlite_url
from tests.runs.conftest import Bench, Grid

NASTY = ["a?3", "a?1", "a#1", "a%413", "ü [x];&=@:'"]
"""Names that are read as something else where they are not quoted."""


def everything(root: Path) -> set[Path]:
    """All files and folders below a folder."""
    return set(root.rglob("*"))


NAME = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="/\0"), min_size=1, max_size=40).filter(
    lambda name: name not in (".", "..") and len(name.encode()) < 200
)


@pytest.mark.long
@given(NAME)
def test_the_address_of_a_file_leads_to_that_file(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    """And what is written there lies nowhere else."""
    root = tmp_path_factory.mktemp("names")
    folder = root / name
    folder.mkdir()
    with create_engine(sqlite_url(folder / "some.db"), poolclass=NullPool).begin() as connection:
        connection.execute(text("create table t (x)"))
    assert everything(root) == {folder, folder / "some.db"}
    assert sqlite3.connect(folder / "some.db").execute("select name from sqlite_master").fetchall() == [("t",)]
    shutil.rmtree(root)


@pytest.fixture
def one_run(bench_here: Bench, grid: Grid, tmp_path: Path) -> Path:
    """A run of one cell."""
    folder = tmp_path / "source"
    arguments = ("--device", "cpu", "--jobs", 1, "--no-tracking", "--quiet")
    bench_here("run", "--grid", grid(methods=["fedavg"], rounds=1), "--out", folder, *arguments)
    return folder


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_mlflow_s_files_lie_in_the_run_s_folder(one_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the artifacts, for each name; MLflow finds them again."""
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)
    folders = [tmp_path / "root" / name for name in NASTY]
    for folder in folders:
        shutil.copytree(one_run, folder)
    before = everything(tmp_path)
    for folder in folders:
        assert mirror_run(folder, embedded_uri(folder)) == 1
        assert (folder / "mlflow.db").is_file()
        assert len(list(folder.glob("mlartifacts/**/metrics.csv"))) == 1
        client = MlflowClient(embedded_uri(folder))
        (experiment,) = [one.experiment_id for one in client.search_experiments() if one.name == "small"]
        (run,) = [one for one in client.search_runs([experiment]) if "cell" in one.data.tags]
        assert "metrics.csv" in [artifact.path for artifact in client.list_artifacts(run.info.run_id)]
    strays = {path for path in everything(tmp_path) - before if not any(path.is_relative_to(one) for one in folders)}
    assert strays == set()


def test_a_name_that_is_no_text_is_refused_in_one_line(bench_here: Bench, grid: Grid, tmp_path: Path) -> None:
    """`run.json` names the command, and is UTF-8."""
    name = os.fsdecode(b"bad\xff")
    said = bench_here("run", "--grid", grid(methods=["fedavg"]), "--out", name, "--quiet", code=2).stderr
    assert said == "bench: --out 'bad\\udcff': its name is not text in UTF-8; give another one\n"
    assert os.listdir(tmp_path) == ["small.yaml"]
