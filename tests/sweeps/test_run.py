"""Trials in the worker pool: what is told to Optuna, what is pruned, and what a killed command leaves behind."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from optuna.storages._rdb.models import TrialParamModel
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import event

from bench.api import with_name
from bench.data import Dataset, Split
from bench.errors import UserError
from bench.plugin import METHODS, PARTITIONS
from bench.results.pack import unpack
from bench.results.results import load_run
from bench.rng import generator, key
from bench.runs.cell import run_cell
from bench.runs.cell_options import Options
from bench.runs.plan import PlannedCell
from bench.runs.run_folder import write_run
from bench.store import store
from bench.store.tables import read_table
from sweeps.cells import list_cells
from sweeps.fair import budget_table, check_blind, choose, finalists, further_cells, reported_cells
from sweeps.run import STARTUP_TRIALS, Tuner, _sampler, best_value, mean_curve, open_studies
from sweeps.study import Study
from sweeps.study_reader import load_study
from tests.conftest import ROOT
from tests.runs.helpers import CHILDREN, until, wait_for
from tests.sweeps.conftest import Write
from tests.sweeps.helpers import IDENTITIES, OPTIONS, run, trials
from tests.warm import PATIENCE, Start

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")

RATES = [0.3, 0.2, 0.4, 0.25, 0.35, 1e-6, 1e300]
"""The sixth learns nothing, the last one blows up."""


def facts(found: list[FrozenTrial]) -> list[tuple[object, ...]]:
    """All of a trial but its times and its worker."""
    return [
        (one.number, one.params, one.state.name, one.values, one.intermediate_values, one.user_attrs.get("cells"))
        for one in found
    ]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="asks Linux which files are open")
def test_a_study_s_file_is_not_kept_open(write: Write, tmp_path: Path) -> None:
    """Python 3.13 warns of connections that nobody closes."""
    study = load_study(str(write()), [])
    studies = open_studies(study, f"sqlite:///{tmp_path}/study.db")
    assert all(one.get_trials() == [] for one in studies.values())
    kept = {os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    assert str(tmp_path.resolve() / "study.db") not in kept


@pytest.mark.long
def test_a_study_with_a_poor_and_a_diverging_trial(write: Write, tmp_path: Path) -> None:
    file = write(sampler="grid", pruner="median", trials=len(RATES), space={"lr": RATES}, grid={"methods": ["fedavg"]})
    study, folder = load_study(str(file), []), tmp_path / "run"
    tuner, studies, said = run(study, folder)
    assert (tuner.failed, tuner.elsewhere()) == ([], 0)
    found = trials(study, folder)
    assert [trial.params["lr"] for trial in found] == RATES
    assert [trial.state for trial in found] == [TrialState.COMPLETE] * 5 + [TrialState.PRUNED] * 2
    assert len(said) == len(RATES)

    # by hand: of the mean over the two seeds, the best mean of up to five rounds
    first = [folder / cell for cell in found[0].user_attrs["cells"]]
    by_hand = pd.concat([_validation(cell, "pm") for cell in first], axis=1).mean(axis=1)
    assert found[0].values == [pytest.approx(by_hand.rolling(5, min_periods=1).mean().max(), abs=1e-11)]
    assert found[0].intermediate_values == pytest.approx(by_hand.to_dict(), abs=1e-15)
    assert best_value(mean_curve(first, "gm", study.arms[0].cells[0])) == found[0].user_attrs["gm"]

    # the poor one is stopped after the first round that may be judged, the other with the reason
    assert list(found[5].intermediate_values) == [1, 2]
    assert "round 2: " in found[5].user_attrs["reason"]
    assert "diverged: round" in found[6].user_attrs["reason"]

    # trials are cells of the run store, and another command has nothing to do
    listed = {cell.id for cell in load_run(folder).cells}
    assert {cell for trial in found for cell in trial.user_attrs["cells"]} == listed
    assert run(study, folder)[2] == []

    (choice,) = choose(study, studies, folder)
    assert choice.best is not None
    assert choice.best.values == [max(trial.values[0] for trial in found[:5])]
    assert {cell.lr for cell in reported_cells(study, [choice])} == {choice.best.params["lr"]}
    assert {cell.seed for cell in reported_cells(study, [choice])} == {0, 1}


@pytest.mark.long
def test_a_trial_that_ran_to_its_end_is_complete(write: Write, tmp_path: Path) -> None:
    """However poor its last round is: there is nothing left to spare, and an earlier mean may be the best of all."""
    grid = {"methods": ["fedavg"], "eval_every": 5}
    file = write(sampler="grid", pruner="median", trials=6, space={"lr": RATES[:6]}, grid=grid)
    study, folder = load_study(str(file), []), tmp_path / "run"
    run(study, folder)
    last = trials(study, folder)[-1]
    assert list(last.intermediate_values) == [5]
    assert last.state == TrialState.COMPLETE
    assert last.values == pytest.approx(list(last.intermediate_values.values()))


@pytest.mark.long
def test_methods_take_turns_and_have_the_same_budget(write: Write, tmp_path: Path) -> None:
    file = write(grid={"methods": ["fedavg", "local"], "rounds": 1}, trials=2, objective="gm")
    study, folder = load_study(str(file), []), tmp_path / "run"
    _, studies, said = run(study, folder)
    assert [line.partition(" (")[0] for line in said] == [
        f"{method} blobs alpha=1 trial {number}, {number + 1} of 2"
        for number in range(2)
        for method in ("fedavg", "local")
    ]
    table = budget_table(study, choose(study, studies, folder))
    assert [entries[1].value for _, entries in table.rows] == [2, 2]
    assert table.notes[0] == "Every method had the same number of trials of the same length."
    more = load_study(str(file), [], trials=3)
    assert len(run(more, folder)[2]) == 2  # the earlier trials count


@pytest.mark.long
def test_a_failed_trial_has_no_result_and_is_tried_again(write: Write, tmp_path: Path) -> None:
    """More clients than samples: the command itself would refuse it before the first trial."""
    file = write(grid={"methods": ["fedavg"], "clients": 1000}, trials=2)
    study, folder = load_study(str(file), []), tmp_path / "run"
    for _ in range(2):
        tuner, studies, _ = run(study, folder)
        assert [reason.partition(": ")[0] for reason in tuner.failed] == [
            f"fedavg blobs alpha=1 trial {number}" for number in range(2)
        ]
        assert [trial.state for trial in trials(study, folder)] == [TrialState.RUNNING] * 2
        assert choose(study, studies, folder)[0].best is None
    tuner, _, _ = run(study, folder, timeout=0.0)
    assert tuner.elsewhere() == 0  # nobody has them any more, so nobody else would write the report


@pytest.mark.long
def test_trials_of_the_same_settings_share_their_cells(write: Write, tmp_path: Path) -> None:
    file = write(grid={"methods": ["fedavg"], "rounds": 2}, space={"batch_size": [10, 20]}, sampler="random", trials=3)
    study, folder = load_study(str(file), []), tmp_path / "run"
    run(study, folder)
    found = trials(study, folder)
    values = {trial.params["batch_size"]: trial.values for trial in found}
    assert [trial.values for trial in found] == [values[trial.params["batch_size"]] for trial in found]
    logs = [path.read_text() for path in folder.glob("*/log.txt")]
    assert len(logs) == 2 * len(values)
    assert all(log.count("starting with round 1") == 1 for log in logs)


def test_no_trial_begins_after_the_time_is_up(write: Write, tmp_path: Path) -> None:
    tuner, _, said = run(load_study(str(write()), []), tmp_path / "run", timeout=0)
    assert (tuner.failed, tuner.elsewhere(), said) == ([], 0, [])


@pytest.mark.long
@pytest.mark.faults
def test_killed_at_any_moment_nothing_is_lost_or_repeated(write: Write, tmp_path: Path) -> None:
    """One worker finds the same trials, with the same curves, whether it was killed or not."""
    space = {"lr": {"low": 1e-5, "high": 0.5, "log": True}, "fedprox.mu": "own"}
    study = load_study(str(write(space=space, trials=12, pruner="median")), [])
    run(study, tmp_path / "whole")
    for begun, later in zip((4, 8), generator("tests", "sweeps", "kill").uniform(0, 0.2, 2), strict=True):
        _run_and_kill(study, tmp_path / "killed", begun, later)
    run(study, tmp_path / "killed")
    found = trials(study, tmp_path / "killed")
    assert facts(found) == facts(trials(study, tmp_path / "whole"))
    assert {trial.state.name for trial in found} == {"COMPLETE", "PRUNED"}
    complete = [trial for trial in found if trial.state == TrialState.COMPLETE]
    logs = [
        (tmp_path / "killed" / cell / "log.txt").read_text() for one in complete for cell in one.user_attrs["cells"]
    ]
    # A kill between the last status and the line in the log leaves none, and nothing is done again.
    assert all(log.count("done after 5 rounds") <= 1 for log in logs)
    assert sum(log.count("done after 5 rounds") for log in logs) >= len(logs) - 2


def _take_and_die(study: Study, folder: Path, writes: int) -> None:
    """Take a trial, and kill this process before it writes the trial's values number `writes`; 0: at the end."""
    studies = open_studies(study, f"sqlite:///{folder}/study.db")
    (folder / "workers" / "dying").mkdir(parents=True)
    count = 0

    def kill(*_: object) -> None:
        nonlocal count
        count += 1
        if count == writes:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(TrialParamModel, "before_insert", kill)
    with store.locked(folder / "workers" / "dying"):
        Tuner(study, studies, folder, OPTIONS, IDENTITIES, None, print, worker="dying")._next_trial()
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.long
@pytest.mark.faults
@pytest.mark.parametrize(
    ("sampler", "before"), [("tpe", 0), pytest.param("tpe", 10, marks=pytest.mark.slow), ("nsga2", 10)]
)
def test_killed_between_two_values_a_trial_has_the_same_point(
    write: Write, tmp_path: Path, sampler: str, before: int
) -> None:
    """A trial that another process began: after so many finished ones, with all three values or two of them stored."""
    space = {"lr": {"low": 1e-5, "high": 0.5, "log": True}, "momentum": {"low": 0.0, "high": 0.9}, "fedprox.mu": "own"}
    objective = ["pm", "gm"] if sampler == "nsga2" else "pm"
    study = load_study(str(write(space=space, trials=99, sampler=sampler, objective=objective)), [])
    points = {}
    for writes in (0, 3):
        folder = tmp_path / str(writes)
        folder.mkdir()
        write_run(folder, study.described_grid, [])
        (opened,) = open_studies(study, f"sqlite:///{folder}/study.db").values()
        for number in range(before):
            given = {"lr": 0.01 * (1 + number), "momentum": 0.08 * number, "fedprox.mu": 0.02 * (1 + number)}
            opened.enqueue_trial(given)
            one = opened.ask()
            for dimension in study.arms[0].dimensions:
                dimension.suggest(one)
            opened.tell(one, [0.5 + 0.04 * number] * len(study.metrics))
        child = CHILDREN.Process(target=_take_and_die, args=(study, folder, writes))
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        (begun,) = [one for one in trials(study, folder) if one.state == TrialState.RUNNING]
        assert len(begun.params) == (writes - 1 if writes else 3)
        (folder / "workers" / "next").mkdir()
        studies = open_studies(study, f"sqlite:///{folder}/study.db")
        running = Tuner(study, studies, folder, OPTIONS, IDENTITIES, None, print, worker="next")._next_trial()
        assert running is not None
        assert running.trial.number == before
        points[writes] = running.trial.params
    assert points[3] == points[0]


@pytest.mark.long
@pytest.mark.faults
def test_a_stopped_sweep_goes_on(write: Write, start: Start, tmp_path: Path) -> None:
    file, folder = write(grid={"rounds": 300}, trials=2), tmp_path / "run"
    with start("--study", file, "--jobs", 1, "--out", folder) as process:
        wait_for(process, folder, 3)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    assert f"The same command goes on: bench sweep --device cpu --no-tracking --study {file}" in err
    assert "Traceback" not in err
    (trial,) = trials(load_study(str(file), []), folder)
    assert trial.state == TrialState.RUNNING
    assert not store.is_locked(folder / "workers" / trial.user_attrs["worker"])


@pytest.mark.long
def test_two_workers_share_a_study(write: Write, start: Start, tmp_path: Path) -> None:
    file, folder = write(trials=6), tmp_path / "run"
    arguments = ("--study", file, "--jobs", 1, "--out", folder)
    with start(*arguments) as first, start(*arguments) as second:
        ends = [process.communicate(timeout=PATIENCE) for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), ends
    found = trials(load_study(str(file), []), folder)
    assert [trial.state for trial in found] == [TrialState.COMPLETE] * 6
    assert len({trial.params["lr"] for trial in found}) == 6
    assert (folder / "report" / "index.html").exists()
    assert "Tuned for PM: only these are marked." in (folder / "report" / "main.md").read_text(encoding="utf-8")
    logs = [path.read_text() for path in folder.glob("*/log.txt")]
    assert len(logs) == (6 + 3) * 2 + 2
    assert all(log.count("starting with round 1") == 1 for log in logs)


def _run_and_kill(study: Study, folder: Path, begun: int, later: float) -> None:
    """In a process that is killed so many seconds after so many cells have begun."""
    process = CHILDREN.Process(target=run, args=(study, folder))
    process.start()
    until(lambda: len(list(folder.glob("*/log.txt"))) >= begun)
    process.join(later)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.long
def test_successive_halving_keeps_the_better_third_going(write: Write, tmp_path: Path) -> None:
    """Trials report after each round; the rung after the first round lets a third of those seen so far pass."""
    rates = [0.3, 0.2, 1e-6, 0.4]
    file = write(sampler="grid", pruner="halving", trials=len(rates), space={"lr": rates}, grid={"methods": ["fedavg"]})
    study, folder = load_study(str(file), []), tmp_path / "run"
    run(study, folder)
    found = trials(study, folder)
    assert found[0].state == TrialState.COMPLETE
    assert found[2].state == TrialState.PRUNED
    assert max(found[2].intermediate_values) < max(found[0].intermediate_values)


def _validation(cell: Path, metric: str) -> "pd.Series[float]":
    rows = pd.read_csv(cell / "metrics.csv", keep_default_na=False)
    rows = rows[(rows["split"] == "validation") & (rows["quantity"] == "accuracy") & (rows["metric"] == metric)]
    return rows[rows["mean"] == "train_size"].set_index("round")["value"]


@pytest.mark.long
def test_the_defaults_are_trial_0_and_tpe_guesses_before_eight_trials_are_over(write: Write, tmp_path: Path) -> None:
    """Optuna's own start-up of ten made a study of eight trials a random search."""
    space = {"lr": {"low": 0.01, "high": 1.0, "log": True}}
    file = write(grid={"methods": ["fedavg"], "rounds": 1}, trials=8, space=space)
    study, folder = load_study(str(file), []), tmp_path / "run"
    run(study, folder)
    found = trials(study, folder)
    assert found[0].params == {"lr": 0.1}
    at_random = load_study(str(file), ["sampler=random"])
    for number in range(1, 8):
        sampler = _sampler("random", key(0, study.arms[0].draws, "sampler", number) % 2**32)
        drawn = sampler.sample_independent(
            open_studies(at_random, f"sqlite:///{folder}/other.db")[at_random.arms[0].name],
            found[number], "lr", found[number].distributions["lr"],
        )  # fmt: skip
        assert (drawn == found[number].params["lr"]) == (number < STARTUP_TRIALS)


def drawn(study: Study, folder: Path, count: int) -> list[dict[str, Any]]:
    """The settings of the first trials of a study's first arm, before any has ended."""
    folder.mkdir()
    studies = open_studies(study, f"sqlite:///{folder}/study.db")
    tuner = Tuner(study, studies, folder, OPTIONS, IDENTITIES, None, print, worker="w")
    arm, found = study.arms[0], []
    for _ in range(count):  # one after the other, as each trial has a sampler of its own
        trial = tuner._new_trial(arm, studies[arm.name].get_trials())
        found.append({one.key.rpartition(".")[2]: one.suggest(trial) for one in arm.dimensions})
    return found


def test_names_seed_nothing(write: Write, arrays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Studies without a name in two folders, with another name, on a copy of the data or of the same method under
    another name try the same settings; with another `sampler_seed`, others."""
    monkeypatch.setitem(METHODS._items, "twin", METHODS.get("fedprox"))
    content = yaml.safe_load(write().read_text(encoding="utf-8"))
    copy = {"datasets": [{"name": "npz", "path": shutil.copy(arrays, tmp_path / "copy.npz")}]}
    studies = {
        "first": with_name(content, "study", tmp_path / "first"),
        "second": with_name(content, "study", tmp_path / "second"),
        "copy": {**content, "grid": {**content["grid"], **copy}},
        "twin": {**content, "grid": {**content["grid"], "methods": ["twin"]}},
        "reseeded": {**content, "sampler_seed": 1},
    }
    found = {name: drawn(load_study(one, []), tmp_path / name, 3) for name, one in studies.items()}
    assert found["first"] == found["second"] == found["copy"] == found["twin"]
    assert len({str(trial) for trial in found["first"]}) == 3
    assert found["first"][0] == found["reseeded"][0]  # the published settings
    assert found["first"][1:] != found["reseeded"][1:]


def test_the_league_draws_what_its_entries_tried(tmp_path: Path) -> None:
    """Trials before TPE guesses; an entry that is computed again is then the same."""
    unpack(ROOT / "reports" / "league" / "entries" / "league_2_small" / "fedavg.tar.xz", tmp_path / "entry")
    table = pd.read_csv(tmp_path / "entry" / "trials_0.csv")
    tried = table[table["column"] == "lr"]["value"].tolist()
    again = drawn(load_study("league_2_small", ["methods=[fedavg]"]), tmp_path / "again", STARTUP_TRIALS)
    assert [trial["lr"] for trial in again] == pytest.approx(tried[:STARTUP_TRIALS], abs=1e-6)


@pytest.mark.parametrize("score", ["nll", pytest.param("macro_f1", marks=pytest.mark.long)])
def test_a_study_tunes_for_the_score_that_chooses_rounds(score: str, write: Write, tmp_path: Path) -> None:
    """By hand from the trials' tables; the smallest of a cost is the best. The best trial is chosen by it, too."""
    grid: dict[str, Any] = {"methods": ["fedavg"], "rounds": 3, "metrics": [score], "select_by": score}
    file = write(sampler="grid", trials=None, space={"lr": [1e-3, 0.1, 0.5]}, grid=grid)
    study, folder = load_study(str(file), []), tmp_path / "run"
    _, studies, _ = run(study, folder)
    (arm,) = study.arms
    values = {}
    for trial in studies[arm.name].get_trials():
        curves = []
        for cell in trial.user_attrs["cells"]:
            table = read_table(folder / cell, "scores")
            place = (table["metric"] == "pm") & (table["on"] == "local") & (table["mean"] == "train_size")
            rows = table[place & (table["split"] == "validation") & (table["quantity"] == score)]
            curves.append(rows.set_index("round")["value"])
        mean = pd.concat(curves, axis=1).mean(axis=1) * (-1 if score == "nll" else 1)
        values[trial.number] = mean.rolling(5, min_periods=1).mean().max()
        assert trial.values == [pytest.approx(values[trial.number], abs=1e-11)]
    (choice,) = choose(study, studies, folder)
    assert choice.best is not None
    assert values[choice.best.number] == max(values.values())
    assert arm.score == {"nll": "minus nll", "macro_f1": "macro_f1"}[score]


def test_what_chooses_rounds_tells_studies_apart_and_further_scores_do_not(write: Write) -> None:
    grids = ({}, {"metrics": ["nll"]}, {"metrics": ["nll"], "select_by": "nll"}, {"select_by": "loss"})
    names = [load_study(str(write(grid=grid)), []).arms[0].name for grid in grids]
    assert names[0] == names[1]
    assert len(set(names)) == 3


@pytest.mark.long
def test_the_best_three_run_again_and_the_mean_over_all_seeds_decides(write: Write, tmp_path: Path) -> None:
    rates = [1e-3, 0.03, 0.1, 0.3]
    file = write(sampler="grid", trials=None, space={"lr": rates}, grid={"methods": ["fedavg"], "rounds": 2})
    study, folder = load_study(str(file), []), tmp_path / "run"
    _, studies, _ = run(study, folder)
    (before,) = choose(study, studies, folder)
    assert before.finals == {}
    assert before.rounds == 4 * 2 * 2
    again = further_cells([before])
    best = finalists(before.trials)
    assert len(again) == 3 * 2
    assert {(cell.seed, cell.protocol) for cell in again} == {(102, "tuning"), (103, "tuning")}
    list_cells(folder, [PlannedCell(IDENTITIES.of(cell), cell) for cell in again])
    for cell in again:
        assert run_cell(cell, folder / IDENTITIES.of(cell), Options(device="cpu")).state == "done"
    (after,) = choose(study, studies, folder)
    by_hand = {}
    for trial in best:
        mine = [cell for cell in again if cell.lr == trial.params["lr"]]
        cells = [*trial.user_attrs["cells"], *map(IDENTITIES.of, mine)]
        by_hand[trial.number] = best_value(mean_curve([folder / cell for cell in cells], "pm", study.arms[0].cells[0]))
        assert len(cells) == 4
    assert {number: values for number, (values,) in after.finals.items()} == by_hand
    assert after.best is not None
    assert by_hand[after.best.number] == max(by_hand.values())
    assert after.rounds == 4 * 2 * 2 + 3 * 2 * 2


def test_a_partition_that_draws_its_tests_anew_is_refused(write: Write) -> None:
    grid = {"partition": "dirichlet", "partition_options": {"shares": [0.75, 0, 0.25]}}
    study = load_study(str(write(grid=grid)), [])
    check_blind(study, Path("data"))
    grid["partition"] = "tests_anew"
    anew = load_study(str(write(grid=grid)), [])
    with pytest.raises(UserError, match=r"samples that seed 0 is tested on; the partition 'tests_anew' should take"):
        check_blind(anew, Path("data"))


@PARTITIONS.register("tests_anew")
def anew_for_each_seed(dataset: Dataset, *, clients: int, alpha: float, seed: int, shares: list[float]) -> Split:
    """As `dirichlet` was before it kept the same samples for every seed."""
    split: Split = PARTITIONS.get("dirichlet")(dataset, clients=clients, alpha=alpha, seed=seed, shares=shares)
    return split
