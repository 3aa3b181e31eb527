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

from bench.cli.league import VERSION
from bench.errors import UserError
from bench.runs.pack import SUFFIX, pack, unpack
from bench.runs.results import CellView, RunView, load_run
from reports.best import MARGIN
from reports.league import shipped
from sweeps.admission import Admission
from sweeps.finals import FINALISTS
from sweeps.study import Study, load_study
from tests.conftest import ROOT
from tests.engine.problems import METHOD_NAMES
from tests.warm import Start

SMALL = f"{VERSION}_small"
DEFINITION = {"small": "ebed2959a3392b26", "full": "432e5ed9d7a533b3"}
"""Digests of what the study files mean, whatever the method."""
FILE = Path("mine.tar.xz")


@pytest.fixture(scope="module")
def study() -> Study:
    return load_study(SMALL, [])


@pytest.fixture(scope="module")
def entry(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    """One of the entries that come with the harness."""
    folder = tmp_path_factory.mktemp("entry") / "fedper"
    unpack(ROOT / "reports" / "leagues" / SMALL / f"fedper{SUFFIX}", folder)
    return load_run(folder)


def changed(entry: RunView, which: Callable[[CellView], bool], **settings: Any) -> RunView:
    """The entry with other settings of some cells."""
    cells = [
        replace(cell, settings=cell.settings.model_copy(update=settings)) if which(cell) else cell
        for cell in entry.cells
    ]
    return replace(entry, cells=cells)


@pytest.mark.parametrize("tier", DEFINITION)
def test_the_definition_is_pinned(tier: str) -> None:
    """Tasks, seeds, trials, ranges and the margin are those that the shipped entries were computed with."""
    study = load_study(f"{VERSION}_{tier}", [])
    tasks = [
        [cell.model_dump(mode="json", exclude={"method", "hp", "label"}) for cell in arm.cells] for arm in study.arms
    ]
    search = [[one.key, one.text] for arm in study.arms for one in arm.dimensions]
    rest = study.file.model_dump(mode="json", include={"sampler", "pruner", "objective", "seeds", "report_seeds"})
    trials = [arm.trials for arm in study.arms]
    text = json.dumps([tasks, search, rest, trials, study.final_seeds, FINALISTS, MARGIN], sort_keys=True)
    found = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    assert found == DEFINITION[tier], (
        f"{VERSION}_{tier} is not what it was ({found}). Another task, setting, seed, budget, range or margin is "
        "another version of the league: give it another name, and compute its entries. Only where the harness has a "
        "new setting, and its default means what all cells did before, may the digest be pinned anew"
    )


def test_every_method_can_take_part_in_the_full_tier() -> None:
    """Its settings are complete for every task."""
    for name in METHOD_NAMES:
        assert len(load_study(f"{VERSION}_full", [f"methods=[{name}]"]).arms) == 12, name


@pytest.mark.long
def test_the_shipped_entries_keep_to_the_definition(study: Study, tmp_path: Path) -> None:
    admission = Admission(study, {})
    for file in shipped(SMALL):
        unpack(file, tmp_path / file.name)
        run = load_run(tmp_path / file.name)
        admission.admit(file, run)
        assert {cell.label for cell in run.cells} == {file.name.removesuffix(SUFFIX)}  # names are reserved by file


def test_an_entry_may_have_too_few_cells(study: Study, entry: RunView) -> None:
    Admission(study, {}).admit(FILE, replace(entry, cells=entry.cells[:7]))


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


def test_an_entry_has_one_name_and_one_method(study: Study, entry: RunView) -> None:
    with pytest.raises(UserError, match=r"mine.tar.xz: there is an entry 'fedper' already, fedper.tar.xz"):
        Admission(study, {"fedper": Path("fedper.tar.xz")}).admit(FILE, entry)
    admission = Admission(study, {})
    admission.admit(Path("other.tar.xz"), entry)
    with pytest.raises(UserError, match=r"mine.tar.xz: there is an entry 'fedper' already, other.tar.xz"):
        admission.admit(FILE, entry)
    first, *others = entry.cells
    with pytest.raises(UserError, match="an entry is of one method, and this one has ditto, fedper"):
        Admission(study, {}).admit(FILE, replace(entry, cells=[replace(first, label="ditto"), *others]))


@pytest.mark.long
def test_the_page_is_not_made_with_a_rogue(start_in: Start, entry: RunView, tmp_path: Path) -> None:
    """Through the command: an entry with an extra task, and one with the name of a shipped one."""
    shutil.copytree(entry.path, tmp_path / "rogue")
    text = (tmp_path / "rogue" / "run.json").read_text(encoding="utf-8")
    mine = text.replace('"label": "fedper"', '"label": "mine"')
    (tmp_path / "rogue" / "run.json").write_text(mine.replace('"case": "shards"', '"case": "mine"'), encoding="utf-8")
    pack(tmp_path / "rogue", tmp_path / FILE)
    shutil.copy(ROOT / "reports" / "leagues" / SMALL / f"fedper{SUFFIX}", tmp_path / "twin.tar.xz")
    for file, said in ((FILE.name, "mine digits mine seed="), ("twin.tar.xz", "there is an entry 'fedper' already")):
        with start_in(["league", "report", file], tmp_path) as process:
            error = process.communicate(timeout=300)[1]
        assert process.returncode == 2
        assert f"bench: {file}: {said}" in error
    assert not (tmp_path / "runs").exists()
