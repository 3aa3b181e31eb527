"""The league: its definition, and one method joined by a command."""

import csv
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.cli.league import VERSION
from bench.runs.pack import unpack
from reports.league import write_league
from sweeps.study import load_study
from tests.conftest import ROOT
from tests.engine.problems import METHOD_NAMES
from tests.reports import conftest
from tests.reports.browser import assert_alive, look, needs_browser
from tests.reports.conftest import write_store
from tests.warm import Start


@pytest.mark.parametrize("tier", ["small", "full"])
def test_the_definition_is_as_the_rules_say(tier: str) -> None:
    """Ten tasks or more with a name each, five fresh seeds, one budget, public samples for those that need them."""
    study = load_study(f"{VERSION}_{tier}", ["methods=[fedavg]"])
    names = [(arm.cells[0].dataset, arm.cells[0].case) for arm in study.arms]
    assert len(set(names)) == len(names) >= 10
    assert all(arm.cells[0].public for arm in study.arms)
    assert {arm.trials for arm in study.arms} == {8}
    assert len(study.file.report_seeds) == 5


def test_every_method_can_take_part_in_the_small_tier() -> None:
    """Its settings are complete for every task; whether it trains is what `check-method` asks."""
    for name in METHOD_NAMES:
        assert len(load_study(f"{VERSION}_small", [f"methods=[{name}]"]).arms) == 12, name


def test_every_shipped_entry_is_listed_with_its_checksum() -> None:
    """`sha256sum *.tar.xz > SHA256SUMS`, given in the folder, makes the list anew; `make league` checks it."""
    folders = [folder for folder in (ROOT / "reports" / "leagues").iterdir() if folder.is_dir()]
    assert folders
    for folder in folders:
        listed = (folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
        entries = folder.glob("*.tar.xz")
        assert {f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}" for file in entries} == set(listed)


@pytest.mark.long
def test_a_second_name_stands_where_the_first_does(tmp_path: Path) -> None:
    """FedAvg under two labels, GM: one tier and one rank, and it says whose."""
    run = write_store(tmp_path / "run", methods=("fedavg", "ditto", "scd"))
    info = json.loads((run / "run.json").read_text(encoding="utf-8"))
    twins = [
        {**cell, "label": "again", "settings": {**cell["settings"], "label": "again"}}
        for cell in info["cells"]
        if cell["label"] == "fedavg"
    ]
    (run / "run.json").write_text(json.dumps({**info, "cells": info["cells"] + twins}), encoding="utf-8")
    page = write_league([run], tmp_path / "page", "test")
    with open(page.parent / "main_gm.csv", encoding="utf-8") as file:
        found = {(row["row"], row["column"]): row for row in csv.DictReader(file)}
    for column in ("rank", "tier"):
        one, other = found["fedavg", column], found["again", column]
        assert (one["value"], column == "tier" or one["note"]) == (other["value"], column == "tier" or other["note"])
    assert found["again", "tier"]["note"] == "= fedavg"


@pytest.mark.long
def test_the_personalization_score_is_a_place_between_two_references(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the better of `local` and `finetune` to `centralized`, which is in brackets and leads nothing."""
    monkeypatch.setitem(conftest.LEVELS, "finetune", conftest.LEVELS["fedavg"])
    monkeypatch.setitem(conftest.LEVELS, "centralized", (0.97, 0.97))
    monkeypatch.setitem(conftest.DERIVED, "centralized", ["gm", "pm"])
    methods = ("local", "finetune", "ditto", "scd", "centralized")
    page = write_league([write_store(tmp_path / "run", methods=methods)], tmp_path / "page", "test")
    main, score = (entries(page.parent / f"{name}.csv") for name in ("main_pm", "tables/score"))
    tasks = {column for _, column in main} - {"tier", "rank"}
    for row in ("ditto", "scd"):
        for task in tasks:
            own, bound, *simple = (main[name, task] for name in (row, "centralized", "local", "finetune"))
            expected = (own - max(simple)) / (bound - max(simple))
            assert score[row, task] == pytest.approx(expected, abs=0.007)
        assert score[row, "mean"] == pytest.approx(sum(score[row, task] for task in tasks) / len(tasks), abs=0.01)
    assert {row for row, _ in score} == {"ditto", "scd"}
    with open(page.parent / "tables" / "leaders_pm.csv", encoding="utf-8") as file:
        assert all(row["note"] != "centralized" for row in csv.DictReader(file))


def entries(file: Path) -> dict[tuple[str, str], float]:
    """The numbers of a table by row and column."""
    with open(file, encoding="utf-8") as open_file:
        rows = list(csv.DictReader(open_file))
    return {(row["row"], row["column"]): float(row["value"]) for row in rows if row["value"]}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of three of the entries that come with the harness."""
    folder = tmp_path_factory.mktemp("league")
    names = ("ditto", "fedavg", "finetune", "local")
    for name in names:
        unpack(ROOT / "reports" / "leagues" / f"{VERSION}_small" / f"{name}.tar.xz", folder / name)
    return write_league([folder / name for name in names], folder / "page", "test")


@needs_browser
@pytest.mark.long
@pytest.mark.parametrize("size", ["1280,900", "390,800"])
def test_the_page_in_a_browser(page: Path, tmp_path: Path, size: str) -> None:
    found = look(page, tmp_path, size, table="settings", typed="ditto")
    assert_alive(found)
    assert len(found["kept"]) == 12
    assert all("ditto" in text for text in found["kept"])


@pytest.mark.long
def test_leaders_are_those_of_the_main_table(page: Path) -> None:
    """The first of a task has the column's highest mean among methods with a rank of their own."""
    with open(page.parent / "main_pm.csv", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["value"] and not row["derived"]]
    with open(page.parent / "tables" / "leaders_pm.csv", encoding="utf-8") as file:
        leaders = [row for row in csv.DictReader(file) if row["column"] == "first"]
    assert len(leaders) == 12
    for leader in leaders:
        of_task = {row["row"]: float(row["value"]) for row in rows if row["column"] == leader["row"]}
        assert leader["note"] == max(of_task, key=lambda name: of_task[name])
        assert float(leader["value"]) == of_task[leader["note"]]


@pytest.mark.long
def test_the_first_is_in_the_confidence_set(environment: dict[str, str]) -> None:
    """Another procedure on the same entries: whoever has the highest mean may be the best."""
    script = ROOT / "docs" / "examples" / "confidence_set.py"
    files = [
        ROOT / "reports" / "leagues" / f"{VERSION}_small" / f"{name}.tar.xz" for name in ("ditto", "fedper", "local")
    ]
    done = subprocess.run([sys.executable, script, *files], env=environment, check=True, capture_output=True, text=True)
    rows = [
        line.strip("| ").split(" | ")
        for line in done.stdout.splitlines()
        if line.startswith(("| ditto", "| fed", "| local"))
    ]
    assert {row[0] for row in rows} == {"ditto", "fedper", "local"}
    assert rows[0][-1] == "yes"


@pytest.mark.slow
def test_a_changed_fedprox_joins_in_one_command(start_in: Start, tmp_path: Path) -> None:
    source = (ROOT / "methods" / "fedprox.py").read_text(encoding="utf-8")
    (tmp_path / "mine.py").write_text(source.replace('"fedprox"', '"mine"'), encoding="utf-8")
    for arguments in (
        ["league", "run", "--method", "mine", "--plugin", "mine.py", "-q"],
        ["league", "report"],
        ["league", "export", "--method", "mine"],
        ["verify", "runs/league_1_small/mine.tar.xz", "--cells", "2", "--plugin", "mine.py"],
    ):
        with start_in(arguments, tmp_path) as process:
            assert process.wait(1800) == 0, arguments
    exported = {path.name for path in (tmp_path / "runs" / "league_1_small" / "export" / "mine").iterdir()}
    assert {"mine.tar.xz", "environment.txt", "CITATION.bib", "CHECKLIST.md", "main_pm.tex", "main_gm.tex"} <= exported
