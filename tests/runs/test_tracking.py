"""MLflow as a mirror: a real SQLite store, a real `mlflow server`, and stores that cannot be reached."""

import csv
import math
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from bench.errors import UserError
from bench.results.figures import reported_figures
from bench.results.further_tests import evaluate_cell
from bench.results.results import CellView, load_run
from bench.runs.cell_options import Options
from bench.runs.tracking import (
    Mirror,
    Tracking,
    choose_store,
    embedded_uri,
    mirror_run,
    reported_points,
    sqlite_url,
)
from bench.settings import PlainTest
from bench.store import store
from tests.runs.conftest import COMMON, Bench
from tests.runs.forger import change_entries
from tests.runs.helpers import TABLES, make_run, until
from tests.warm import PATIENCE, Start

if TYPE_CHECKING:
    from mlflow import MlflowClient

# MLflow's own imports use what SQLAlchemy is about to remove.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


METHODS = ["fedavg", "local", "fedper", {"name": "ditto", "lam": 0.1}]
METHODS += [{"name": "fedavg", "label": "long", "set": {"rounds": 4}}]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except OSError:
        return False


@pytest.fixture(scope="module")
def grid10(arrays: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A grid of ten cells that takes a few seconds."""
    content = {**COMMON, "methods": METHODS, "alphas": [1.0], "seeds": [0, 1], "rounds": 3}
    content["datasets"] = [{"name": "npz", "path": str(arrays)}]
    path = tmp_path_factory.mktemp("grid") / "ten.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run10(grid10: Path, start_in: Start) -> Path:
    """The ten cells, mirrored into the run folder while they ran."""
    run = grid10.parent / "run"
    arguments = ["run", "--grid", str(grid10), "--out", str(run), "--device", "cpu"]
    with start_in(arguments, run.parent, {"BENCH_TRACKING": "1"}) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert "warning:" not in err
    assert "mlflow" not in (out + err).lower()  # MLflow's messages are in RUN/tracking/log.txt
    return run


@pytest.fixture(scope="module")
def server(empty_store: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real tracking server, started by `bench ui`, with an empty store."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(empty_store, folder / "mlflow.db")
    store.write_json(folder / "run.json", {"grid": "empty", "cells": []})
    port = free_port()
    command = [sys.executable, "-m", "bench.cli", "ui", str(folder), "--port", str(port)]
    with open(folder / "log.txt", "wb") as log:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log, start_new_session=True)
    try:
        until(lambda: answers(f"http://127.0.0.1:{port}/health"))
        assert f"http://127.0.0.1:{port} shows".encode() in (folder / "log.txt").read_bytes()
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # with all that it has started
        process.wait()


@pytest.fixture
def small(run10: Path, tmp_path: Path) -> Path:
    """A run of one cell, without any files of MLflow."""
    info = store.read_json(run10 / "run.json")
    run = tmp_path / "small"
    shutil.copytree(run10 / info["cells"][0]["id"], run / info["cells"][0]["id"])
    store.write_json(run / "run.json", {**info, "cells": info["cells"][:1]})
    return run


def client_of(uri: str) -> "MlflowClient":
    from mlflow import MlflowClient

    return MlflowClient(uri)


def found(uri: str) -> dict[str, Any]:
    """MLflow's runs by cell; each cell may have only one."""
    client = client_of(uri)
    runs = client.search_runs([one.experiment_id for one in client.search_experiments()])
    runs = [run for run in runs if "cell" in run.data.tags]  # without the parent runs of the methods
    by_cell = {run.data.tags["cell"]: run for run in runs}
    assert len(by_cell) == len(runs)
    return by_cell


def written(cell: CellView) -> dict[str, list[tuple[int, float]]]:
    """What a cell's files contain: rounds and values by metric."""
    curves = defaultdict(list)
    with open(cell.folder / "metrics.csv", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            name = "/".join(row[part] for part in ("metric", "on", "mean", "split", "quantity") if row[part])
            curves[name].append((int(row["round"]), float(row["value"])))
    with open(cell.folder / "ledger.csv", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            for name in store.COLUMNS["ledger"][1:]:
                curves[f"ledger/{name}"].append((int(row["round"]), float(row[name])))
    return dict(curves)


def curves(uri: str, run: Any) -> dict[str, list[tuple[int, float]]]:
    """What MLflow contains: all values by metric, except the reported ones."""
    return {
        name: sorted((point.step, point.value) for point in client_of(uri).get_metric_history(run.info.run_id, name))
        for name in run.data.metrics
        if not name.startswith("reported/")
    }


def reported(run: Any) -> dict[str, float]:
    return {name: value for name, value in run.data.metrics.items() if name.startswith("reported/")}


def artifacts(uri: str, run: Any) -> set[str]:
    return {file.path for file in client_of(uri).list_artifacts(run.info.run_id)}


def assert_complete(uri: str, run: Path, histories: int) -> None:
    """Check that MLflow has everything of every cell; for some cells every value of every round is compared."""
    runs, cells = found(uri), load_run(run).cells
    assert set(runs) == {cell.id for cell in cells}
    for cell in cells:
        mirrored = runs[cell.id]
        assert mirrored.info.status == "FINISHED"
        assert mirrored.info.run_name == cell.name
        seconds = store.read_json(cell.folder / "timing.json")["seconds"]
        assert (mirrored.info.end_time - mirrored.info.start_time) / 1000 == pytest.approx(seconds, abs=2)
        metrics = {name: curve[-1][1] for name, curve in written(cell).items()}
        metrics |= {point.name: point.value for point in reported_points(cell)}
        assert mirrored.data.metrics == metrics
        assert mirrored.data.params["method"] == cell.settings.method
        assert mirrored.data.params["dataset_options.path"] == cell.settings.dataset_options["path"]
        assert len(mirrored.data.params) >= len(type(cell.settings).model_fields) - 6
        tags = mirrored.data.tags
        assert (tags["label"], tags["status"]) == (cell.label, "done")
        assert tags["partition"] == store.read_json(cell.folder / "partition.json")["hash"]
        assert tags["path.device"] == "cpu"
        assert tags.get("commit") == store.read_json(run / "run.json")["commit"]
    assert {runs[cell.id].data.params["hp.lam"] for cell in cells if cell.settings.method == "ditto"} == {"0.1"}
    client = client_of(uri)
    for cell in cells[:: len(cells) // histories]:
        assert curves(uri, runs[cell.id]) == written(cell)
        mirrored = runs[cell.id]
        parent = client.get_run(mirrored.data.tags["mlflow.parentRunId"])
        assert (parent.info.run_name, parent.data.tags["method"]) == (cell.label, cell.label)
        assert parent.info.end_time == max(runs[other.id].info.end_time for other in cells if other.label == cell.label)
        assert artifacts(uri, mirrored) == {"settings.json", "partition.json", "tests.json", "log.txt", *TABLES}
        for point in reported_points(cell):
            (shown,) = client.get_metric_history(mirrored.info.run_id, point.name)
            assert (shown.step, shown.value) == (point.round, point.value)
        fetched = client.download_artifacts(mirrored.info.run_id, "metrics.csv")
        assert Path(fetched).read_bytes() == (cell.folder / "metrics.csv").read_bytes()


def test_ten_cells_in_the_run_folder(run10: Path) -> None:
    assert_complete(embedded_uri(run10), run10, histories=5)
    assert (run10 / "mlartifacts").is_dir()
    assert not (run10.parent / "mlruns").exists()


def test_ten_cells_through_a_server(run10: Path, server: str) -> None:
    assert mirror_run(run10, server) == 10
    before = {cell: run.info.run_id for cell, run in found(server).items()}
    assert mirror_run(run10, server) == 10
    assert {cell: run.info.run_id for cell, run in found(server).items()} == before
    assert_complete(server, run10, histories=3)
    for cell in load_run(run10).cells:
        parent = client_of(server).get_run(found(server)[cell.id].data.tags["mlflow.parentRunId"])
        assert parent.info.start_time <= found(server)[cell.id].info.start_time


def test_values_that_are_no_numbers(small: Path, server: str) -> None:
    table = next(small.glob("*/metrics.csv"))
    lines = table.read_text().splitlines()
    lines[-1] = lines[-1].rpartition(",")[0] + ",nan"
    table.write_text("\n".join(lines) + "\n")
    store.write_json(small / "run.json", {**store.read_json(small / "run.json"), "grid": "ten", "created": "later"})
    mirror_run(small, server)
    experiment = client_of(server).get_experiment_by_name("ten").experiment_id
    runs = client_of(server).search_runs([experiment], "tags.run = 'small later'")
    (latest,) = [run for run in runs if "cell" in run.data.tags]
    assert sum(math.isnan(value) for value in latest.data.metrics.values()) == 1


def test_the_copy_follows_what_becomes_of_a_cell(small: Path, uri: str) -> None:
    cell = load_run(small).cells[0]
    whole = {path.name: path.read_bytes() for path in cell.folder.iterdir()}

    def mirrored(rounds: int, state: store.CellState, reason: str = "") -> Any:
        """The MLflow run once the cell's tables end with this round."""
        for name in ("metrics", "clients", "ledger"):
            lines = whole[f"{name}.csv"].decode().splitlines(keepends=True)
            early = [line for line in lines[1:] if int(line.partition(",")[0]) <= rounds]
            (cell.folder / f"{name}.csv").write_text("".join([lines[0], *early]))
        store.write_status(cell.folder, replace(cell.status, state=state, rounds=rounds, reason=reason))
        mirror_run(small, uri)
        return found(uri)[cell.id]

    store.write_status(cell.folder, replace(cell.status, state="running", rounds=2))
    mirror = Mirror(small, uri)
    with store.locked(cell.folder):
        mirror.update()
    running = found(uri)[cell.id]
    assert running.info.status == "RUNNING"
    assert {step for curve in curves(uri, running).values() for step, _ in curve} == {1, 2}, "whole rounds only"
    store.write_status(cell.folder, cell.status)
    mirror.update()  # the process that began it goes on with it
    done = found(uri)[cell.id]
    assert (done.info.run_id, done.info.status) == (running.info.run_id, "FINISHED")
    assert curves(uri, done) == written(cell)

    assert mirrored(2, "interrupted").info.status == "KILLED"
    mirrored(1, "interrupted")  # as after a resumption from an older checkpoint
    done = mirrored(3, "done")
    assert done.info.status == "FINISHED"
    assert curves(uri, done) == written(cell)

    store.write_text(cell.folder / "error.txt", "Traceback\n")
    failed = mirrored(1, "failed", "RuntimeError: no luck")
    assert (failed.info.status, failed.data.tags["reason"]) == ("FAILED", "RuntimeError: no luck")
    assert "error.txt" in artifacts(uri, failed)
    (cell.folder / "error.txt").unlink()
    good = mirrored(3, "done")
    assert (good.info.status, "reason" in good.data.tags) == ("FINISHED", False)
    assert "error.txt" not in artifacts(uri, good)

    whole["metrics.csv"] = whole["metrics.csv"].replace(b",0.", b",0.1", 1)
    again = mirrored(3, "done")  # as a cell that began again, with other numbers
    assert again.info.run_id != good.info.run_id
    assert curves(uri, again) == written(cell)


def test_quotes_in_names(small: Path, uri: str) -> None:
    """MLflow's filters cannot express quotes. Two folders give two MLflow runs, each with a parent run."""
    info, odd = store.read_json(small / "run.json"), """bob's "odd" run"""
    for name in (odd, f"{odd} 2"):
        shutil.copytree(small, small.with_name(name))
        store.write_json(small.with_name(name) / "run.json", {**info, "grid": "bob's"})
    for name in (odd, odd, f"{odd} 2"):
        mirror_run(small.with_name(name), uri)
    client = client_of(uri)
    runs = client.search_runs([client.get_experiment_by_name("bob's").experiment_id])
    names = [run.data.tags["run"].removesuffix(f" {info['created']}") for run in runs if "cell" in run.data.tags]
    assert sorted(names) == [odd, f"{odd} 2"]
    assert len(runs) == 4


def test_cells_of_other_settings_are_marked(bench_here: Bench, grid10: Path, uri: str, tmp_path: Path) -> None:
    """They are marked as current again when the grid has their settings again, though no cell needs to be run then."""

    def marks() -> dict[str, str]:
        return {run.data.params["lr"]: run.data.tags["current"] for run in found(uri).values()}

    options = ("--grid", grid10, "--only", "method=local,seed=0", "--out", tmp_path / "run", "--device", "cpu")
    tracked = (*options, "--tracking", "--tracking-uri", uri)
    bench_here("run", *tracked)
    bench_here("run", *tracked, "--set", "lr=0.25")
    assert marks() == {"0.5": "false", "0.25": "true"}
    assert "0 cells to run, 1 finished before" in bench_here("run", *tracked).stderr
    assert marks() == {"0.5": "true", "0.25": "false"}


def test_an_outage_is_one_warning(bench_here: Bench, grid10: Path, uri: str, tmp_path: Path) -> None:
    run, nobody = tmp_path / "run", f"http://somebody:secret@127.0.0.1:{free_port()}"
    options = ("--only", "method=local,seed=0", "--out", run, "--device", "cpu", "--tracking")
    done = bench_here("run", "--grid", grid10, *options, "--tracking-uri", nobody)
    assert done.stderr.count("warning:") == 1, done.stderr
    assert f"`bench track {run}` fills in what is missing" in done.stderr
    assert "127.0.0.1" in done.stderr
    assert "secret" not in done.stderr
    assert "Connection refused" in done.stderr
    cells = {cell.id for cell in load_run(run).cells if cell.status.state == "done"}
    assert len(cells) == 1
    refused = bench_here("track", run, "--tracking-uri", nobody, code=2)
    assert "does not accept the run: [Errno" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert f"1 cells of {run} are in {uri}" in bench_here("track", run, "--tracking-uri", uri).stdout
    assert set(found(uri)) == cells


def test_a_store_that_may_only_be_read(
    small: Path, empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # MLflow makes a folder `file:` in the working folder
    with pytest.raises(UserError, match="does not accept the run: attempt to write a readonly database"):
        mirror_run(small, f"sqlite:///file:{empty_store}?mode=ro&uri=true")


def test_a_store_that_never_answers_is_not_waited_for(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        tracking = Tracking(small, f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert tracking._pipe.poll(PATIENCE)  # MLflow is imported, which takes longer the busier the machine is
        began = time.monotonic()
        tracking.finish(PATIENCE)
    assert time.monotonic() - began < 25  # MLflow itself would try for minutes
    assert capsys.readouterr().err.count("warning: tracking in http") == 1


@pytest.mark.faults
def test_the_mirror_dies_with_its_run(small: Path, uri: str, environment: dict[str, str]) -> None:
    code = f"""
import pathlib, time
from bench.runs.tracking import Tracking
tracking = Tracking(pathlib.Path({str(small)!r}), {uri!r})
print(tracking._process.pid, flush=True)
time.sleep(100)
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    stat = Path(f"/proc/{child}/stat")
    until(lambda: not stat.exists() or "Z" in stat.read_text().split()[2])


def test_a_run_folder_that_was_copied(run10: Path, small: Path) -> None:
    shutil.copy(run10 / "mlflow.db", small)
    with pytest.raises(UserError, match="was moved or copied"):
        mirror_run(small, embedded_uri(small))


def test_a_page_needs_a_store_and_a_port(bench_here: Bench, run10: Path, small: Path, server: str) -> None:
    assert "has no mlflow.db" in bench_here("ui", small, code=2).stderr
    assert "Choose another one" in bench_here("ui", run10, "--port", server.rpartition(":")[2], code=2).stderr


def test_which_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert choose_store(tmp_path, None) == f"sqlite:///{tmp_path.resolve()}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql+psycopg://host/runs")
    assert choose_store(tmp_path, None) == "postgresql+psycopg://host/runs"
    assert choose_store(tmp_path, "http://host:5000") == "http://host:5000"
    with pytest.raises(UserError, match="--tracking-uri htp://host: MLflow needs an address"):
        choose_store(tmp_path, "htp://host")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "mlruns")
    with pytest.raises(UserError, match="MLFLOW_TRACKING_URI mlruns"):
        choose_store(tmp_path, None)


def test_later_scores_and_another_reported_round_reach_mlflow(arrays: Path, uri: str, tmp_path: Path) -> None:
    """A finished cell's added scores, and another score that chooses its round."""
    settings = {"lr": 1.5, "alphas": [0.2], "rounds": 8, "seeds": [2], "metrics": ["nll"]}
    options = Options(device="cpu", executor="sequential", keep="best")
    run = make_run(tmp_path / "run", arrays, ["ditto"], options, **settings)
    cell = load_run(run).cells[0]

    def mirrored() -> Any:
        mirror_run(run, uri)
        return found(uri)[cell.id]

    first = mirrored()
    assert reported(first) == {point.name: point.value for point in reported_points(cell)}
    assert "evaluated.csv" not in artifacts(uri, first)
    evaluate_cell(cell, [PlainTest(name="others")], ["auroc"])
    second = mirrored()
    assert any(name.endswith("/auroc") for name in reported(second))
    assert "evaluated.csv" in artifacts(uri, second)

    before = [figure["round"] for figure in reported_figures(cell)]
    for name in ("loss", "nll"):
        change_entries(run, lambda entry, name=name: entry["settings"].update(select_by=name))
        moved = load_run(run).cells[0]
        if [figure["round"] for figure in reported_figures(moved)] != before:
            break
    third = mirrored()
    assert reported(third) == {point.name: point.value for point in reported_points(moved)} != reported(second)


# -- run folders of any legal name -------------------------------------------------------------------------------------

NAME = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="/\0"), min_size=1, max_size=40).filter(
    lambda name: name not in (".", "..") and len(name.encode()) < 200
)
NASTY = ["a?3", "a?1", "a#1", "a%413", "ü [x];&=@:'"]
"""Names that are read as something else where they are not quoted."""


@given(NAME)
def test_the_address_of_a_file_leads_to_that_file(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    """And what is written there lies nowhere else."""
    root = tmp_path_factory.mktemp("names")
    folder = root / name
    folder.mkdir()
    with create_engine(sqlite_url(folder / "some.db"), poolclass=NullPool).begin() as connection:
        connection.execute(text("create table t (x)"))
    assert set(root.rglob("*")) == {folder, folder / "some.db"}
    assert sqlite3.connect(folder / "some.db").execute("select name from sqlite_master").fetchall() == [("t",)]
    shutil.rmtree(root)


def test_mlflow_s_files_lie_in_the_run_s_folder(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the artifacts, for each name; MLflow finds them again."""
    monkeypatch.chdir(tmp_path)
    folders = [tmp_path / "root" / name for name in NASTY]
    for folder in folders:
        shutil.copytree(small, folder)
    before = set(tmp_path.rglob("*"))
    for folder in folders:
        assert mirror_run(folder, embedded_uri(folder)) == 1
        assert (folder / "mlflow.db").is_file()
        assert len(list(folder.glob("mlartifacts/**/metrics.csv"))) == 1
        (run,) = found(embedded_uri(folder)).values()
        assert "metrics.csv" in artifacts(embedded_uri(folder), run)
    strays = set(tmp_path.rglob("*")) - before
    assert not [path for path in strays if not any(path.is_relative_to(folder) for folder in folders)]
