"""The real command: whole runs in processes of their own, the rest in this one."""

import csv
import io
import json
import re
import shlex
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import yaml

from bench.cli import main
from bench.runs.cell import run_cell
from bench.runs.cell_options import Options
from bench.runs.progress import duration_text
from bench.store import store
from bench.store.provenance import cores
from tests.cli.conftest import WriteStudy
from tests.runs.conftest import Bench, Grid
from tests.runs.helpers import cells, contents, states

ENTRIES = [
    {"name": "odd_raises", "round": 2},
    {"name": "odd_dies", "round": 3},
    {"name": "fedavg", "label": "plain"},
    "fedper",
]


@pytest.mark.faults
@pytest.mark.usefixtures("odd_methods")
def test_a_grid_from_start_to_results(bench: Bench, bench_here: Bench, grid: Grid, tmp_path: Path) -> None:
    """Two workers, four cells: one fails, one takes its process with it, and the others do not notice."""
    file, run = grid(methods=ENTRIES), tmp_path / "run"
    common = ("run", "--grid", file, "--out", run, "--device", "cpu", "--jobs", 2)
    first = bench(*common, code=1)
    assert states(run) == {"odd_raises": "failed", "odd_dies": "failed", "plain": "done", "fedper": "done"}
    assert "4 cells to run" in first.stderr
    assert "plain blobs alpha=1 seed=0: done, round 6/6, GM 0." in first.stderr
    assert "\x1b" not in first.stderr  # no terminal: plain lines
    assert "Traceback" not in first.stderr
    assert "odd_raises blobs alpha=1 seed=0: failed: RuntimeError: odd on purpose" in first.stderr
    assert "odd_dies blobs alpha=1 seed=0: failed: its worker process was killed by SIGKILL" in first.stderr
    assert "plain" in first.stdout
    check_contents(run, file)
    check_queries(bench_here, run)

    before = contents(run)
    (cells(run)["plain"].folder / "checkpoint" / "00000005").mkdir(parents=True)  # of a kill after the last status
    again = bench_here(*common, "--only", "label=plain,seed=0")
    assert "0 cells to run, 1 finished before" in again.stderr
    assert not (cells(run)["plain"].folder / "checkpoint").exists()
    (cells(run)["plain"].folder / "metrics.csv").write_text("spoiled")
    assert "metrics.csv: changed or damaged since" in bench_here("status", run).stdout
    fresh = bench(*common, "--only", "label=plain,seed=0", "--fresh", "--quiet")
    assert fresh.stderr == fresh.stdout == ""
    assert contents(run) == before
    assert len(store.read_json(run / "run.json")["history"]) == 3


def check_contents(run: Path, file: Path) -> None:
    """What a run says of itself; and its cells have the bytes that they have when run one by one in this process."""
    info = store.read_json(run / "run.json")
    assert (info["grid"], info["source"]) == ("small", file.read_text())
    assert info["command"].startswith("bench run --grid")
    assert [entry["label"] for entry in info["cells"]] == ["odd_raises", "odd_dies", "plain", "fedper"]
    assert info["machine"]["cores"] >= 1
    assert "torch" in info["versions"]
    for cell in (cells(run)["plain"], cells(run)["fedper"]):
        run_cell(cell.settings, run.parent / "alone" / cell.id, Options(device="cpu"))
    alone = contents(run.parent / "alone")
    assert len(alone) == 18
    assert alone == {name: content for name, content in contents(run).items() if name in alone}


def check_queries(bench: Bench, run: Path) -> None:
    """Status, log and results."""
    status = bench("status", run).stdout
    assert "4 cells: 2 done, 2 failed" in status or "4 cells: 2 failed, 2 done" in status
    assert "RuntimeError: odd on purpose" in status
    log = bench("log", run, cells(run)["odd_raises"].id[:8]).stdout
    assert "starting with round 1" in log
    assert "Traceback" in log
    assert "has no cell 'nothing'" in bench("log", run, "nothing", code=2).stderr
    rows = list(csv.DictReader(io.StringIO(bench("results", run, "--csv").stdout)))
    assert {(row["label"], row["status"], row["selection"]) for row in rows} == {
        ("odd_raises", "failed", ""),
        ("odd_dies", "failed", ""),
        *((label, "done", rule) for label in ("plain", "fedper") for rule in ("validation", "peak", "tail", "last")),
    }
    as_json = json.loads(bench("results", run, "--json").stdout)
    assert [row["value"] for row in as_json] == [float(row["value"]) if row["value"] else None for row in rows]
    assert "not in the table: 2 failed" in bench("results", run).stdout


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (
            ("run", "small.yaml"),
            "the grid is missing, a file or the name of a built-in one: bench run --grid NAME. Files here: small",
        ),
        (
            ("show",),
            "the grid is missing, a file or the name of a built-in one: bench show NAME. Files here: small.yaml",
        ),
        (("sweep",), "the study is missing, a file or the name of a built-in one: bench sweep --study NAME."),
        (("run", "--grid", "smal"), "no built-in grid of that name. Did you mean 'small.yaml'?"),
        (("run", "--grid", "small.yaml", "--plugin", "mne.py"), "there is no file mne.py"),
        (("status", "runs"), "runs is not a run: it has no run.json. Runs in it: runs/first"),
        (("report", "runs/frist"), "runs/frist is not a run: there is no such folder. Did you mean 'runs/first'?"),
        (("results", "other"), "there is no such folder. Give the folder that `bench run` printed."),
    ],
)
def test_a_missing_or_misspelt_file_is_answered_with_those_that_are_there(
    bench_here: Bench, grid: Grid, tmp_path: Path, command: tuple[str, ...], says: str
) -> None:
    grid(methods=["fedavg"])
    (tmp_path / "mine.py").touch()
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "run.json").touch()
    error = bench_here(*command, code=2).stderr.splitlines()[-1]
    assert error.startswith("bench: ")
    assert says in error


def test_an_option_counts_once(bench_here: Bench, grid: Grid) -> None:
    done = bench_here("run", "--grid", grid(methods=["fedavg"]), "--jobs", "2", "--jobs", "3", code=2)
    assert "--jobs is given 2 times, and only one can count" in done.stderr


def test_settings_without_a_point_are_said_beforehand(bench_here: Bench, grid: Grid) -> None:
    common = ("run", "--grid", grid(methods=["fedavg"], seeds=[0, 1]), "--out", "run", "--dry-run", "--device", "cpu")
    said = "a round has no local steps but those that the method counts itself\n"
    epochs = ("--set", "epochs=0")
    assert bench_here(*common, *epochs).stderr == f"warning: fedavg: epochs = 0: {said}"
    assert bench_here(*common, *epochs, "--quiet").stderr == ""
    assert bench_here(*common, *epochs, "--set", "steps=0").stderr == f"warning: fedavg: steps = 0: {said}"
    assert bench_here(*common, *epochs, "--set", "steps=1").stderr == ""


@pytest.mark.parametrize("error", [FileNotFoundError(2, "gone", "ours.json"), PermissionError(1, "no process")])
def test_a_bug_of_our_own_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: OSError
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "status", "run"])
    monkeypatch.setattr("bench.results.results.load_run", Mock(side_effect=error))
    with pytest.raises(type(error)):
        main()
    assert capsys.readouterr().err == ""


def test_dry_run_needs_no_data(bench_here: Bench, grid: Grid, tmp_path: Path) -> None:
    file = grid(methods=["fedavg"], datasets=["cifar10"], model="cnn", clients=20)
    done = bench_here("run", "--grid", file, "--out", tmp_path / "run", "--dry-run", "--device", "cpu")
    assert "1 cells, 0 done before, 1 to run, 1 side by side: about" in done.stdout
    assert "missing, for 1 of 1: " in done.stdout
    assert done.stdout.startswith("1 cells of 1 methods on cifar10: ")
    assert "Time: an estimate to within a factor of two or so" in done.stdout
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_dry_run_has_a_line_per_task_and_counts_what_is_done(bench_here: Bench, bench: Bench, grid: Grid) -> None:
    file = grid(methods=["fedavg", "local"], seeds=[0, 1], alphas=[1.0, 0.3], rounds=2)
    common = ("run", "--grid", file, "--out", "run", "--device", "cpu")
    bench(*common, "--only", "method=fedavg,alpha=1.0")
    lines = bench_here(*common, "--dry-run").stdout.splitlines()
    assert lines[0] == "8 cells of 2 methods on npz: 16 rounds"
    assert lines[1].startswith("blobs alpha=1: 4 cells, 2 done, 2 rounds of 4 of 4 clients with about ")
    assert lines[2].startswith("blobs alpha=0.3: 4 cells, 2 rounds of 4 of 4 clients with about ")
    assert lines[3].startswith("8 cells, 2 done before, 6 to run, ")
    every = bench_here(*common, "--dry-run", "--verbose").stdout.splitlines()
    assert every[1] == "fedavg blobs alpha=1 seed=0: 1 cells, 1 done"
    assert sum(" of computing, " in line for line in every) == 6
    assert sum(" seed=" in line for line in every) == 8


def test_dry_run_says_what_this_machine_has_too_little_of(
    bench_here: Bench, grid: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = ("run", "--grid", grid(methods=["fedavg"], rounds=1), "--out", tmp_path / "run", "--device", "cpu")
    assert "missing" not in bench_here(*common, "--dry-run").stdout
    monkeypatch.setattr("bench.runs.forecast.estimate.memory_here", lambda: 10**6)
    said = bench_here(*common, "--dry-run").stdout
    assert "this machine has 1.0 MB: take fewer --jobs, fewer clients or a smaller model" in said


@pytest.mark.parametrize(
    ("what", "name"), [("methods", "fedavg"), ("datasets", "npz"), ("models", "logistic"), ("grids", "quickstart")]
)
def test_catalogues(bench_here: Bench, what: str, name: str) -> None:
    rows = json.loads(bench_here(what, "--json").stdout)
    names = [row["name"] for row in rows]
    assert name in names
    assert [row["name"] for row in rows if not row["about"] or "see `_" in row["about"]] == []
    text = bench_here(what).stdout
    assert all(name in text for name in names)


def test_what_is_taken_of_pretrained_weights_reset_and_left_is_shown(bench_here: Bench, tmp_path: Path) -> None:
    """Once for all cells of a model and a file, as comments of YAML; a file that does not fit is no error here."""
    grid = {"methods": ["fedavg", "ditto"], "alphas": [1.0], "model": "mlp", "pretrained": "weights.pt"}
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(grid), encoding="utf-8")
    assert "#   there is no file of weights weights.pt" in bench_here("show", "grid.yaml").stdout
    shapes = {"fc1.weight": (200, 64), "fc1.bias": (200,), "fc.weight": (7, 200), "fc.bias": (7,), "aux.weight": (2,)}
    torch.save({f"module.{name}": torch.zeros(shape) for name, shape in shapes.items()}, tmp_path / "weights.pt")
    shown = bench_here("show", "grid.yaml").stdout
    assert shown.splitlines()[-4:] == [
        "# pretrained weights.pt for model mlp of dataset digits:",
        "#   taken     2  body.fc1.weight is module.fc1.weight, ...",
        "#   reset     2  head.weight (10, 200), head.bias (10,)",
        "#   left      3  module.fc.weight (7, 200), module.fc.bias (7,), module.aux.weight (2,)",
    ]
    assert yaml.safe_load(shown)["count"] == 2


@pytest.mark.long
def test_protocols(bench_here: Bench) -> None:
    """What is known of each scenario; the short command is one that the command line takes, on data that are here."""
    assert "pfllib_table1 (504 cells), pfllib_table2 (504 cells)" in bench_here("protocol", "list").stdout
    flower = bench_here("protocol", "check", "flower_fedrep", "--no-hours").stdout
    assert "  cifar10 2 classes: 22 known, 1 assumed, 5 deviating\n" in flower
    assert "  cifar100 20 classes: 22 known, 1 assumed, 6 deviating; not in all scenarios: deviating: dropout" in flower
    Path("sets/cifar-100-python").mkdir(parents=True)
    Path("sets/cifar-100-python/train").touch()
    said = bench_here("protocol", "check", "pfllib", "--no-hours", "--data-root", "sets").stdout
    assert "`bench run --grid pfllib_table1.yaml --data-root sets`; one data set: `--only dataset=cifar100`" in said
    words = shlex.split(said.rstrip().rstrip("`").rpartition("`")[2])
    assert words[:2] == ["bench", "run"]
    assert words[3:6] == ["pfllib_table1.yaml", "--only", "dataset=cifar100"]
    assert words[-2:] == ["--data-root", "sets"]
    settings = [text for text, before in zip(words[1:], words, strict=False) if before == "--set"]
    shown = bench_here("show", "pfllib_table1", *(part for text in settings for part in ("--set", text))).stdout
    assert "name: pfllib_short\n" in shown
    assert "published: null\n" in shown


@pytest.mark.parametrize(
    ("seconds", "text"), [(45, "45 s"), (700, "12 min"), (12000, "3 h 20 min"), (190800, "2 d 5 h")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.long
@pytest.mark.skipif(cores() < 2, reason="needs two cores")
@pytest.mark.usefixtures("odd_methods")
def test_one_cell_or_trial_trains_several_clients_at_a_time(
    bench: Bench, grid: Grid, write_study: WriteStudy, tmp_path: Path
) -> None:
    """A core that no cell has is a cell's second one; so it is for the one cell that is reported in the end."""
    file = grid(methods=["odd_together"], rounds=1)
    study = write_study({"methods": ["odd_together"]}, trials=1, pruner="none", report_seeds=[0])
    common = ("--device", "cpu", "--executor", "sequential", "--no-tracking")
    bench("run", "--grid", file, "--out", tmp_path / "run", *common)
    bench("sweep", "--study", study, "--out", tmp_path / "tuned", "--jobs", 1, "--no-page", *common)
    assert states(tmp_path / "run") == {"odd_together": "done"}
    assert set(states(tmp_path / "tuned").values()) == {"done"}


def test_finished_cells_of_other_settings_are_named_and_can_be_removed(
    bench_here: Bench, grid: Grid, tmp_path: Path
) -> None:
    """A changed setting makes new cells; the finished ones do not vanish without a word."""
    run = tmp_path / "run"
    common = ("run", "--out", run, "--device", "cpu", "--jobs", 1)
    bench_here(*common, "--grid", grid(methods=["fedavg", "fedper"], rounds=1))
    changed = bench_here(*common, "--grid", grid(methods=["fedavg"], rounds=1, lr=0.2))
    assert "2 finished cells here belong to other settings, code or data: kept, not shown" in changed.stderr
    assert "fedper" not in bench_here("status", run).stdout
    listed = bench_here("status", run, "--all").stdout
    assert "of earlier settings, code or data (2 cells" in listed
    assert "fedper blobs alpha=1 seed=0: done, round 1/1" in listed
    assert "2 cells would be removed" in bench_here("clean", run).stdout
    assert len(list(run.glob("*/settings.json"))) == 3
    assert "2 cells removed" in bench_here("clean", run, "--yes").stdout
    assert [folder.name for folder in run.iterdir() if folder.is_dir()] == [cells(run)["fedavg"].id]
    assert [folder.parent.name for folder in run.glob("*/settings.json")] == [cells(run)["fedavg"].id]
    assert "nothing to remove" in bench_here("clean", run, "-y").stdout
    again = bench_here(*common, "--grid", grid(methods=["fedavg"], rounds=1, lr=0.2))
    assert "0 cells to run, 1 finished before" in again.stderr
    assert "belong to other settings" not in again.stderr


def test_all_mistakes_of_a_study_are_said_at_once(bench_here: Bench, tmp_path: Path) -> None:
    """Of its keys, its seeds, its space and the grid that stands in it."""
    (tmp_path / "study.yaml").write_text(
        "seeds: [1, 2]\nreport_seeds: [2]\ntrails: 3\nsampler: tpee\nspace:\n  lr: [0.1, 0]\n"
        "grid:\n  methods: [fedavgg]\n  alphas: [1]\n  rounds: x\n",
        encoding="utf-8",
    )
    said = bench_here("sweep", "--study", "study.yaml", "--quiet", code=2).stderr.splitlines()
    assert [re.findall(r"study\.yaml:(\d+):", line)[0] for line in said] == ["2", "3", "4", "6", "8", "10"]
