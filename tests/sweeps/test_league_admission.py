"""The league's definition is pinned, and only entries that keep to it are admitted."""

import hashlib
import json
import re
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
from tests.warm import PATIENCE, Start

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


@pytest.fixture(scope="module")
def trusting(study: Study, entry: RunView) -> Callable[[RunView], None]:
    """Admits an entry by all rules but that its files agree, as if its checksum were listed."""

    def admit(run: RunView) -> None:
        admission = Admission(study, {"fedper": KEPT})
        admission.admit(KEPT, run)

    admit(entry)
    return admit


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


def without(entry: RunView, which: Callable[[CellView], bool]) -> RunView:
    return replace(entry, cells=[cell for cell in entry.cells if not which(cell)])


def is_first_task(cell: CellView) -> bool:
    return cell.settings.case == "skew 1"


MISSING: dict[str, tuple[Callable[[RunView], RunView], str]] = {
    "one task": (
        lambda entry: without(entry, lambda cell: not is_first_task(cell)),
        "digits skew 0.1 alpha=0.1: it has no cell; an entry of league_1_small has the seeds 0, 1, 2, 3, 4",
    ),
    "four seeds": (
        lambda entry: without(entry, lambda cell: cell.settings.seed == 3),
        "digits skew 1 alpha=1: it has the seeds 0, 1, 2, 4; an entry",
    ),
    "a cell": (
        lambda entry: without(entry, lambda cell: cell.settings.case == "shards" and cell.settings.seed == 0),
        "digits shards: it has the seeds 1, 2, 3, 4; an entry",
    ),
    "a seed for all": (
        lambda entry: replace(
            entry, cells=[next(one for one in entry.cells if one.settings.case == c.settings.case) for c in entry.cells]
        ),
        "digits skew 1 alpha=1: it has the seeds 0, 0, 0, 0, 0; an entry",
    ),
    "an unfinished cell": (
        lambda entry: replace(
            entry, cells=[replace(entry.cells[0], status=Status(state="failed", reason="no memory")), *entry.cells[1:]]
        ),
        r"fedper digits skew 1 alpha=1 seed=0 is not done \(failed; no memory\)",
    ),
}


@pytest.mark.parametrize(("edit", "said"), MISSING.values(), ids=MISSING.keys())
def test_an_entry_without_a_cell_is_refused(
    trusting: Callable[[RunView], None], entry: RunView, edit: Callable[[RunView], RunView], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        trusting(edit(entry))


def test_only_an_untuned_task_may_be_left_out(
    trusting: Callable[[RunView], None], study: Study, entry: RunView, tmp_path: Path
) -> None:
    """And its trials say so, none of which came to its end. It leaves the method without a rank; to publish, any whole
    task may be left out, but no seed of one."""
    few = without(entry, is_first_task)
    Admission(study, {"fedper": KEPT}, whole=False).admit(KEPT, few)
    with pytest.raises(UserError, match="it has the seeds 0, 1, 2, 3; an entry"):
        Admission(study, {}, whole=False).admit(FILE, without(entry, lambda cell: cell.settings.seed == 4))
    with pytest.raises(UserError, match="it has no cell"):
        trusting(few)
    shutil.copytree(entry.path, tmp_path / "entry", ignore=lambda _, names: [n for n in names if "." not in n])
    edit_table(tmp_path / "entry" / "tuning.csv", "fedper,,chosen,,,,,lr=0.208", f"fedper,,chosen,,,,,{NOTHING_CHOSEN}")
    untuned = replace(few, path=tmp_path / "entry")
    with pytest.raises(
        UserError, match=r"skew 1 alpha=1: it has no cell, and trials_0.csv has trials that came to their"
    ):
        trusting(untuned)
    table = tmp_path / "entry" / "trials_0.csv"
    table.write_text(table.read_text(encoding="utf-8").replace("complete", "pruned"), encoding="utf-8")
    edit_table(tmp_path / "entry" / "tuning.csv", "fedper,,pruned,2", "fedper,,pruned,8")
    trusting(untuned)
    table.unlink()
    with pytest.raises(UserError, match=r"trials_0.csv, the table of its trials, is not in the entry"):
        trusting(untuned)


def test_a_task_has_one_line_of_tuning(trusting: Callable[[RunView], None], entry: RunView, tmp_path: Path) -> None:
    """Under its old and its new name it could have two, of which one chooses nothing."""
    shutil.copytree(entry.path, tmp_path / "entry", ignore=lambda _, names: [n for n in names if "." not in n])
    edit_table(tmp_path / "entry" / "tuning.csv", "digits skew 1 alpha=1", "digits skew 1")
    renamed = replace(entry, path=tmp_path / "entry")
    trusting(renamed)
    lines = (entry.path / "tuning.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    second = lines[1 : 1 + next(at for at, line in enumerate(lines[2:], start=1) if ",task," in line)]
    with open(tmp_path / "entry" / "tuning.csv", "a", encoding="utf-8") as file:
        file.writelines(second)
    with pytest.raises(UserError, match=r"tuning.csv has a task twice, under two names"):
        trusting(renamed)


def edit_table(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


ROGUES = {
    "another task": ({"case": "mine"}, "league_1_small has no such task"),
    "other settings": (
        {"rounds": 48, "model_options": {"hidden": 64, "layers": 1}},
        "not a cell of league_1_small: model_options is .*64.*, not .*32.*; rounds is 48, not 24",
    ),
    "another seed": ({"seed": 5}, "league_1_small has the seeds 0, 1, 2, 3, 4 only"),
    "tests as validation": ({"protocol": "paper"}, 'protocol is "paper", not "honest"'),
    "outside the range": ({"lr": 2.0}, r"lr = 2 is outside the range of league_1_small, 0.02 to 1 \(log\)"),
    "a setting for one seed": ({"lr": 0.5}, "tuning chooses one setting for all seeds of a task"),
}


@pytest.mark.parametrize(("settings", "said"), ROGUES.values(), ids=ROGUES.keys())
def test_an_entry_with_other_cells_is_refused(study: Study, entry: RunView, settings: Any, said: str) -> None:
    rogue = changed(entry, lambda cell: cell is entry.cells[0], **settings)
    with pytest.raises(UserError, match=f"mine.tar.xz: fedper digits .*seed=.: .*{said}"):
        Admission(study, {}).admit(FILE, rogue)


TABLES = {
    "more trials": (r"(trials),8\b", r"\1,16", "digits skew 1 alpha=1: tuned with 16 trials; league_1_small has 8"),
    "another range": (
        "lr: 0.02 to 1",
        "lr: 0.01 to 1",
        r"tuned over lr: 0.01 to 1 \(log\); league_1_small has lr: 0.02",
    ),
    "a task untuned": ("skew 0.1", "skew 0.2", "digits skew 0.1 alpha=0.1: tuning.csv has no line of it"),
}


@pytest.mark.parametrize(("pattern", "text", "said"), TABLES.values(), ids=TABLES.keys())
def test_an_entry_with_another_budget_is_refused(
    study: Study, entry: RunView, tmp_path: Path, pattern: str, text: str, said: str
) -> None:
    table = (entry.path / "tuning.csv").read_text(encoding="utf-8")
    (tmp_path / "tuning.csv").write_text(re.sub(pattern, text, table), encoding="utf-8")
    with pytest.raises(UserError, match=f"mine.tar.xz: .*{said}"):
        Admission(study, {}).admit(FILE, replace(entry, path=tmp_path))
    (tmp_path / "tuning.csv").unlink()
    with pytest.raises(UserError, match=r"mine.tar.xz has no tuning.csv: it was not tuned"):
        Admission(study, {}).admit(FILE, replace(entry, path=tmp_path))


UNCHOSEN = {
    "another choice": ("tuning.csv", "lr=0.208", "lr=0.2", "its cells have lr=0.208, and tuning.csv chooses lr=0.2"),
    "nothing chosen": (
        "tuning.csv",
        "lr=0.208",
        NOTHING_CHOSEN,
        "its cells have lr=0.208, and tuning.csv chooses none",
    ),
    "no such trial": (
        "trials_0.csv",
        "4,,lr,0.208000",
        "4,,lr,0.209000",
        "no trial of trials_0.csv that came to its end",
    ),
    "a pruned trial": (
        "trials_0.csv",
        "4,,state,,,,,complete",
        "4,,state,,,,,pruned",
        "3 of them pruned; tuning.csv says",
    ),
    "seven trials": ("trials_0.csv", "\n7,", "\n6,", "has 7 trials"),
    "garbage": ("trials_0.csv", "4,,PM,90.20", "4,,PM,good", "its tables of tuning are not what the harness writes"),
}


@pytest.mark.parametrize(("name", "old", "new", "said"), UNCHOSEN.values(), ids=UNCHOSEN.keys())
def test_a_setting_that_tuning_does_not_choose_is_refused(
    trusting: Callable[[RunView], None], entry: RunView, tmp_path: Path, name: str, old: str, new: str, said: str
) -> None:
    shutil.copytree(entry.path, tmp_path / "entry", ignore=lambda _, names: [n for n in names if "." not in n])
    table = tmp_path / "entry" / name
    text = table.read_text(encoding="utf-8")
    assert old in text
    table.write_text(text.replace(old, new) if "trials" in said else text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(UserError, match=said):
        trusting(replace(entry, path=tmp_path / "entry"))
    table.unlink()
    with pytest.raises(UserError, match=f"has no {name}|{name}, the table of its trials, is not in the entry"):
        trusting(replace(entry, path=tmp_path / "entry"))


def test_a_setting_that_three_others_beat_is_refused(
    trusting: Callable[[RunView], None], entry: RunView, tmp_path: Path
) -> None:
    """One of the best three is chosen; which of them, only their further runs say."""
    shutil.copytree(entry.path, tmp_path / "entry", ignore=lambda _, names: [n for n in names if "." not in n])
    for trial, pm in (("0", "83.75"), ("1", "88.78")):
        edit_table(tmp_path / "entry" / "trials_0.csv", f"{trial},,PM,{pm}", f"{trial},,PM,99.0{trial}")
    trusted = replace(entry, path=tmp_path / "entry")
    with pytest.raises(UserError, match=r"3 settings of trials_0.csv are better than that of its cells"):
        trusting(trusted)


def test_what_is_not_searched_is_the_methods_default(trusting: Callable[[RunView], None], entry: RunView) -> None:
    with pytest.raises(UserError, match=r'personal = \["blocks"\] was not searched, and is not \["head"\]'):
        trusting(changed(entry, lambda cell: True, hp={"personal": ["blocks"]}))


def test_an_entry_is_called_as_its_method_which_is_known(
    study: Study, entry: RunView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So neither a method that nobody can look at nor the bound under another name stands among the ranked ones."""
    unknown = replace(entry, cells=[replace(cell, label="mine") for cell in entry.cells])
    with pytest.raises(UserError, match="the entry is called 'mine' and its method is 'fedper'"):
        Admission(study, {}).admit(FILE, unknown)
    with pytest.raises(UserError, match=r"there is no method 'mine' here, .* --plugin FILE.py"):
        Admission(study, {}).admit(FILE, changed(unknown, lambda cell: True, method="mine"))
    renamed = [
        replace(c, label="mine", settings=c.settings.model_copy(update={"method": "centralized"})) for c in entry.cells
    ]
    with pytest.raises(UserError, match="the entry is called 'mine' and its method is 'centralized'"):
        Admission(study, {}).admit(FILE, replace(entry, cells=renamed))
    monkeypatch.setattr(METHODS.get("fedper"), "bound", True, raising=False)
    with pytest.raises(UserError, match="fedper sees all clients' data"):
        Admission(study, {}).admit(FILE, entry)


def test_an_entry_has_one_name_and_one_method(study: Study, entry: RunView) -> None:
    with pytest.raises(UserError, match=r"mine.tar.xz: there is an entry 'fedper' already, fedper.tar.xz"):
        Admission(study, {"fedper": Path("fedper.tar.xz")}).admit(FILE, entry)
    first, *others = entry.cells
    with pytest.raises(UserError, match="an entry is of one method, and this one has ditto, fedper"):
        Admission(study, {}).admit(FILE, replace(entry, cells=[replace(first, label="ditto"), *others]))


def edit_metrics(folder: Path) -> None:
    """One accuracy, and the table's checksum."""
    rows = read_rows(folder, "metrics")
    row = next(row for row in rows if (row["metric"], row["quantity"], row["split"]) == ("pm", "accuracy", "test"))
    row["value"] = repr(float(row["value"]) + 0.02)
    write_rows(folder, "metrics", rows)


def copy_another_seed(folder: Path) -> None:
    """All numbers of the seed before it, whose clients have as many samples."""
    cell = next(cell for cell in load_run(folder.parent).cells if cell.folder == folder)
    others = [one for one in load_run(folder.parent).cells if one.settings.case == cell.settings.case]
    best = next(one for one in others if one.settings.seed != cell.settings.seed)
    for name in ("metrics", "clients"):
        write_rows(folder, name, read_rows(best.folder, name))


EDITS = {
    "metrics alone": (edit_metrics, "skew 1", r"is wrong: metrics.csv, line \d+: accuracy"),
    "another seed's numbers": (copy_another_seed, "shards", "is wrong: .*(as of seed|by partition.json)"),
}


@pytest.mark.long
@pytest.mark.parametrize(("edit", "case", "said"), EDITS.values(), ids=EDITS.keys())
def test_files_of_an_entry_that_disagree_are_refused(
    study: Study, entry: RunView, tmp_path: Path, edit: Callable[[Path], None], case: str, said: str
) -> None:
    """As `bench verify --cells 0` refuses them; without the edit a file that no list names is admitted."""
    run = load_run(shutil.copytree(entry.path, tmp_path / "run"))
    admission = Admission(study, {})
    admission.admit(Path("other.tar.xz"), run)
    with pytest.raises(UserError, match=r"mine.tar.xz: there is an entry 'fedper' already, other.tar.xz"):
        admission.admit(FILE, run)
    cell = [cell for cell in run.cells if cell.settings.case == case][-1]
    edit(cell.folder)
    with pytest.raises(UserError, match=said):
        Admission(study, {}).admit(FILE, load_run(run.path))


@pytest.mark.long
def test_the_page_is_not_made_with_a_rogue(start_in: Start, tmp_path: Path) -> None:
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
        with start_in(["league", "report", file], tmp_path) as process:
            error = process.communicate(timeout=PATIENCE)[1]
        assert process.returncode == 2
        assert f"bench: {file}: {said}" in error
    assert not (tmp_path / "runs").exists()
