"""The command line and Python are two ways into one session, with the same options and the same refusals."""

import inspect
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import bench
from bench.cli.decide import decide
from bench.cli.evaluate import evaluate
from bench.cli.results import report
from bench.cli.run import run
from bench.cli.sweep import sweep
from bench.cli.verify import verify
from bench.errors import UserError
from bench.runs.options import SessionOptions
from bench.store import store
from tests.runs.conftest import Grid

Command = Callable[..., "subprocess.CompletedProcess[str]"]

DOORS = {
    "run": (
        run,
        bench.run,
        {
            "set_": "`overrides` in Python, where `set` is a built-in",
            "plugin": "bench.load_file loads one",
            "dry_run": "prints for a reader",
            "measure": "is of the dry run",
            "_misplaced": "a message for who forgets an option's name",
        },
        {"overrides": "`--set`", "methods": "classes", "callbacks": "objects"},
    ),
    "sweep": (
        sweep,
        bench.sweep,
        {
            "set_": "`overrides` in Python, where `set` is a built-in",
            "plugin": "bench.load_file loads one",
            "dry_run": "prints for a reader",
            "measure": "is of the dry run",
            "_misplaced": "a message for who forgets an option's name",
        },
        {"overrides": "`--set`"},
    ),
    "decide": (
        decide,
        bench.decide,
        {"plugin": "bench.load_file loads one", "from_summaries": "prints for a reader"},
        {},
    ),
    "evaluate": (evaluate, bench.evaluate, {"plugin": "bench.load_file loads one"}, {}),
    "report": (report, bench.report, {"plugin": "bench.load_file loads one"}, {}),
    "verify": (
        verify,
        bench.verify,
        {
            "run": "`runs` in Python",
            "plugin": "bench.load_file loads one",
            "blind": "needs a process that has loaded no plug-in, which a notebook's may not be",
        },
        {"runs": "`RUN...`"},
    ),
}
"""Of each way into a session: the command, the function, and what only one of them has, with the reason."""


@pytest.mark.parametrize("door", DOORS)
def test_a_command_and_its_function_have_the_same_options(door: str) -> None:
    """With the same defaults; a list that nobody gave is empty in Python and None on the command line."""
    command, function, of_command, of_python = DOORS[door]
    options = dict(inspect.signature(command).parameters)
    parameters = dict(inspect.signature(function).parameters)
    assert set(options) - set(parameters) == set(of_command)
    assert set(parameters) - set(options) == set(of_python)
    lists = {name for name, parameter in parameters.items() if parameter.default == ()}
    for name in options.keys() & parameters.keys():
        default = parameters[name].default
        shown = str(options[name].default) if isinstance(options[name].default, Path) else options[name].default
        expected = None if name in lists else default
        if default is inspect.Parameter.empty and shown == "":  # the command says by itself that its file is missing
            continue
        assert shown == expected, name


def test_a_sweep_has_the_options_of_a_run() -> None:
    """But for those that are about one grid's cells, or that a study says itself."""
    missing = set(inspect.signature(bench.run).parameters) - set(inspect.signature(bench.sweep).parameters)
    assert missing == {"grid", "only", "fresh", "take_over", "keep", "verbose", "methods", "callbacks"}


MISTAKES: dict[str, tuple[list[str], dict[str, Any], str]] = {
    "another grid's folder": ([], {}, "has the cells of grid 'another', and this is grid 'small'"),
    "no folder": (["--out", "file/run"], {"out": "file/run"}, "file is a file, not a folder"),
    "no such device": (["--device", "cudda"], {"device": "cudda"}, "Did you mean 'cuda'?"),
    "another maker's device": (
        ["--device", "mps"],
        {"device": "mps"},
        "--device mps: there is no such device. Devices:",
    ),
    "a device's number": (["--device", "cuda:3"], {"device": "cuda:3"}, "CUDA_VISIBLE_DEVICES=3"),
    "no GPU": (["--device", "cuda"], {"device": "cuda"}, "--device cuda: torch sees no CUDA device here"),
    "an unknown key": (["--only", "metod=local"], {"only": "metod=local"}, "unknown key 'metod'"),
    "no cell": (["--only", "seed=7"], {"only": "seed=7"}, "none of the 2 cells fits"),
    "no jobs": (["--jobs", "0"], {"jobs": 0}, "--jobs 0: should be greater than or equal to 1"),
    "less than no time": (
        ["--checkpoint-seconds", "-1"],
        {"checkpoint_seconds": -1},
        "--checkpoint-seconds -1: should be greater than or equal to 0",
    ),
    "models that nobody keeps": (["--keep", "bset"], {"keep": "bset"}, "--keep bset: should be 'none', 'server', 'all"),
    "no such executor": (
        ["--executor", "fast"],
        {"executor": "fast"},
        "--executor fast: should be 'auto', 'sequential', 'cohort' or 'debug'",
    ),
    "a share of a machine": (["--cpus-per-cell", "2"], {"cpus_per_cell": 2}, "are for --ray"),
    "no cluster": (["--ray", "nowhere"], {"ray": "nowhere"}, "--ray nowhere: give HOST:PORT"),
    "no store": (
        ["--tracking", "--tracking-uri", "nowhere"],
        {"tracking": True, "tracking_uri": "nowhere"},
        "--tracking-uri nowhere: MLflow needs an address",
    ),
    "no override": (["--set", "rounds"], {"overrides": ["rounds"]}, "--set rounds: write key=value"),
    "an unknown method": (
        ["--set", "methods=[fedvag]"],
        {"overrides": ["methods=[fedvag]"]},
        "unknown method 'fedvag'. Did you mean 'fedavg'?",
    ),
    "no data": (
        ["--set", "datasets=[{name: npz, path: missing.npz}]"],
        {"overrides": ["datasets=[{name: npz, path: missing.npz}]"]},
        "missing.npz",
    ),
}


SLOW = {"no cluster"}
"""Mistakes that are seen after an import of seconds."""


@pytest.mark.parametrize(
    "mistake", [pytest.param(name, marks=pytest.mark.long if name in SLOW else ()) for name in MISTAKES]
)
def test_both_refuse_a_mistake_in_the_same_words(
    bench_here: Command, grid: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    """And neither writes anything."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    options, arguments, expected = MISTAKES[mistake]
    file = grid(methods=["fedavg", "local"])
    (tmp_path / "file").touch()
    if mistake == "another grid's folder":
        (tmp_path / "run").mkdir()
        store.write_json(tmp_path / "run" / "run.json", {"grid": "another", "cells": []})
    before = sorted(tmp_path.rglob("*"))
    out = arguments.get("out", "run")
    said = bench_here(
        "run", "--grid", file, "--quiet", *([] if "out" in arguments else ["--out", out]), *options, code=2
    )
    with pytest.raises(UserError) as error:
        bench.run(file, **{"out": out, "quiet": True, **arguments})
    assert said.stderr == f"bench: {error.value}\n"
    assert expected in str(error.value)
    assert sorted(tmp_path.rglob("*")) == before


OF_STUDIES: dict[str, tuple[list[str], dict[str, Any], str]] = {
    "no trials": (["--trials", "0"], {"trials": 0}, "--trials 0: should be 1 or more"),
    "less than no time": (["--timeout", "-1"], {"timeout": -1.0}, "--timeout -1: should be 0 or more"),
    "a misspelt key": (["--set", "trails=3"], {"overrides": ["trails=3"]}, "trails"),
    "no place": (["--out", "/proc/x"], {"out": "/proc/x"}, "--out /proc/x: nothing can be written into /proc: No such"),
}


@pytest.mark.parametrize("mistake", OF_STUDIES)
def test_both_refuse_a_mistake_with_a_study_in_the_same_words(
    bench_here: Command, arrays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    options, arguments, expected = OF_STUDIES[mistake]
    small = {"partition": "dirichlet", "clients": 4, "model": "logistic", "rounds": 1, "alphas": [1.0]}
    inner = {**small, "methods": ["fedavg"], "datasets": [{"name": "npz", "path": str(arrays)}]}
    content = {"grid": inner, "space": {"lr": [0.1, 0.5]}, "sampler": "grid", "seeds": [100, 101], "report_seeds": [0]}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    said = bench_here("sweep", "--study", "study.yaml", "--quiet", *options, code=2)
    with pytest.raises(UserError) as error:
        bench.sweep("study.yaml", quiet=True, **arguments)
    assert said.stderr == f"bench: {error.value}\n"
    assert expected in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["study.yaml"]


OF_RUNS: dict[str, tuple[list[str], Callable[..., Any], dict[str, Any], str]] = {
    "a margin below nothing": (["report", "empty", "--margin", "-1"], bench.report, {"margin": -1}, "--margin -1: "),
    "no percentage": (["report", "empty", "--target", "much"], bench.report, {"target": ["much"]}, "--target much: "),
    "no run": (["report", "empty"], bench.report, {}, "empty is not a run"),
    "fewer than no cells": (["verify", "empty", "--cells", "-1"], bench.verify, {"cells": -1}, "--cells -1: should be"),
    "no jobs": (["verify", "empty", "--jobs", "0"], bench.verify, {"jobs": 0}, "--jobs 0: should be 1 or more"),
    "nothing to verify": (["verify", "empty"], bench.verify, {}, "empty is not a run"),
}


@pytest.mark.parametrize("mistake", OF_RUNS)
def test_both_refuse_a_mistake_about_a_run_in_the_same_words(
    bench_here: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    command, function, arguments, expected = OF_RUNS[mistake]
    said = bench_here(*command, code=2)
    with pytest.raises(UserError) as error:
        function("empty", **arguments)
    assert said.stderr == f"bench: {error.value}\n"
    assert expected in str(error.value)
    assert list((tmp_path / "empty").iterdir()) == []


SICK = """
from bench.method import METHODS, Method

@METHODS.register("unwell")
class Sick(Method):
    mean_of = ("model",)

    def client_round(self, client, down):
        raise ValueError("it is sick")
        yield
"""


@pytest.mark.long
def test_both_warn_in_the_same_words(
    bench_here: Command, grid: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a method that is another one, of rounds without steps, of cells that fail, and at the end of equal figures."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "unwell.py").write_text(SICK, encoding="utf-8")
    methods = ["fedavg", {"name": "ditto", "lam": 0.0}, "local", "unwell"]
    file = grid(methods=methods, plugins=["unwell.py"], epochs=0, rounds=1, seeds=[0])
    said = bench_here("run", "--grid", file, "--device", "cpu", "--jobs", 1, "--out", "a run", code=1).stderr
    view = bench.run(file, "another run", device="cpu", jobs=1)
    wanted = ("warning: ", "unwell blobs", "  bench log ", "note: ")
    first, second = (
        [line for line in text.splitlines() if line.startswith(wanted)] for text in (said, capsys.readouterr().err)
    )
    assert [line.replace("'a run'", "RUN") for line in first] == [
        line.replace("'another run'", "RUN") for line in second
    ]
    for text in (
        "lam = 0: the personalized models of Ditto",
        "warning: local: epochs = 0",
        "ValueError: it is sick",
        "note: ",
    ):
        assert any(text in line for line in first), text
    (sick,) = [cell.id for cell in view.cells if cell.label == "unwell"]
    assert f"  bench log 'a run' {sick}" in first


def test_the_environment_says_whether_a_run_is_mirrored(
    grid: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the command and for Python, unless the user does."""
    for word, tracked in (("1", True), ("yes", True), ("", True), ("0", False), ("off", False), ("False", False)):
        monkeypatch.setenv("BENCH_TRACKING", word)
        assert SessionOptions().tracked is tracked
        assert SessionOptions(tracking=not tracked).tracked is not tracked
    monkeypatch.setenv("BENCH_TRACKING", "perhaps")
    with pytest.raises(UserError, match="the variable BENCH_TRACKING is 'perhaps': set it to 1 or 0"):
        bench.run(grid(methods=["fedavg"]), tmp_path / "run", device="cpu", quiet=True)
