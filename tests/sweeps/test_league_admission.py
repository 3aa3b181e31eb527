"""The league's definition is pinned, and only entries that keep to it are admitted."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.config.identity import scientific
from bench.errors import UserError
from bench.plugin import METHODS
from bench.results.pack import SUFFIX, pack, unpack
from bench.results.results import CellView, RunView, load_run
from bench.runs.verify.files import read_rows
from bench.settings import Settings
from bench.store.store import Status
from reports.league.shipped import shipped
from reports.statistics.best import MARGIN
from sweeps.admission import NOTHING_CHOSEN, Admission, Division, standing
from sweeps.study import FINALISTS, Study
from sweeps.study_reader import load_study
from tests.conftest import ROOT
from tests.runs.forger import write_rows
from tests.sweeps.conftest import Bench

SMALL = "league_1_small"
"""Its entries are no longer shipped, and stay readable: one is kept beside the tests."""
DEFINITION = {
    "league_1_small": "71ef4ef68bebe152",
    "league_1_full": "31d3d73ac9de2a89",
    "league_2_small": "da2f44412254b06a",
    "league_2_photos": "2828a2aefaadafb4",
}
"""Digests of what the study files mean, whatever the method."""
FILE = Path("mine.tar.xz")
KEPT = ROOT / "tests" / "entries" / SMALL / f"fedper{SUFFIX}"
Admit = Callable[[RunView], None]
SHIPPED = ROOT / "reports" / "league" / "entries" / "league_2_small" / f"fedper{SUFFIX}"


@pytest.fixture(scope="module")
def study() -> Study:
    return load_study(SMALL, [])


@pytest.fixture(scope="module")
def entry(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    """An entry of league-1."""
    folder = tmp_path_factory.mktemp("entry") / "fedper"
    unpack(KEPT, folder)
    return load_run(folder)


def changed(entry: RunView, which: Callable[[CellView], bool], **settings: Any) -> RunView:
    """The entry with other settings of some cells."""
    cells = [
        replace(cell, settings=cell.settings.model_copy(update=settings)) if which(cell) else cell
        for cell in entry.cells
    ]
    return replace(entry, cells=cells)


def first_cell(**settings: Any) -> Callable[[RunView], RunView]:
    """An edit: other settings of the entry's first cell."""
    return lambda entry: changed(entry, lambda cell: cell is entry.cells[0], **settings)


@pytest.mark.parametrize("name", DEFINITION)
def test_the_definition_is_pinned(name: str) -> None:
    """Tasks, seeds, trials, ranges and the margin are those that the shipped entries were computed with."""
    study = load_study(name, [])
    rest = study.file.model_dump(
        mode="json", include={"sampler", "pruner", "objective", "seeds", "report_seeds", "draws", "default_seeds"}
    )
    arms = [
        [arm.trials, arm.report_seeds, arm.final_seeds, [[one.key, one.text] for one in arm.dimensions]]
        for arm in study.arms
    ]
    tasks = [[(cell.case, _of_all_methods(cell)) for cell in arm.cells] for arm in study.arms]
    text = json.dumps([tasks, arms, rest, FINALISTS, MARGIN], sort_keys=True)
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    assert digest == DEFINITION[name], (
        f"{name} is not what it was ({digest}). Another task, setting, seed, budget, range or margin is another "
        "version of the league: give it another name, and compute its entries"
    )


def _of_all_methods(cell: Settings) -> dict[str, Any]:
    """What identifies a league's cells, but for the method."""
    return {key: value for key, value in scientific(cell).items() if key not in ("method", "hp")}


@pytest.mark.parametrize(
    ("name", "division"),
    [
        # `make docs` admits these two divisions, too: the league's page is of them
        pytest.param("league_2_small", "tuned", marks=pytest.mark.slow),
        pytest.param("league_2_small", "default", marks=pytest.mark.slow),
        pytest.param("league_2_photos", "tuned", marks=pytest.mark.long),
    ],
)
def test_the_shipped_entries_keep_to_the_definition(name: str, division: Division, tmp_path: Path) -> None:
    files = shipped(standing(name, division))
    admission = Admission(
        load_study(name, []), {file.name.removesuffix(SUFFIX): file for file in files}, division=division
    )
    for file in files:
        unpack(file, tmp_path / file.name)
        run = load_run(tmp_path / file.name)
        admission.admit(file, run)
        assert {cell.label for cell in run.cells} == {file.name.removesuffix(SUFFIX)}  # names are reserved by file


@pytest.fixture(scope="module")
def trusting(study: Study, entry: RunView) -> Admit:
    """Admits an entry by all rules but that its files agree, as if its checksum were listed."""

    def admit(run: RunView) -> None:
        Admission(study, {"fedper": KEPT}).admit(KEPT, run)

    admit(entry)
    return admit


@pytest.fixture
def tables(entry: RunView, tmp_path: Path) -> RunView:
    """The entry with copies of its tables, which a test may edit."""
    shutil.copytree(entry.path, tmp_path / "entry", ignore=lambda _, names: [n for n in names if "." not in n])
    return replace(entry, path=tmp_path / "entry")


def without(entry: RunView, which: Callable[[CellView], bool]) -> RunView:
    return replace(entry, cells=[cell for cell in entry.cells if not which(cell)])


def is_first_task(cell: CellView) -> bool:
    return cell.settings.case == "skew 1"


def of_one_seed(entry: RunView) -> RunView:
    """Each task's first cell in place of all five."""
    firsts = {cell.settings.case: cell for cell in reversed(entry.cells)}
    return replace(entry, cells=[firsts[cell.settings.case] for cell in entry.cells])


def unfinished(entry: RunView) -> RunView:
    first, *others = entry.cells
    return replace(entry, cells=[replace(first, status=Status(state="failed", reason="no memory")), *others])


WRONG_CELLS: dict[str, tuple[Callable[[RunView], RunView], str]] = {
    "one task": (
        lambda entry: without(entry, lambda cell: not is_first_task(cell)),
        "digits skew 0.1 alpha=0.1: it has the seeds none; an entry of league_1_small has the seeds 0, 1, 2, 3, 4",
    ),
    "four seeds": (
        lambda entry: without(entry, lambda cell: cell.settings.seed == 3),
        "digits skew 1 alpha=1: it has the seeds 0, 1, 2, 4; an entry",
    ),
    "a cell": (
        lambda entry: without(entry, lambda cell: cell.settings.case == "shards" and cell.settings.seed == 0),
        "digits shards: it has the seeds 1, 2, 3, 4; an entry",
    ),
    "a seed for all": (of_one_seed, "digits skew 1 alpha=1: it has the seeds 0, 0, 0, 0, 0; an entry"),
    "an unfinished cell": (unfinished, r"fedper digits skew 1 alpha=1 seed=0 is not done \(failed; no memory\)"),
    "another task": (first_cell(case="mine"), "league_1_small has no such task"),
    "other settings": (
        first_cell(rounds=48, model_options={"hidden": 64, "layers": 1}),
        "not a cell of league_1_small: model_options is .*64.*, not .*32.*; rounds is 48, not 24",
    ),
    "another seed": (first_cell(seed=5), "league_1_small has no such task with seed 5"),
    "tests as validation": (first_cell(protocol="paper"), 'protocol is "paper", not "honest"'),
    "outside the range": (
        lambda entry: changed(entry, is_first_task, lr=2.0),
        r"lr = 2.0 is outside its range, 0.02 to 1 \(log\)",
    ),
    "a setting for one seed": (first_cell(lr=0.5), "lr is 0.*, not 0"),
    "what is not searched": (
        lambda entry: changed(entry, lambda cell: True, hp={"personal": ["blocks"]}),
        r'personal is \["blocks"\], not \["head"\]',
    ),
}


@pytest.mark.parametrize(("edit", "said"), WRONG_CELLS.values(), ids=WRONG_CELLS.keys())
def test_an_entry_with_other_cells_is_refused(
    trusting: Admit, entry: RunView, edit: Callable[[RunView], RunView], said: str
) -> None:
    with pytest.raises(UserError, match=f"fedper.tar.xz: .*{said}"):
        trusting(edit(entry))


def test_only_an_untuned_task_may_be_left_out(trusting: Admit, study: Study, entry: RunView, tables: RunView) -> None:
    """And its trials say so, none of which came to its end. It leaves the method without a rank; to publish, any whole
    task may be left out, but no seed of one."""
    few = without(entry, is_first_task)
    Admission(study, {"fedper": KEPT}, whole=False).admit(KEPT, few)
    with pytest.raises(UserError, match="it has the seeds 0, 1, 2, 3; an entry"):
        Admission(study, {}, whole=False).admit(FILE, without(entry, lambda cell: cell.settings.seed == 4))
    with pytest.raises(UserError, match="it has the seeds none"):
        trusting(few)
    tuning, trials = tables.path / "tuning.csv", tables.path / "trials_0.csv"
    edit_table(tuning, "fedper,,chosen,,,,,lr=0.208", f"fedper,,chosen,,,,,{NOTHING_CHOSEN}")
    untuned = replace(few, path=tables.path)
    with pytest.raises(UserError, match=r"skew 1 alpha=1: it has no cell, and trials_0\.csv has trials that came"):
        trusting(untuned)
    trials.write_text(trials.read_text(encoding="utf-8").replace("complete", "pruned"), encoding="utf-8")
    edit_table(tuning, "fedper,,pruned,2", "fedper,,pruned,8")
    trusting(untuned)
    trials.unlink()
    with pytest.raises(UserError, match=r"FileNotFoundError: .*trials_0.csv"):
        trusting(untuned)


def test_a_task_has_one_line_of_tuning(trusting: Admit, tables: RunView) -> None:
    """Under its old and its new name it could have two, of which one chooses nothing."""
    file = tables.path / "tuning.csv"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    edit_table(file, "digits skew 1 alpha=1", "digits skew 1")
    trusting(tables)
    second = lines[1 : 1 + next(at for at, line in enumerate(lines[2:], start=1) if ",task," in line)]
    with open(file, "a", encoding="utf-8") as open_file:
        open_file.writelines(second)
    with pytest.raises(UserError, match=r"tuning.csv has 2 lines of it; it should have one"):
        trusting(tables)


def edit_table(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


WRONG_TABLES = {
    "more trials": (
        "tuning.csv",
        "trials,8",
        "trials,16",
        "digits skew 1 alpha=1: tuned with 16 trials; league_1_small",
    ),
    "another range": (
        "tuning.csv",
        "lr: 0.02 to 1",
        "lr: 0.01 to 1",
        r"tuned over lr: 0.01 to 1 \(log\); league_1_small has lr: 0.02",
    ),
    "a task untuned": ("tuning.csv", "skew 0.1", "skew 0.2", "digits skew 0.1 alpha=0.1: tuning.csv has 0 lines of it"),
    "another choice": ("tuning.csv", "lr=0.208", "lr=0.2", "its cells have lr=0.208, and tuning.csv chooses lr=0.2"),
    "nothing chosen": (
        "tuning.csv",
        "lr=0.208",
        NOTHING_CHOSEN,
        "its cells have lr=0.208, and tuning.csv chooses none",
    ),
    "no such trial": ("trials_0.csv", "4,,lr,0.208", "4,,lr,0.209", "no trial of trials_0.csv that came to its end"),
    "a pruned trial": (
        "trials_0.csv",
        "4,,state,,,,,complete",
        "4,,state,,,,,pruned",
        "3 of them pruned; tuning.csv say",
    ),
    "seven trials": ("trials_0.csv", "\n7,", "\n6,", "has 7 trials"),
    "garbage": ("trials_0.csv", "4,,PM,90.20", "4,,PM,good", "its settings or tables are not what the harness writes"),
}


@pytest.mark.parametrize(("name", "old", "new", "said"), WRONG_TABLES.values(), ids=WRONG_TABLES.keys())
def test_an_entry_that_was_tuned_otherwise_is_refused(
    trusting: Admit, tables: RunView, name: str, old: str, new: str, said: str
) -> None:
    table = tables.path / name
    text = table.read_text(encoding="utf-8")
    assert old in text
    table.write_text(text.replace(old, new) if name == "trials_0.csv" else text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(UserError, match=said):
        trusting(tables)
    table.unlink()
    with pytest.raises(UserError, match=f"FileNotFoundError: .*{name}"):
        trusting(tables)


def test_a_setting_that_three_others_beat_is_refused(trusting: Admit, tables: RunView) -> None:
    """One of the best three is chosen; which of them, only their further runs say."""
    for trial, pm in (("0", "83.75"), ("1", "88.78")):
        edit_table(tables.path / "trials_0.csv", f"{trial},,PM,{pm}", f"{trial},,PM,99.0{trial}")
    with pytest.raises(UserError, match=r"3 settings of trials_0.csv are better than that of its cells"):
        trusting(tables)


def test_an_entry_is_of_one_known_method_and_called_as_that(
    study: Study, entry: RunView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So neither a method that nobody can look at nor the bound under another name stands among the ranked ones."""

    def refused(run: RunView, said: str, taken: dict[str, Path]) -> None:
        with pytest.raises(UserError, match=said):
            Admission(study, taken).admit(FILE, run)

    mine = replace(entry, cells=[replace(cell, label="mine") for cell in entry.cells])
    refused(mine, "the entry is called 'mine' and its method is 'fedper'", {})
    refused(changed(mine, lambda cell: True, method="mine"), r"there is no method 'mine' here, .* --plugin FILE.py", {})
    bound = changed(mine, lambda cell: True, method="centralized")
    refused(bound, "the entry is called 'mine' and its method is 'centralized'", {})
    taken = {"fedper": Path("fedper.tar.xz")}
    refused(entry, r"mine.tar.xz: there is an entry 'fedper' already, fedper.tar.xz", taken)
    first, *others = entry.cells
    two = replace(entry, cells=[replace(first, label="ditto"), *others])
    refused(two, "an entry is of one method, and this one has ditto, fedper", {})
    monkeypatch.setattr(METHODS.get("fedper"), "bound", True, raising=False)
    refused(entry, "fedper sees all clients' data", {})


@pytest.mark.long
def test_files_of_an_entry_that_disagree_are_refused(study: Study, entry: RunView, tmp_path: Path) -> None:
    """As `bench verify --cells 0` refuses them; without the edit a file that no list names is admitted."""
    run = load_run(shutil.copytree(entry.path, tmp_path / "run"))
    admission = Admission(study, {})
    admission.admit(Path("other.tar.xz"), run)
    with pytest.raises(UserError, match=r"mine.tar.xz: there is an entry 'fedper' already, other.tar.xz"):
        admission.admit(FILE, run)
    rows = read_rows(run.cells[-1].folder, "metrics")
    row = next(row for row in rows if (row["metric"], row["quantity"], row["split"]) == ("pm", "accuracy", "test"))
    row["value"] = repr(float(row["value"]) + 0.02)
    write_rows(run.cells[-1].folder, "metrics", rows)  # with the table's checksum
    with pytest.raises(UserError, match=r"is wrong: metrics.csv, line \d+: accuracy"):
        Admission(study, {}).admit(FILE, load_run(run.path))


@pytest.mark.long
def test_the_page_is_not_made_with_a_rogue(bench: Bench, tmp_path: Path) -> None:
    """Through the command: an entry with an extra task, and one with the name of a shipped one."""
    unpack(SHIPPED, tmp_path / "rogue")
    text = (tmp_path / "rogue" / "run.json").read_text(encoding="utf-8")
    mine = text.replace('"label": "fedper"', '"label": "mine"')
    (tmp_path / "rogue" / "run.json").write_text(mine.replace('"case": "rotation"', '"case": "mine"'), encoding="utf-8")
    pack(tmp_path / "rogue", tmp_path / FILE)
    shutil.copy(SHIPPED, tmp_path / "twin.tar.xz")
    shutil.copy(SHIPPED.parent / "partitions.json.xz", tmp_path)
    for file, said in (
        (FILE.name, "mine digits mine alpha=1 seed="),
        ("twin.tar.xz", "there is an entry 'fedper' already"),
    ):
        assert f"bench: {file}: {said}" in bench("league", "report", file, code=2)
    assert not (tmp_path / "runs").exists()
