"""Independent draws of tuning: how a study shares its seeds, what an entry of them must keep to, and its units."""

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from optuna.distributions import FloatDistribution
from optuna.trial import create_trial

import bench
from bench.config.grid import load_grid
from bench.config.identity import cell_id, declared_checksum
from bench.config.listed import write_listed
from bench.errors import UserError
from bench.results.pack import pack, unpack
from bench.results.results import CellView, RunView, load_run
from bench.settings import Settings
from reports.league.export import write_export, write_submission
from reports.reading.load import PM, load
from reports.tables.standings import by_unit
from sweeps.admission import NOTHING_CHOSEN, Admission
from sweeps.fair import Chosen, chosen_cells, reported_cells
from sweeps.study import Study
from sweeps.study_reader import load_study
from tests.conftest import ROOT
from tests.reports.conftest import change_run, write_store
from tests.runs.forger import change_status, forge
from tests.sweeps.conftest import Write
from tools.league import changed_entries, plugins_of

DRAWN: dict[str, Any] = {
    "draws": 2, "seeds": [100, 101], "final_seeds": [], "report_seeds": [0, 1, 10, 11], "default_seeds": [0, 10],
    "trials": 2,
}  # fmt: skip
FILE = Path("fedprox.tar.xz")
OPTIONS: dict[str, Any] = {"device": "cpu", "tracking": False, "quiet": True, "jobs": 1}


def test_each_draw_has_its_own_seeds_and_its_own_sampler(write: Write) -> None:
    """Draws with one sampler's seed would be one draw; a study of a single draw draws as before there were several."""
    study = load_study(str(write(**DRAWN)), [])
    assert [([cell.seed for cell in arm.cells], arm.report_seeds, arm.final_seeds) for arm in study.arms] == [
        ([100], (0, 1), ()),
        ([101], (10, 11), ()),
    ]
    assert [arm.title for arm in study.arms] == ["blobs alpha=1, draw 1", "blobs alpha=1, draw 2"]
    assert study.report_draws == [[0, 1], [10, 11]]
    assert len({arm.name for arm in study.arms}) == len({arm.draws for arm in study.arms}) == 2
    (single,) = load_study(str(write()), []).arms
    task = single.task.replace("blobs", "npz")  # whatever the data's file is called
    assert json.loads(single.draws)[0] == task


def test_cells_of_draws_are_read_again_from_a_written_grid(write: Write, tmp_path: Path) -> None:
    """The command of the default division runs the grid's text, and resumes by the cells' ids. `best.yaml` has each
    draw's setting on its own seeds: with all seeds it had twice as many cells."""
    study = load_study(str(write(**DRAWN)), [])
    grid = study.default_grid("mine_default")
    assert [(cell.seed, cell.protocol, cell.lr) for cell in grid.cells] == [(0, "honest", 0.1), (10, "honest", 0.1)]
    chosen = [arm.reported({"lr": rate}, arm.report_seeds) for rate, arm in zip((0.2, 0.3), study.arms, strict=True)]
    best = [cell for cells in chosen for cell in cells]
    assert [(cell.seed, cell.lr) for cell in best] == [(0, 0.2), (1, 0.2), (10, 0.3), (11, 0.3)]
    for text, cells in ((grid.source, grid.cells), (write_listed("best", "", best), best)):
        (tmp_path / "mine_default.yaml").write_text(text, encoding="utf-8")
        again = load_grid(str(tmp_path / "mine_default.yaml"))
        assert [cell_id(cell, declared_checksum(cell)) for cell in again.cells] == [
            cell_id(cell, declared_checksum(cell)) for cell in cells
        ]


def test_a_task_is_reported_where_every_draw_chose_a_setting(write: Write) -> None:
    """Without the draw that had no luck a method would stand on its other draws."""
    study = load_study(str(write({"alphas": [1.0, 0.5]}, own_ranges=False, **DRAWN)), [])
    rates = {"lr": FloatDistribution(0.01, 1.0, log=True)}
    trial = create_trial(value=0.9, params={"lr": 0.2}, distributions=rates)
    choices = [Chosen(arm, (trial,), trial, {}) for arm in study.arms]
    assert [(cell.alpha, cell.seed) for cell in chosen_cells(choices)] == [
        (alpha, seed) for alpha in (1.0, 0.5) for seed in (0, 1, 10, 11)
    ]
    choices[-1] = replace(choices[-1], best=None)
    assert [(cell.alpha, cell.seed) for cell in reported_cells(study, choices)] == [
        (1.0, seed) for seed in (0, 1, 10, 11)
    ]
    choices[0] = replace(choices[0], best=None)
    with pytest.raises(UserError, match="in at least one of the 2 draws of each task"):
        reported_cells(study, choices)


def test_a_draw_is_one_unit_with_the_mean_of_its_seeds(tmp_path: Path) -> None:
    """Four seeds in two draws: two units, each the mean of two seeds; without draws each seed is one."""
    run = write_store(tmp_path / "run", seeds=4, alphas=(1.0,), methods=("ditto", "scd"))
    (task,) = (before := load([run])).tasks
    [seeds] = by_unit(before, "ditto", [task], PM)
    [units] = by_unit(load([change_run(run, draws=[[0, 2], [1, 3]])]), "ditto", [task], PM)
    assert units == pytest.approx([np.mean(seeds[[0, 2]]), np.mean(seeds[[1, 3]])])
    assert len(set(np.round(seeds, 9))) == 4


def test_runs_with_other_draws_are_not_merged(tmp_path: Path) -> None:
    one = write_store(tmp_path / "one", seeds=2, alphas=(1.0,), methods=("ditto",))
    other = write_store(tmp_path / "other", seeds=2, alphas=(1.0,), methods=("scd",))
    runs = [change_run(one, draws=[[0], [1]]), change_run(other, draws=[[1], [0]])]
    with pytest.raises(UserError, match="seed 1 belongs to draw 1 of its tuning, and in another run to draw 2"):
        load(runs)


@pytest.fixture(scope="module")
def computed(arrays: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """A league of one method and two draws, and the folder with its run `fedprox` and `defaults`, its defaults."""
    folder = tmp_path_factory.mktemp("draws")
    grid = {
        "methods": ["fedprox"], "datasets": [{"name": "npz", "path": str(arrays)}], "alphas": [1.0], "clients": 4,
        "model": "logistic", "lr": 0.1, "batch_size": 10, "rounds": 2,
    }  # fmt: skip
    space = {"lr": {"low": 0.01, "high": 1.0, "log": True}}
    study = {"name": "mine", "grid": grid, "space": space, "pruner": "none", **DRAWN}
    bench.sweep(study, folder / "fedprox", page=False, **OPTIONS)
    bench.run(load_study(study, []).default_grid("mine_default"), folder / "defaults", **OPTIONS)
    return study, folder


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
    out = folder / "export"
    write_export(folder / FILE, entry, folder, out, "mine")
    first, second = ((out / name).read_text(encoding="utf-8") for name in ("settings.yaml", "CHECKLIST.md"))
    return first, second


def swapped(entry: RunView) -> RunView:
    """The entry whose draws have each other's settings."""
    first, second = (next(cell.settings for cell in entry.cells if cell.settings.seed == seed) for seed in (0, 10))

    def settings(cell: CellView) -> Settings:
        other = second if cell.settings.seed < 10 else first
        return cell.settings.model_copy(update={"lr": other.lr, "hp": other.hp})

    return replace(entry, cells=[replace(cell, settings=settings(cell)) for cell in entry.cells])


def worse(entry: RunView) -> RunView:
    """The entry whose first draw's trials say that another setting was better than the one that has cells."""
    table = pd.read_csv(entry.path / "trials_0.csv", dtype=str, keep_default_na=False)
    rates = table[table["column"] == "lr"].set_index("row")["value"].astype(float)
    other = (rates - entry.cells[0].settings.lr).abs().idxmax()
    table.loc[(table["row"] == other) & (table["column"] == "PM"), "value"] = "99.99"
    table.to_csv(entry.path / "trials_0.csv", index=False)
    return entry


def without(entry: RunView, *seeds: int) -> RunView:
    return replace(entry, cells=[cell for cell in entry.cells if cell.settings.seed not in seeds])


def nothing_chosen(entry: RunView) -> RunView:
    """The entry without its second draw, of which `tuning.csv` says that nothing was chosen."""
    lines = (entry.path / "tuning.csv").read_text(encoding="utf-8").splitlines()
    at = max(number for number, line in enumerate(lines) if ",chosen," in line)
    lines[at] = f"fedprox,,chosen,,,,,{NOTHING_CHOSEN}"
    (entry.path / "tuning.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (entry.path / "trials_1.csv").unlink()
    return without(entry, 10, 11)


LACKING = "draw 2: it has the seeds none; an entry of mine has the seeds 10, 11 of every task"
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
        lambda entry: without(entry, 11),
        "draw 2: it has the seeds 10; an entry of mine has the seeds 10, 11 of every task",
    ),
    "a setting that was not the best trial's": (
        worse,
        "1 settings of trials_0.csv are better .*; one of the best 1 is chosen",
    ),
    "a task that is left out in one draw": (nothing_chosen, LACKING),
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
    with pytest.raises(UserError, match=LACKING):
        Admission(study, {}, whole=False).admit(FILE, without(entry, 10, 11))


def test_a_rate_of_the_methods_own_is_not_the_cells() -> None:
    """pFedHN's hypernetwork has an `lr`, as the cell has."""
    study = load_study("league_2_small", ["methods=[pfedhn]"])
    admission, cell = Admission(study, {}, division="default"), study.default_grid("mine").cells[0]

    def check(settings: Settings) -> None:
        view: Any = SimpleNamespace(name="cell", settings=settings)
        admission._check_settings(FILE, study.arms[0], [view], [])

    check(cell)
    with pytest.raises(UserError, match=r"pfedhn\.lr is 0\.9, not 0\.01$"):
        check(cell.model_copy(update={"hp": {**cell.hp, "lr": 0.9}}))


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

    def changed(at: int, **settings: Any) -> RunView:
        cells = list(run.cells)
        cells[at] = replace(cells[at], settings=cells[at].settings.model_copy(update=settings))
        return replace(run, cells=cells)

    for edited, said in (
        (changed(1, lr=0.2), "lr is 0.2, not 0.1"),
        (changed(0, hp={"mu": 0.5}), r"mu is 0\.5, not "),
        (changed(0, seed=1), "mine_default has no such task with seed 1"),
        (replace(run, cells=run.cells[:1]), "it has the seeds 0; an entry of mine_default has the seeds 0, 10"),
    ):
        with pytest.raises(UserError, match=said):
            Admission(study, {}, division="default").admit(FILE, edited)
    with pytest.raises(UserError, match="its draws of tuning are"):
        Admission(study, {}).admit(FILE, run)
    shutil.rmtree(tmp_path / "entry")
    pack(computed[1] / "fedprox", tmp_path / FILE)
    with pytest.raises(UserError, match="mine_default has no such task with seed 1"):
        admission.admit(FILE, unpack(tmp_path / FILE, tmp_path / "entry"))
    assert load_run(computed[1] / "defaults").info.get("draws", []) == []


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
