"""Independent draws of tuning: how a study shares its seeds, what an entry of them must keep to, and its units."""

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from optuna.distributions import FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

import bench
from bench.config.grid import load_grid
from bench.config.identity import cell_id, declared_checksum
from bench.config.listed import write_listed
from bench.errors import UserError
from bench.federation.cell_identity import Identities
from bench.results.pack import pack, unpack
from bench.results.results import RunView, load_run
from reports.league.export import write_export
from reports.league.submission import write_submission
from reports.reading.load import PM, load
from reports.tables.standings import by_unit
from sweeps.admission import NOTHING_CHOSEN, Admission
from sweeps.cells import data_digests, with_data
from sweeps.fair import Chosen, chosen_cells, reported_cells
from sweeps.run import open_studies
from sweeps.storage import study_storage
from sweeps.study import Study, parts
from sweeps.study_reader import load_study
from tests.conftest import ROOT
from tests.reports.conftest import write_store
from tests.runs.forger import change_status, forge
from tests.sweeps.conftest import Write
from tools.league import changed_entries, plugins_of

DRAWN: dict[str, Any] = {
    "draws": 2, "seeds": [100, 101], "final_seeds": [], "report_seeds": [0, 1, 10, 11], "default_seeds": [0, 10],
    "trials": 2,
}  # fmt: skip
FILE = Path("fedprox.tar.xz")
OPTIONS: dict[str, Any] = {"device": "cpu", "tracking": False, "quiet": True, "jobs": 1}


def test_each_draw_has_its_own_seeds(write: Write) -> None:
    study = load_study(str(write(**DRAWN)), [])
    assert [([cell.seed for cell in arm.cells], arm.report_seeds, arm.final_seeds) for arm in study.arms] == [
        ([100], (0, 1), ()),
        ([101], (10, 11), ()),
    ]
    assert [arm.title for arm in study.arms] == ["blobs alpha=1, draw 1", "blobs alpha=1, draw 2"]
    assert study.report_draws == [[0, 1], [10, 11]]
    assert len({arm.name for arm in study.arms}) == 2


def test_the_sampler_draws_anew_in_each_draw(write: Write) -> None:
    """Draws with one sampler's seed would be one draw; a study of a single draw draws as before there were several."""
    several, single = load_study(str(write(**DRAWN)), []).arms, load_study(str(write()), []).arms
    assert len({arm.draws for arm in several}) == 2
    assert json.loads(single[0].draws)[0] == single[0].task.replace(
        "blobs", "npz"
    )  # whatever the data's file is called


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"seeds": [100, 101, 102]}, "seeds: 2 draws cannot share 3 seeds evenly"),
        ({"report_seeds": [0, 1, 2]}, "report_seeds: 2 draws cannot share 3 seeds evenly"),
        ({"final_seeds": [7]}, "final_seeds: 2 draws cannot share 1 seeds evenly"),
        ({"draws": 0}, "draws = 0"),
        ({"default_seeds": [100]}, r"default_seeds has tuning seeds \(\[100\]\); results need fresh ones"),
        ({"default_seeds": [0, 0]}, "default_seeds = .* has a seed twice"),
    ],
)
def test_refused(write: Write, changes: dict[str, object], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        load_study(str(write(**DRAWN | changes)), [])


def test_parts_are_consecutive_and_lose_nothing() -> None:
    assert parts([5, 3, 9, 1, 2, 8], 3) == [[5, 3], [9, 1], [2, 8]]


def test_the_default_grid_is_read_as_the_same_cells(write: Write, tmp_path: Path) -> None:
    """The command of the default division runs the grid's text, and resumes by the cells' ids."""
    grid = load_study(str(write(**DRAWN)), []).default_grid("mine_default")
    (tmp_path / "mine_default.yaml").write_text(grid.source, encoding="utf-8")
    again = load_grid(str(tmp_path / "mine_default.yaml"))
    assert again.name == "mine_default"
    assert [cell_id(cell, declared_checksum(cell)) for cell in again.cells] == [
        cell_id(cell, declared_checksum(cell)) for cell in grid.cells
    ]
    assert [(cell.seed, cell.protocol, cell.lr) for cell in grid.cells] == [(0, "honest", 0.1), (10, "honest", 0.1)]


def test_the_chosen_settings_as_a_grid_are_those_of_each_draw(write: Write, tmp_path: Path) -> None:
    """`best.yaml` has each draw's setting on its own seeds: with all seeds it had twice as many cells."""
    arms = load_study(str(write(**DRAWN)), []).arms
    cells = [
        cell
        for rate, arm in zip((0.2, 0.3), arms, strict=True)
        for cell in arm.reported({"lr": rate}, arm.report_seeds)
    ]
    (tmp_path / "best.yaml").write_text(write_listed("best", "", cells), encoding="utf-8")
    again = load_grid(str(tmp_path / "best.yaml")).cells
    assert [(cell.seed, cell.lr) for cell in again] == [(0, 0.2), (1, 0.2), (10, 0.3), (11, 0.3)]
    assert [cell_id(cell, declared_checksum(cell)) for cell in again] == [
        cell_id(cell, declared_checksum(cell)) for cell in cells
    ]


def ended(state: TrialState = TrialState.COMPLETE) -> FrozenTrial:
    """A trial of a learning rate."""
    value = 0.9 if state == TrialState.COMPLETE else None
    distributions = {"lr": FloatDistribution(0.01, 1.0, log=True)}
    return create_trial(state=state, value=value, params={"lr": 0.2}, distributions=distributions)


def test_a_task_is_reported_where_every_draw_chose_a_setting(write: Write) -> None:
    """Without the draw that had no luck a method would stand on its other draws."""
    study = load_study(str(write({"alphas": [1.0, 0.5]}, own_ranges=False, **DRAWN)), [])
    choices = [Chosen(arm, (ended(),), ended(), {}) for arm in study.arms]
    assert [(cell.alpha, cell.seed) for cell in chosen_cells(choices)] == [
        (alpha, seed) for alpha in (1.0, 0.5) for seed in (0, 1, 10, 11)
    ]
    choices[-1] = replace(choices[-1], best=None)
    assert [(cell.alpha, cell.seed) for cell in reported_cells(study, choices)] == [
        (1.0, seed) for seed in (0, 1, 10, 11)
    ]
    choices[0] = replace(choices[0], best=None)
    with pytest.raises(UserError, match="each task of the study 'small' has a draw in which no trial came to its end"):
        reported_cells(study, choices)


def with_draws(run: Path, draws: list[list[int]]) -> Path:
    info = json.loads((run / "run.json").read_text(encoding="utf-8"))
    (run / "run.json").write_text(json.dumps(info | {"draws": draws}), encoding="utf-8")
    return run


def test_a_draw_is_one_unit_with_the_mean_of_its_seeds(tmp_path: Path) -> None:
    """Four seeds in two draws: two units, each the mean of two seeds; without draws each seed is one."""
    run = write_store(tmp_path / "run", seeds=4, alphas=(1.0,), methods=("ditto", "scd"))
    (task,) = (before := load([run])).tasks
    [seeds] = by_unit(before, "ditto", [task], PM)
    [units] = by_unit(load([with_draws(run, [[0, 2], [1, 3]])]), "ditto", [task], PM)
    assert units == pytest.approx([np.mean(seeds[[0, 2]]), np.mean(seeds[[1, 3]])])
    assert len(set(np.round(seeds, 9))) == 4


def test_runs_with_other_draws_are_not_merged(tmp_path: Path) -> None:
    one = write_store(tmp_path / "one", seeds=2, alphas=(1.0,), methods=("ditto",))
    other = write_store(tmp_path / "other", seeds=2, alphas=(1.0,), methods=("scd",))
    runs = [with_draws(one, [[0], [1]]), with_draws(other, [[1], [0]])]
    with pytest.raises(UserError, match="seed 1 belongs to draw 1 of its tuning, and in another run to draw 2"):
        load(runs)


@pytest.fixture(scope="module")
def computed(arrays: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """A study of two draws, and the folder with its run `fedprox` and its default division's run `defaults`."""
    folder = tmp_path_factory.mktemp("draws")
    study = league(arrays, {"alphas": [1.0]})
    bench.sweep(study, folder / "fedprox", page=False, **OPTIONS)
    bench.run(load_study(study, []).default_grid("mine_default"), folder / "defaults", **OPTIONS)
    return study, folder


def league(arrays: Path, tasks: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A league of one method and two draws."""
    grid = {
        "methods": ["fedprox"], "datasets": [{"name": "npz", "path": str(arrays)}],
        "clients": 4, "model": "logistic", "lr": 0.1, "batch_size": 10, "rounds": 2, **tasks,
    }  # fmt: skip
    space = {"lr": {"low": 0.01, "high": 1.0, "log": True}}
    return {"name": "mine", "grid": grid, "space": space, "pruner": "none", **DRAWN, **changes}


@pytest.fixture
def study(computed: tuple[dict[str, Any], Path]) -> Study:
    return load_study(computed[0], [])


@pytest.fixture
def entry(computed: tuple[dict[str, Any], Path], tmp_path: Path) -> RunView:
    pack(computed[1] / "fedprox", tmp_path / FILE)
    return unpack(tmp_path / FILE, tmp_path / "entry")


@pytest.mark.long
def test_an_entry_has_the_setting_of_each_draw(study: Study, entry: RunView, tmp_path: Path) -> None:
    """Of the two draws, that tried other settings, each has its own on its own seeds; nothing ran again."""
    Admission(study, {}).admit(FILE, entry)
    rates = {cell.settings.seed: cell.settings.lr for cell in entry.cells}
    assert (rates[0], rates[10]) == (rates[1], rates[11])
    tables = [(entry.path / f"trials_{at}.csv").read_text(encoding="utf-8") for at in (0, 1)]
    assert tables[0] != tables[1]
    assert entry.info["draws"] == [[0, 1], [10, 11]]
    assert {cell.unit for cell in load([entry]).cells} == {"draw 1", "draw 2"}
    settings, checklist = exported(entry, tmp_path)
    assert {task: values["lr"] for task, values in yaml.safe_load(settings).items()} == {
        "blobs alpha=1, draw 1": rates[0],
        "blobs alpha=1, draw 2": rates[10],
    }
    assert "2 trials for each task in each of 2 draws, 4 together" in checklist
    assert "each with the same budget of tuning." in (tmp_path / "export" / "table_pm.tex").read_text(encoding="utf-8")


def exported(entry: RunView, folder: Path) -> tuple[str, str]:
    """Settings and checklist of an export, beside a page whose tables were made up."""
    for figure in ("pm", "gm"):
        lines = [f"{row},{column},1.0,,," for row in ("fedprox", "local") for column in ("tier", "mean")]
        (folder / f"main_{figure}.csv").write_text("\n".join(["row,column,value,note,mark,derived", *lines]))
    done = write_export(folder / FILE, entry, folder, folder / "export", "mine")
    first, second = ((done.folder / name).read_text(encoding="utf-8") for name in ("settings.yaml", "CHECKLIST.md"))
    return first, second


def swapped(entry: RunView) -> RunView:
    """The entry whose draws have each other's settings."""
    first, second = (next(cell.settings for cell in entry.cells if cell.settings.seed == seed) for seed in (0, 10))
    values = {0: second, 1: second, 10: first, 11: first}
    cells = [
        replace(
            cell,
            settings=cell.settings.model_copy(
                update={"lr": values[cell.settings.seed].lr, "hp": values[cell.settings.seed].hp}
            ),
        )
        for cell in entry.cells
    ]
    return replace(entry, cells=cells)


def worse(entry: RunView) -> RunView:
    """The entry whose first draw's trials say that another setting was better than the one that has cells."""
    table = entry.path / "trials_0.csv"
    lines = table.read_text(encoding="utf-8").splitlines()
    chosen = {round(cell.settings.lr, 6) for cell in entry.cells if cell.settings.seed == 0}
    rates = {line.split(",")[0]: line for line in lines if ",lr," in line}
    other = next(row for row, line in rates.items() if not any(f"{rate}" in line for rate in chosen))
    edited = [_with_value(line, "99.99") if line.startswith(f"{other},") and ",PM," in line else line for line in lines]
    table.write_text("\n".join(edited) + "\n", encoding="utf-8")
    return entry


def _with_value(line: str, value: str) -> str:
    """A row of a table of trials with another number in its third column with one."""
    fields = line.split(",")
    at = next(i for i, field in enumerate(fields) if i > 1 and field.replace(".", "").isdigit())
    return ",".join([*fields[:at], value, *fields[at + 1 :]])


WRONG: dict[str, tuple[Callable[[RunView], RunView], str]] = {
    "other draws": (
        lambda entry: replace(entry, info=entry.info | {"draws": [[0, 10], [1, 11]]}),
        r"its draws of tuning are \[\[0, 10\], \[1, 11\]\], and those of mine are \[\[0, 1\], \[10, 11\]\]",
    ),
    "no draws": (
        lambda entry: replace(entry, info={key: value for key, value in entry.info.items() if key != "draws"}),
        r"its draws of tuning are \[\]",
    ),
    "the settings of the other draw": (swapped, r"blobs alpha=1, draw 1: its cells have mu=.*, and tuning.csv chooses"),
    "a seed of one draw": (
        lambda entry: replace(entry, cells=[cell for cell in entry.cells if cell.settings.seed != 11]),
        "draw 2: it has the seeds 10; an entry of mine has the seeds 10, 11 of every task",
    ),
    "a setting that was not the best trial's": (worse, "1 settings of trials_0.csv are better .*; the best is chosen"),
}


@pytest.mark.long
@pytest.mark.parametrize(("edit", "said"), WRONG.values(), ids=WRONG.keys())
def test_an_entry_that_breaks_a_rule_of_draws_is_refused(
    study: Study, entry: RunView, edit: Callable[[RunView], RunView], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        Admission(study, {}).admit(FILE, edit(entry))


@pytest.mark.long
def test_an_export_may_lack_tasks_and_no_draws(study: Study, entry: RunView) -> None:
    """Else the draw in which tuning had no luck could be left out."""
    lacking = replace(entry, cells=[cell for cell in entry.cells if cell.settings.seed < 10])
    with pytest.raises(UserError, match="draw 2: it has no cell; an entry of mine has the seeds 10, 11 of every task"):
        Admission(study, {}, whole=False).admit(FILE, lacking)


@pytest.mark.long
def test_a_draw_is_not_left_out_by_itself(study: Study, entry: RunView) -> None:
    """Whatever `tuning.csv` says of it: the task is left out in all draws, or in none."""
    lines = (entry.path / "tuning.csv").read_text(encoding="utf-8").splitlines()
    at = max(number for number, line in enumerate(lines) if ",chosen," in line)
    lines[at] = f"fedprox,,chosen,,,,,{NOTHING_CHOSEN}"
    (entry.path / "tuning.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (entry.path / "trials_1.csv").unlink()
    lacking = replace(entry, cells=[cell for cell in entry.cells if cell.settings.seed < 10])
    with pytest.raises(UserError, match="draw 2: it has no cell; an entry of mine has the seeds 10, 11 of every task"):
        Admission(study, {}).admit(FILE, lacking)


@pytest.mark.long
def test_an_entry_lacks_the_task_of_which_a_draw_chose_nothing(arrays: Path, tmp_path: Path) -> None:
    """No trial of the second task's second draw came to its end: its first draw is not run, and the entry admitted.

    Each table of trials is there, and that of the draw says so, too.
    """
    data = {
        "name": "npz",
        "path": str(arrays),
        "cases": [{"name": "even", "alpha": 1.0}, {"name": "odd", "alpha": 0.5}],
    }
    content = league(arrays, {"datasets": [data]}, own_ranges=False)
    run = tmp_path / "run"
    study = load_study(content, [])
    tuned = with_data(study, data_digests(study, Identities(Path("data"), download=False)))
    run.mkdir()
    optuna_study = open_studies(tuned, study_storage(run))[tuned.arms[-1].name]
    optuna_study.add_trials([ended(TrialState.PRUNED), ended(TrialState.PRUNED)])
    bench.sweep(content, run, page=False, **OPTIONS)
    pack(run, tmp_path / FILE)
    entry = unpack(tmp_path / FILE, tmp_path / "entry")
    assert [(cell.settings.case, cell.settings.seed) for cell in entry.cells] == [
        ("even", seed) for seed in (0, 1, 10, 11)
    ]
    Admission(study, {}).admit(FILE, entry)
    table = entry.path / "trials_3.csv"
    text = table.read_text(encoding="utf-8")
    table.write_text(text.replace("pruned", "complete", 1), encoding="utf-8")
    with pytest.raises(UserError, match=r"odd alpha=0.5, draw 2: trials_3.csv has 2 trials, 1 of them pruned"):
        Admission(study, {}).admit(FILE, entry)
    table.write_text(text, encoding="utf-8")
    (entry.path / "trials_2.csv").unlink()
    with pytest.raises(UserError, match=r"draw 1: trials_2.csv, the table of its trials, is not in the entry"):
        Admission(study, {}).admit(FILE, entry)


def test_a_rate_of_the_methods_own_is_not_the_cells() -> None:
    """pFedHN's hypernetwork has an `lr`, as the cell has."""
    study = load_study("league_2_small", ["methods=[pfedhn]"])
    admission, cell = Admission(study, {}, division="default"), study.default_grid("mine").cells[0]
    admission._check_defaults("cell", cell)
    with pytest.raises(UserError, match=r"lr = 0.9 is not 0.01; in the default division nothing is tuned"):
        admission._check_defaults("cell", cell.model_copy(update={"hp": {**cell.hp, "lr": 0.9}}))


@pytest.mark.long
def test_an_entry_of_the_default_division(study: Study, computed: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    """It has the defaults on its seeds, no tables of tuning, and no place among tuned ones, nor they among it."""
    pack(computed[1] / "defaults", tmp_path / FILE)
    run = unpack(tmp_path / FILE, tmp_path / "entry")
    admission = Admission(study, {}, division="default")
    admission.admit(FILE, run)
    settings, checklist = exported(run, tmp_path)
    assert settings.startswith("# The defaults of fedprox, by task.")
    assert "Tuning: none; every setting is the method's or the league's default." in checklist
    assert "one learning rate, untuned." in (tmp_path / "export" / "table_pm.tex").read_text(encoding="utf-8")

    def changed(of: int, /, **settings: Any) -> RunView:
        return replace(
            run,
            cells=[
                replace(cell, settings=cell.settings.model_copy(update=settings)) if cell.settings.seed == of else cell
                for cell in run.cells
            ],
        )

    for edited, said in (
        (changed(10, lr=0.2), "lr = 0.2 is not 0.1; in the default division nothing is tuned"),
        (changed(0, hp={"mu": 0.5}), r"mu = 0\.5 is not .*; in the default division nothing is tuned"),
        (changed(0, seed=1), "mine_default has the seeds 0, 10 only"),
        (replace(run, cells=run.cells[:1]), "it has the seeds 0; an entry of mine_default has the seeds 0, 10"),
    ):
        with pytest.raises(UserError, match=said):
            Admission(study, {}, division="default").admit(FILE, edited)
    with pytest.raises(UserError, match="its draws of tuning are"):
        Admission(study, {}).admit(FILE, run)
    shutil.rmtree(tmp_path / "entry")
    pack(computed[1] / "fedprox", tmp_path / FILE)
    with pytest.raises(UserError, match="mine_default has the seeds 0, 10 only"):
        admission.admit(FILE, unpack(tmp_path / FILE, tmp_path / "entry"))
    assert load_run(computed[1] / "defaults").info.get("draws", []) == []


def test_own_ranges_can_be_left_out(write: Write) -> None:
    """The photographs tier tunes every method over the learning rate alone, and an entry must say so."""
    file = str(write(own_ranges=False))
    assert [one.key for one in load_study(file, []).arms[0].dimensions] == ["lr"]
    assert [one.key for one in load_study(str(write()), []).arms[0].dimensions] == ["fedprox.mu", "lr"]
    with pytest.raises(UserError, match="'fedprox' has no ranges of its own"):
        load_study(str(write(own_ranges=False, space={})), [])


@pytest.mark.long
def test_a_submission_has_the_entry_at_its_place_and_a_verification(
    entry: RunView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command in its text, given where the folder's files are copied to, verifies the copied entry."""
    monkeypatch.chdir(ROOT)
    options: dict[str, Any] = {"cells": 1, "jobs": 1, "data_root": Path("data")}
    text = write_submission(tmp_path / FILE, entry, tmp_path / "submit", "mine", **options).read_text(encoding="utf-8")
    place = "reports/league/entries/mine/fedprox.tar.xz"
    assert (tmp_path / "submit" / place).read_bytes() == (tmp_path / FILE).read_bytes()
    assert f"`bench verify {place} --cells=1 --blind" in text
    assert "4 cells, 1 computed again as they were" in text
    assert "torch==" in (tmp_path / "submit" / "environment.txt").read_text(encoding="utf-8")
    for cell in entry.cells:
        forge(cell.folder)
        change_status(cell.folder, lambda status, cell=cell: status["path"].update(cell.status.path))  # type: ignore[misc]
    pack(tmp_path / "entry", tmp_path / FILE)
    with pytest.raises(UserError, match="its verification fails, so nothing is ready to submit"):
        write_submission(tmp_path / FILE, entry, tmp_path / "again", "mine", **options)
    assert not (tmp_path / "again" / "SUBMISSION.md").exists()


def test_entries_that_a_branch_adds_are_verified_with_their_plug_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=n@n", *arguments], cwd=tmp_path, check=True)

    folder = tmp_path / "reports" / "league" / "entries" / "league_2_small"
    folder.mkdir(parents=True)
    (folder / "old.tar.xz").write_text("old")
    git("init", "-q", "-b", "main")
    git("add", "-A")
    git("commit", "-qm", "old")
    git("checkout", "-qb", "new")
    for name in ("mine.tar.xz", "mine.py", "plain.tar.xz", "SHA256SUMS"):
        (folder / name).write_text(name)
    git("add", "-A")
    git("commit", "-qm", "new")
    monkeypatch.chdir(tmp_path)
    mine, plain = changed_entries("main", "new")
    assert (mine.name, plain.name) == ("mine.tar.xz", "plain.tar.xz")
    assert (plugins_of(mine), plugins_of(plain)) == ([mine.with_name("mine.py")], [])
