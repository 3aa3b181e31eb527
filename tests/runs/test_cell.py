import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from bench.engine.backends import backends
from bench.models.network import Network
from bench.plugin import MODELS
from bench.runs.cell import run_cell
from bench.runs.cell_federation import last_recordings, recordings, recordings_key
from bench.runs.events import Event
from bench.store import checkpoint, store
from tests.engine.problems import ONE_OF_A_KIND
from tests.engine.problems import QUICK as QUICK_HP
from tests.runs.conftest import Cell
from tests.runs.helpers import EVERY_ROUND, OPTIONS, TIMELINE, results, stop_after

FEW, MOMENTUM, CHANGES = "few clients, a checkpoint each round", "momentum, checkpoints at the stops", "changing data"
CONDITIONS: dict[str, tuple[float, dict[str, object]]] = {
    FEW: (0, {"participation": 0.5, "eval_every": 4}),
    MOMENTUM: (300, {"momentum": 0.5, "lr_decay": 0.9, "lr": 0.1}),
    CHANGES: (0, {"timeline": TIMELINE, "metrics": ["auroc", "nll"], "alpha": 0.2}),
}
CASES = [(method, conditions) for method in sorted(ONE_OF_A_KIND) for conditions in (FEW, MOMENTUM)]
CASES += [("ditto", CHANGES), ("ifca", CHANGES)]
QUICK = {("fedbuff", FEW)}


@pytest.mark.parametrize(
    ("method", "conditions"),
    [pytest.param(*case, marks=[] if case in QUICK else pytest.mark.long) for case in CASES],
)
def test_a_stopped_cell_ends_with_the_same_bytes(cell: Cell, tmp_path: Path, method: str, conditions: str) -> None:
    """All its tables and records, whatever it was asked for; of all methods `methods/test_checkpoint.py` proves it."""
    seconds, changes = CONDITIONS[conditions]
    settings = cell(method=method, hp=QUICK_HP.get(method, {}), **changes)
    options = EVERY_ROUND.model_copy(update={"checkpoint_seconds": seconds})
    assert run_cell(settings, tmp_path / "whole", options).state == "done"
    for versions, state in ((2, "interrupted"), (0, "interrupted"), (3, "interrupted"), (9, "done")):
        assert run_cell(settings, tmp_path / "parts", options, stop=stop_after(versions)).state == state
        assert sum(store.read_json(tmp_path / "parts" / "timing.json")["steps"].values()) > 0
    whole, parts = (
        {path.name: path.read_bytes() for path in (tmp_path / name).glob("*.[cj]s*") if path.name != "timing.json"}
        for name in ("whole", "parts")
    )
    assert parts == whole
    assert results(tmp_path / "parts").keys() <= whole.keys()
    assert ("changes.csv" in whole) == ("scores.csv" in whole) == (conditions == CHANGES)
    assert "going on after round 5" in (tmp_path / "parts" / "log.txt").read_text()
    steps = [store.read_json(tmp_path / name / "timing.json")["steps"] for name in ("whole", "parts")]
    assert sum(steps[0].values()) == sum(steps[1].values()) > 0
    assert not (tmp_path / "parts" / "checkpoint").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "other", "recorded"),
    [("fedprox", {"mu": 0.2}, False), ("apfl", {"adaptive": False}, True)],  # a loss receives `mu` as a tensor
)
def test_a_later_cell_of_the_process_records_no_step_again(
    method: str, other: dict[str, Any], recorded: bool, cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later cell has another seed and partition; its bytes are those of a new process."""
    monkeypatch.setattr(backends, "_RECORD_AFTER", 5)
    cohort, later = OPTIONS.model_copy(update={"executor": "cohort"}), cell(method=method, hp=other, seed=1, alpha=0.5)
    last_recordings.cache_clear()
    assert run_cell(later, tmp_path / "alone", cohort).state == "done"
    last_recordings.cache_clear()
    assert run_cell(cell(method=method), tmp_path / "first", cohort).state == "done"

    def record(*_: object) -> None:
        raise AssertionError("it records")

    monkeypatch.setattr("bench.engine.backends.recording.record", record)
    status = run_cell(later, tmp_path / "later", cohort)
    assert status.state == "done"
    assert any("it records" in warning for warning in status.warnings) == recorded
    expected = results(tmp_path / "alone")
    differ = {name for name, found in results(tmp_path / "later").items() if found != expected[name]}
    assert differ == ({"status.json"} if recorded else set())  # which has the warning


def test_recordings_that_no_cell_uses_are_forgotten(cell: Cell, tmp_path: Path) -> None:
    """Their recipes may contain numbers that no other cell has: an optimizer's momentum here."""
    last_recordings.cache_clear()
    counts = []
    for momentum in (0.0, 0.5, 0.9):
        settings = cell(method="fedprox", rounds=1, momentum=momentum)
        run_cell(settings, tmp_path / str(momentum), OPTIONS.model_copy(update={"executor": "cohort"}))
        counts.append(len(last_recordings(*recordings_key(settings, "cpu")).steps))
    assert counts == [1, 2, 2]


def _small_cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    body = nn.Sequential(nn.Conv2d(shape[0], 2, 3), nn.ReLU(), nn.Flatten())
    return Network(body, nn.Linear(2 * 4 * 4, classes))


@pytest.mark.long
@pytest.mark.parametrize(("model", "keeps"), [("logistic", True), ("small_cnn", False)])
def test_a_convolutional_network_s_steps_alone_are_not_kept_for_later_cells(
    model: str, keeps: bool, cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be many of them, one for each size of a short batch, and each is large."""
    monkeypatch.setattr(backends, "_RECORD_AFTER", 1)
    monkeypatch.setattr(MODELS, "_items", {**MODELS._items, "small_cnn": _small_cnn})
    settings = cell(method="fedprox", rounds=4, model=model)
    last_recordings.cache_clear()
    assert run_cell(settings, tmp_path / "alone", OPTIONS).state == "done"
    kept = last_recordings(*recordings_key(settings, "cpu"))
    assert any(step._recorded for step in kept.steps.values())
    assert recordings(settings, "cpu") is kept
    assert bool(kept.steps) == keeps
    run_cell(settings, tmp_path / "together", OPTIONS.model_copy(update={"executor": "cohort"}))
    assert not all(alone for _, alone in recordings(settings, "cpu").steps)


@pytest.mark.faults
@pytest.mark.parametrize(
    "damage",
    [
        "newest",
        "altered table",
        *(
            pytest.param(d, marks=pytest.mark.long)
            for d in ("both", "short table", "no status", "odd status", "a kill")
        ),
    ],
)
def test_damage_costs_time_and_no_bytes(cell: Cell, tmp_path: Path, damage: str) -> None:
    """Each attempt begins without recordings, as in a new process. A kill leaves tables that are ahead of the newest
    checkpoint, and a half-written line."""
    last_recordings.cache_clear()
    run_cell(cell(), tmp_path / "whole", EVERY_ROUND)
    folder = tmp_path / "damaged"
    last_recordings.cache_clear()
    run_cell(cell(), folder, EVERY_ROUND, stop=stop_after(4))
    generations = sorted((folder / "checkpoint").iterdir())
    assert [path.name for path in generations] == ["00000003", "00000004"]
    for path in {"newest": generations[1:], "both": generations}.get(damage, []):
        (path / "state.pt").write_bytes(b"broken")
    table = folder / "metrics.csv"
    if damage == "short table":
        store.write_text(table, "round\n")
    if damage == "altered table":
        store.write_text(table, table.read_text().replace("0.", "1.", 1))
    if damage in ("no status", "odd status"):
        (folder / "status.json").write_bytes(b"" if damage == "no status" else b"[1, \xff")
    if damage == "a kill":
        for name in ("metrics", "clients", "ledger"):
            with open(folder / f"{name}.csv", "a") as file:
                file.write("5,half a li")
        store.write_status(folder, replace(store.read_status(folder), state="running"))
    last_recordings.cache_clear()
    assert run_cell(cell(), folder, EVERY_ROUND).state == "done"
    assert results(folder) == results(tmp_path / "whole")
    log = (folder / "log.txt").read_text()
    goes_on = {"newest": 3, "no status": 4, "odd status": 4, "a kill": 4}.get(damage)
    assert (f"going on after round {goes_on}" in log) == (goes_on is not None)
    assert log.count("starting with round 1") == (1 if goes_on else 2)


def test_another_path_starts_again_and_says_so(cell: Cell, tmp_path: Path) -> None:
    run_cell(cell(), tmp_path, EVERY_ROUND, stop=stop_after(4))
    other = EVERY_ROUND.model_copy(update={"executor": "cohort"})
    assert run_cell(cell(), tmp_path, other).state == "done"
    log = (tmp_path / "log.txt").read_text()
    assert "another path (executor sequential -> cohort" in log
    assert log.count("starting with round 1") == 2
    assert "going on" not in log


def test_a_finished_cell_is_left_alone(cell: Cell, tmp_path: Path) -> None:
    run_cell(cell(), tmp_path, EVERY_ROUND)
    before = (tmp_path / "status.json").stat().st_mtime_ns
    events: list[Event] = []
    assert run_cell(cell(), tmp_path, EVERY_ROUND, report=events.append).state == "done"
    assert (tmp_path / "status.json").stat().st_mtime_ns == before
    assert [event.state for event in events] == ["done"]


@pytest.mark.faults
@pytest.mark.long
@pytest.mark.parametrize("keep", ["none", "all"])
def test_altered_results_are_not_used(cell: Cell, tmp_path: Path, keep: str) -> None:
    """If one digit of a finished cell's table changes, the cell counts as interrupted, and running it again restores
    the bytes."""
    options = EVERY_ROUND.model_copy(update={"keep": keep})
    settings = cell(rounds=2, metrics=["ece"])
    run_cell(settings, tmp_path, options)
    whole = results(tmp_path)
    for name in set(store.COLUMNS) - {"changes"}:  # of a timeline
        table = tmp_path / f"{name}.csv"
        before = table.read_text()
        table.unlink()
        assert store.read_status(tmp_path).state == "interrupted"
        table.write_text(before[:-2] + "x\n")
        status = store.read_status(tmp_path)
        assert (status.state, status.reason.partition(":")[0]) == ("interrupted", f"{name}.csv")
        assert run_cell(settings, tmp_path, options).state == "done"
        assert results(tmp_path) == whole


@pytest.mark.usefixtures("odd_methods")
def test_a_failure_keeps_its_traceback_and_is_tried_again(cell: Cell, tmp_path: Path) -> None:
    settings = cell(method="odd_raises", hp={"round": 4})
    status = run_cell(settings, tmp_path, EVERY_ROUND)
    assert (status.state, status.rounds) == ("failed", 3)
    assert re.fullmatch(r"RuntimeError: odd on purpose \(odd_methods\.py, line \d+\)", status.reason)
    assert "go_wrong" in (tmp_path / "error.txt").read_text()
    assert run_cell(settings, tmp_path, EVERY_ROUND).state == "failed"
    assert "going on after round 3" in (tmp_path / "log.txt").read_text()


def test_a_cell_that_diverges_is_finished(cell: Cell, tmp_path: Path) -> None:
    settings = cell(lr=1e38, momentum=0.99)
    status = run_cell(settings, tmp_path, EVERY_ROUND)
    assert status.state == "diverged"
    assert status.reason.startswith(f"round {status.rounds + 1}: ")
    assert run_cell(settings, tmp_path, EVERY_ROUND) == status


def test_missing_data_is_one_sentence(cell: Cell, tmp_path: Path) -> None:
    settings = cell(dataset_options={"path": str(tmp_path / "nothing.npz")})
    status = run_cell(settings, tmp_path / "cell", EVERY_ROUND)
    assert status.state == "failed"
    assert "nothing.npz" in status.reason
    assert "Traceback" not in (tmp_path / "cell" / "error.txt").read_text()


@pytest.mark.long
@pytest.mark.parametrize("keep", ["none", "server", "all"])
def test_what_is_kept_at_the_end(cell: Cell, tmp_path: Path, keep: str) -> None:
    settings = cell(method="fedper", hp={"personal": ["head"]}, model="mlp", model_options={"hidden": 8})
    run_cell(settings, tmp_path, EVERY_ROUND.model_copy(update={"keep": keep}))
    kept = list(checkpoint.load(tmp_path / "checkpoint"))
    assert len(kept) == (0 if keep == "none" else 1)
    body, head = 36 * 8 + 8, 8 * 3 + 3
    numbers = sum(tensor.numel() for one in kept for tensor in one.tensors.values())
    if keep == "server":
        assert numbers == body
    if keep == "all":
        assert numbers >= body + 4 * head


def test_tables_and_files_of_a_cell(cell: Cell, tmp_path: Path) -> None:
    status = run_cell(cell(eval_every=4), tmp_path, EVERY_ROUND)
    assert status.rounds == status.total == 6
    metrics = [line.split(",") for line in (tmp_path / "metrics.csv").read_text().splitlines()[1:]]
    assert list(dict.fromkeys(row[0] for row in metrics)) == ["4", "6"]  # the last round is always evaluated
    assert [line.split(",")[0] for line in (tmp_path / "ledger.csv").read_text().splitlines()[1:]] == list("123456")
    partition = store.read_json(tmp_path / "partition.json")
    assert partition["hash"] == status.partition["hash"]
    assert sum(partition["n_train"]) + sum(partition["n_validation"]) == 180
    assert [sum(row) for row in partition["counts"]] == partition["n_train"]
    assert store.read_json(tmp_path / "settings.json")["eval_every"] == 4
    assert store.read_json(tmp_path / "timing.json")["seconds"] > 0


@pytest.mark.long
def test_python_m_bench_cell_needs_few_packages(cell: Cell, environment: dict[str, str], tmp_path: Path) -> None:
    """On `npz` data, with all packages blocked that a minimal GPU machine may lack."""
    config = {"settings": cell(rounds=2).model_dump(), "folder": str(tmp_path / "cell"), "options": {"device": "cpu"}}
    (tmp_path / "cell.json").write_text(json.dumps(config))
    missing = ["rich", "typer", "mlflow", "sklearn", "scipy", "optuna", "matplotlib", "torchvision"]
    code = f"import sys, runpy\nsys.modules.update(dict.fromkeys({missing}))\n"
    code += "sys.argv = ['bench.runs.cell', 'cell.json']\n"
    code += "runpy.run_module('bench.runs.cell', run_name='__main__')\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "done: round 2/2" in done.stdout
    shutil.rmtree(tmp_path / "cell")
    config["options"] = {"divice": "cpu"}
    (tmp_path / "cell.json").write_text(json.dumps(config))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "divice" in done.stderr
    assert not (tmp_path / "cell").exists()
