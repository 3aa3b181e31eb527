"""The command line and Python are two ways into one session, with the same options and the same refusals."""

import inspect
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
from tests.cli.conftest import WriteStudy
from tests.runs.conftest import Grid

Command = Callable[..., "subprocess.CompletedProcess[str]"]

SESSION = {
    "set_",  # `overrides` in Python, where `set` is a built-in
    "plugin",  # `bench.load_file` loads one
    "dry_run",  # prints for a reader
    "measure",  # is of the dry run
}
DOORS: dict[str, tuple[Callable[..., Any], Callable[..., Any], set[str], set[str]]] = {
    "run": (run, bench.run, SESSION, {"overrides", "methods", "callbacks"}),  # classes and objects
    "sweep": (sweep, bench.sweep, SESSION, {"overrides"}),
    "decide": (decide, bench.decide, {"plugin", "from_summaries"}, set()),  # prints for a reader
    "evaluate": (evaluate, bench.evaluate, {"plugin"}, set()),
    "report": (report, bench.report, {"plugin"}, set()),
    # a blind verification needs a process that has loaded no plug-in, which a notebook's may not be
    "verify": (verify, bench.verify, {"plugin", "run", "blind"}, {"runs"}),
}
"""Of each way into a session: the command, the function, and what only one of them has, with the reason."""


@pytest.mark.parametrize("door", DOORS)
def test_a_command_and_its_function_have_the_same_options(door: str) -> None:
    """With the same defaults; a list that nobody gave is empty in Python and None on the command line."""
    command, function, of_command, of_python = DOORS[door]
    options = dict(inspect.signature(command).parameters)
    parameters = dict(inspect.signature(function).parameters)
    assert set(options) - set(parameters) == of_command
    assert set(parameters) - set(options) == of_python
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


MISTAKES: dict[str, list[tuple[str, dict[str, Any], str]]] = {
    "run --grid small.yaml --quiet": [
        ("--out another", {"out": "another"}, "has the cells of grid 'another', and this is grid 'small'"),
        ("--out file/run", {"out": "file/run"}, "file is a file, not a folder"),
        ("--device cudda", {"device": "cudda"}, "Did you mean 'cuda'?"),
        ("--device mps", {"device": "mps"}, "--device mps: there is no such device. Devices:"),
        ("--device cuda:3", {"device": "cuda:3"}, "CUDA_VISIBLE_DEVICES=3"),
        ("--device cuda", {"device": "cuda"}, "--device cuda: torch sees no CUDA device here"),
        ("--only metod=local", {"only": "metod=local"}, "unknown key 'metod'"),
        ("--only seed=7", {"only": "seed=7"}, "none of the 2 cells fits"),
        ("--jobs 0", {"jobs": 0}, "--jobs 0: should be greater than or equal to 1"),
        ("--checkpoint-seconds -1", {"checkpoint_seconds": -1}, "--checkpoint-seconds -1: should be greater than or"),
        ("--keep bset", {"keep": "bset"}, "--keep bset: should be 'none', 'server', 'all"),
        ("--executor fast", {"executor": "fast"}, "--executor fast: should be 'auto', 'sequential', 'cohort' or 'debu"),
        ("--cpus-per-cell 2", {"cpus_per_cell": 2}, "--cpus-, --gpus- and --devices-per-cell are for --ray"),
        ("--ray nowhere", {"ray": "nowhere"}, "--ray nowhere: give HOST:PORT"),
        ("--ray 127.0.0.1:no", {"ray": "127.0.0.1:no"}, "--ray 127.0.0.1:no: give HOST:PORT"),
        (
            "--tracking --tracking-uri nowhere",
            {"tracking": True, "tracking_uri": "nowhere"},
            "--tracking-uri nowhere: MLflow needs an address",
        ),
        ("--set rounds", {"overrides": ["rounds"]}, "--set rounds: write key=value"),
        (
            "--set seed=1 --set seeds=[2]",
            {"overrides": ["seed=1", "seeds=[2]"]},
            "--set seeds=[2]: --set seed=... sets the same key",
        ),
        ("--set methods=[fedvag]", {"overrides": ["methods=[fedvag]"]}, "method 'fedvag'. Did you mean 'fedavg'?"),
        (
            '--set datasets=[{"name":"npz","path":"missing.npz"}]',
            {"overrides": ['datasets=[{"name":"npz","path":"missing.npz"}]']},
            "missing.npz",
        ),
        ("--set clients=1000", {"overrides": ["clients=1000"]}, "clients"),
        ("--set model=comet_cnn", {"overrides": ["model=comet_cnn"]}, "needs images of at least 16 x 16 pixels"),
    ],
    "sweep --study study.yaml --quiet": [
        ("--trials 0", {"trials": 0}, "--trials 0: should be 1 or more"),
        ("--timeout -1", {"timeout": -1.0}, "--timeout -1: should be 0 or more"),
        ("--set trails=3", {"overrides": ["trails=3"]}, "trails"),
        ("--out /proc/x", {"out": "/proc/x"}, "--out /proc/x: nothing can be written into /proc: No such"),
    ],
    "decide table.csv --label y --quiet": [
        ("", {}, "--site should name the column of sites"),
        ("--site s --minutes 0", {"site": "s", "minutes": 0}, "--minutes 0: should be above 0"),
        ("--site s --margin 0", {"site": "s", "margin": 0}, "--margin 0: should be above 0"),
        ("--site s --confidence 95", {"site": "s", "confidence": 95}, "--confidence 95: should be from 0.5"),
        ("--site s --score f1", {"site": "s", "score": "f1"}, "--score f1: should be one of accuracy"),
        ("--site s --seeds 1", {"site": "s", "seeds": 1}, "--seeds 1: should be from 2 to 100"),
        ("--site s --normalise all", {"site": "s", "normalise": "all"}, "--normalise all: should be per_client"),
    ],
    "report empty": [
        ("--margin -1", {"margin": -1}, "--margin -1: "),
        ("--target much", {"target": ["much"]}, "--target much: "),
        ("", {}, "empty is not a run"),
    ],
    "verify empty": [
        ("--cells -1", {"cells": -1}, "--cells -1: should be"),
        ("--jobs 0", {"jobs": 0}, "--jobs 0: should be 1 or more"),
        ("", {}, "empty is not a run"),
    ],
}
"""Of each command: further options, the same for Python, and what is said of them."""


@pytest.fixture
def folder(grid: Grid, write_study: WriteStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a grid, a study, a table, an empty folder and the run of another grid; without a GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    grid(methods=["fedavg", "local"])
    write_study()
    rows = "".join(f"{row % 7},{row % 2},{'uvw'[row % 3]}\n" for row in range(90))
    (tmp_path / "table.csv").write_text(f"a,y,s\n{rows}", encoding="utf-8")
    (tmp_path / "file").touch()
    for name in ("empty", "another"):
        (tmp_path / name).mkdir()
    store.write_json(tmp_path / "another" / "run.json", {"grid": "another", "cells": []})
    return tmp_path


@pytest.mark.parametrize(
    ("command", "options", "arguments", "expected"),
    [
        pytest.param(
            command, *case, id=f"{command.split()[0]} {case[0]}", marks=pytest.mark.long if "--ray" in case[0] else ()
        )
        for command, cases in MISTAKES.items()
        for case in cases
    ],
)
def test_both_refuse_a_mistake_in_the_same_words(
    bench_here: Command, folder: Path, command: str, options: str, arguments: dict[str, Any], expected: str
) -> None:
    """And neither writes anything."""
    before = sorted(folder.rglob("*"))
    said = bench_here(*command.split(), *options.split(), code=2)
    name, *words = [word for word in command.split() if not word.startswith("--")]
    common = {"label": words[1]} if name == "decide" else {}
    quiet = {"quiet": True} if "--quiet" in command else {}
    with pytest.raises(UserError) as error:
        getattr(bench, name)(words[0], **common, **quiet, **arguments)
    assert said.stderr == f"bench: {error.value}\n"
    assert expected in str(error.value)
    assert sorted(folder.rglob("*")) == before


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
