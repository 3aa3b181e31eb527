"""The league: its definition, and one method joined by a command."""

import csv
import hashlib
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from bench.results.pack import unpack
from reports.league.page import write_league
from reports.league.rule import by_case
from reports.reading.load import PM, Store, load
from sweeps.study_reader import load_study
from tests.conftest import ROOT
from tests.engine.problems import METHOD_NAMES, needed
from tests.reports import conftest
from tests.reports.browser import assert_alive, look, needs_browser
from tests.reports.conftest import change_run, name_cases, write_store
from tests.warm import Python, Start

ENTRIES = ROOT / "reports" / "league" / "entries" / "league_2_small"
TASKS, SEEDS = 8, 28


@pytest.mark.long
@pytest.mark.parametrize(("study", "arms"), [("league_2_small", 4 * TASKS), ("league_1_full", 12)])
def test_every_method_can_take_part(study: str, arms: int) -> None:
    """Its settings are complete for every task; whether it trains is what `check-method` asks."""
    for name in METHOD_NAMES:
        if needed(name):  # no task has a model with adapters
            continue
        assert len(load_study(study, [f"methods=[{name}]"]).arms) == arms, name


def test_every_shipped_entry_is_listed_with_its_checksum() -> None:
    """`python -m tools.league ship FOLDER` makes the list anew; `make league` checks it."""
    folders = [folder for folder in (ROOT / "reports" / "league" / "entries").iterdir() if folder.is_dir()]
    assert folders
    for folder in folders:
        listed = (folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
        entries = folder.glob("*.xz")
        assert {f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}" for file in entries} == set(listed)


@pytest.mark.parametrize(("files", "left_out"), [((), 1), (("mnist.npz",), 1), (("mnist.npz", "cifar10_jpeg.npz"), 0)])
def test_entries_on_photographs_are_left_out_where_their_files_are_not(
    tmp_path: Path, files: tuple[str, ...], left_out: int
) -> None:
    """`make league` verifies what can be recomputed here, and counts what cannot."""
    for name in (".venv/.installed", "pyproject.toml", "constraints.txt", *(f"data/{file}" for file in files)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    os.utime(tmp_path / ".venv/.installed", (2e9, 2e9))  # newer than what it was installed from
    for study in ("league_2_photos", "league_2_small"):
        folder = tmp_path / "reports" / "league" / "entries" / study
        folder.mkdir(parents=True)
        (folder / "a.tar.xz").touch()
    command = ["make", "-n", "-f", str(ROOT / "Makefile"), "league"]
    said = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    verified = next(line for line in said.splitlines() if "bench verify" in line)
    assert "league_2_small/a.tar.xz" in verified
    assert ("league_2_photos" in verified) == (not left_out)
    assert f'[ {2 - left_out} = 2 ] || echo "left out' in said


SIMPLE = ("local", "finetune")
METHODS = (*SIMPLE, "ditto", "scd", "fedavg", "centralized")


@pytest.fixture(scope="module")
def two_families(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a made-up run with two tasks of one data family and one of another; `centralized` is derived."""
    folder = tmp_path_factory.mktemp("families")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(conftest.LEVELS, "finetune", conftest.LEVELS["fedavg"])
        patch.setitem(conftest.LEVELS, "centralized", (0.97, 0.97))
        patch.setitem(conftest.DERIVED, "centralized", ["gm", "pm"])
        run = write_store(folder / "run", methods=METHODS, alphas=(1.0, 0.5, 0.1))
    name_cases(run)
    return write_league([run], folder / "page", "test")


@pytest.mark.long
def test_what_a_method_does_not_train_is_in_brackets_and_last(two_families: Path) -> None:
    """FedAvg's personalized models and the bound, in every table of personalized models."""
    for name in ("main_pm", "tables/gain", "tables/score", "tables/worse_off"):
        rows = rows_of(two_families.parent / f"{name}.csv")
        bracketed = {row["row"] for row in rows if row["derived"]}
        assert bracketed == {"fedavg", "centralized"}, name
        assert {row["row"] for row in rows[-2:]} <= bracketed, name
        assert all(row["derived"] for row in rows if row["row"] in bracketed), name


@pytest.mark.long
def test_gains_are_averaged_by_families_with_student_s_interval_over_seeds(two_families: Path) -> None:
    """Two digits' tasks count as much as the one of `synthetic`. By SciPy, of the seeds' averages of paired
    differences; rows are in the order of the log-odds."""
    store = by_case(load([two_families.parents[1] / "run"]))
    best = {task: max(SIMPLE, key=lambda row: np.mean(list(_pm(store, row, task).values()))) for task in store.tasks}
    weights = {"case 1.0": 0.5, "case 0.5": 0.25, "case 0.1": 0.25}
    main, gain = (entries(two_families.parent / f"{name}.csv") for name in ("main_pm", "tables/gain"))
    for row in ("ditto", "scd"):
        gains = {
            seed: [_pm(store, row, task)[seed] - _pm(store, best[task], task)[seed] for task in weights]
            for seed in ("0", "1", "2")
        }
        seeds = [np.dot(list(weights.values()), of_tasks) for of_tasks in gains.values()]
        assert gain[row, "mean"] == pytest.approx(np.mean(seeds), abs=0.006)
        assert abs(np.mean(seeds) - np.mean(list(gains.values()))) > 0.1  # a plain mean is another number
        for name, level in (("95 %", 0.95), ("corrected", 1 - 0.05 / 2)):
            interval = stats.ttest_1samp(seeds, 0).confidence_interval(level)
            assert gain[row, f"{name} low"] == pytest.approx(interval.low, abs=0.006)
            assert gain[row, f"{name} high"] == pytest.approx(interval.high, abs=0.006)
        assert main[row, "mean"] == pytest.approx(sum(w * main[row, task] for task, w in weights.items()), abs=0.02)
    compared = {row for row, column in gain if column == "corrected low"}
    assert compared == {"ditto", "scd"}  # neither a generic model nor the bound is a candidate
    best_gain = f"{gain['ditto', 'mean']:+.2f} [{gain['ditto', 'corrected low']:.2f}"
    assert f"ditto {best_gain}" in (two_families.parent / "index.html").read_text(encoding="utf-8")
    order = [row for row, column in main if column == "log-odds"]
    assert order == sorted(order, key=lambda row: -main[row, "log-odds"])


def _pm(store: Store, row: str, task: str) -> dict[str, float]:
    return store.scores(row, task, PM, "validation")


@pytest.mark.long
def test_cases_of_one_name_on_two_data_sets_are_two_tasks(tmp_path: Path) -> None:
    """As in the full tier, where CIFAR-10 and CIFAR-100 have the same cases."""
    run = write_store(tmp_path / "run", methods=("fedavg", "ditto"))
    store = load([change_run(run, lambda cell: {"case": "skew"})])
    assert len(store.tasks) > 1
    assert by_case(store).tasks == store.tasks


@pytest.mark.long
def test_the_personalization_score_is_a_place_between_two_references(two_families: Path) -> None:
    """From the better of `local` and `finetune` to `centralized`, which is in brackets and leads nothing."""
    main, score = (entries(two_families.parent / f"{name}.csv") for name in ("main_pm", "tables/score"))
    tasks = {column for _, column in main if column.startswith("case")}
    scored = {column for _, column in score} & tasks
    assert scored
    for row in ("ditto", "scd"):
        for task in scored:
            own, bound, *simple = (main[name, task] for name in (row, "centralized", *SIMPLE))
            expected = (own - max(simple)) / (bound - max(simple))
            assert score[row, task] == pytest.approx(expected, abs=0.02)
        digits, synthetic = ([score[row, t] for t in scored if (t == "case 1.0") == own] for own in (False, True))
        families = [np.mean(one) for one in (digits, synthetic) if one]
        assert score[row, "mean"] == pytest.approx(np.mean(families), abs=0.02)
        assert score[row, "95 % low"] < score[row, "mean"] < score[row, "95 % high"]
    assert "centralized" not in {row["note"] for row in rows_of(two_families.parent / "tables" / "leaders_pm.csv")}


def rows_of(file: Path) -> list[dict[str, str]]:
    """The entries of a table that have a value."""
    with open(file, encoding="utf-8") as open_file:
        return [row for row in csv.DictReader(open_file) if row["value"]]


def entries(file: Path) -> dict[tuple[str, str], float]:
    """The numbers of a table by row and column."""
    return {(row["row"], row["column"]): float(row["value"]) for row in rows_of(file)}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of some of the entries that come with the harness."""
    folder = tmp_path_factory.mktemp("league")
    names = [f"{method}.tar.xz" for method in ("ditto", "fedavg", "fedbn", "finetune", "local")]
    for name in names:
        unpack(ENTRIES / name, folder / name)
    return write_league([folder / name for name in names], folder / "page", "test")


@needs_browser
@pytest.mark.long
@pytest.mark.parametrize("size", ["1280,900", "390,800"])
def test_the_page_in_a_browser(page: Path, tmp_path: Path, size: str) -> None:
    found = look(page, tmp_path, size, table="settings", typed="ditto")
    assert_alive(found)
    assert len(found["kept"]) == 4 * TASKS
    assert all("ditto" in text for text in found["kept"])
    link = found["link"]
    assert link["seen"]
    assert link["from"] in link["to"]
    assert (
        f"bench verify reports/league/entries/league_2_small/{link['from']}.tar.xz --cells {TASKS * SEEDS}"
        in link["to"]
    )


@pytest.mark.long
def test_leaders_are_those_of_the_main_table_beside_an_interval_that_allows_for_the_choice(page: Path) -> None:
    """The first of a task has the column's highest mean among methods with a rank of their own. FedBN has none on a
    network without normalisation layers: its personalized models are the generic one."""
    rows, leaders = (rows_of(page.parent / name) for name in ("main_pm.csv", "tables/leaders_pm.csv"))
    assert {row["row"] for row in rows if row["derived"]} == {"fedavg", "fedbn"}
    assert "fedbn" not in {row["note"] for row in leaders if row["column"] in ("first", "second", "third")}
    first = [row for row in leaders if row["column"] == "first"]
    assert len(first) == TASKS
    for leader in first:
        of_task = {r["row"]: float(r["value"]) for r in rows if r["column"] == leader["row"] and not r["derived"]}
        assert leader["note"] == max(of_task, key=lambda name: of_task[name])
        assert float(leader["value"]) == of_task[leader["note"]]
    distances = [float(row["value"]) for row in leaders if row["group"] == "first minus best other"]
    assert len(distances) == 3 * TASKS
    for points, low, high in zip(distances[::3], distances[1::3], distances[2::3], strict=True):
        assert low <= points <= high


@pytest.mark.long
def test_the_first_is_in_the_confidence_set(python: Python, tmp_path: Path) -> None:
    """Another procedure on the same entries: whoever has the highest mean may be the best."""
    script = ROOT / "docs" / "examples" / "confidence_set.py"
    files = [ENTRIES / f"{name}.tar.xz" for name in ("ditto", "scd", "local")]  # two cells of SCD diverged
    done = python(script, *files, folder=tmp_path)
    rows = [
        line.strip("| ").split(" | ")
        for line in done.stdout.splitlines()
        if line.startswith(("| ditto", "| scd", "| local"))
    ]
    assert {row[0] for row in rows} == {"ditto", "scd", "local"}
    assert rows[0][-1] == "yes"


@pytest.mark.slow
def test_a_changed_fedprox_joins_in_one_command(start_in: Start, tmp_path: Path) -> None:
    source = (ROOT / "methods" / "fedprox.py").read_text(encoding="utf-8")
    (tmp_path / "mine.py").write_text(source.replace('"fedprox"', '"mine"'), encoding="utf-8")
    for arguments in (
        ["league", "run", "--method", "mine.py", "-q"],
        ["league", "report", "--plugin", "mine.py"],
        ["league", "export", "--method", "mine", "--plugin", "mine.py"],
        ["verify", "runs/league_2_small/mine.tar.xz", "--cells", "2", "--plugin", "mine.py"],
    ):
        with start_in(arguments, tmp_path) as process:
            assert process.wait(1800) == 0, arguments
    exported = {path.name for path in (tmp_path / "runs" / "league_2_small" / "export" / "mine").iterdir()}
    assert {"mine.tar.xz", "environment.txt", "CITATION.bib", "CHECKLIST.md", "table_pm.tex", "mine.py"} <= exported
