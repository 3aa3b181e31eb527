"""What `bench league export` makes: a folder from which somebody else can verify an entry."""

import csv
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from bench.results.pack import SUFFIX, unpack
from bench.results.results import load_run
from reports.league.export import write_export
from reports.league.page import write_league
from tests.conftest import ROOT
from tests.sweeps.conftest import Bench

STUDY = "league_2_small"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """FedProx in a file of its own, `mine.py`, with half of its loss in a second file beside it."""
    source = (ROOT / "methods" / "fedprox.py").read_text(encoding="utf-8").replace('"fedprox"', '"mine"')
    source = source.replace("from methods.losses import proximal", "from pull import proximal")
    (tmp_path / "mine.py").write_text(source, encoding="utf-8")
    (tmp_path / "pull.py").write_text(
        "from methods.losses import proximal\n\n__all__ = ['proximal']\n", encoding="utf-8"
    )
    return tmp_path / "mine.py"


def shipped(name: str, folder: Path) -> Path:
    """A shipped entry as a run folder."""
    unpack(ROOT / "reports" / "league" / "entries" / STUDY / f"{name}{SUFFIX}", folder / name)
    return folder / name


@pytest.mark.long
def test_an_exported_folder_verifies_alone(bench: Bench, mine: Path, tmp_path: Path) -> None:
    """Elsewhere, with the README's command; and not at all if the method has changed since it was run."""
    definition = yaml.safe_load((ROOT / "sweeps" / "studies" / f"{STUDY}.yaml").read_text(encoding="utf-8"))
    digits = definition["grid"]["datasets"][0]
    definition["grid"] |= {"methods": ["mine"], "datasets": [digits | {"cases": digits["cases"][:1]}]}
    (tmp_path / "one_task.yaml").write_text(yaml.safe_dump(definition), encoding="utf-8")
    league = tmp_path / "runs" / STUDY
    common = ("--plugin", "mine.py", "--device", "cpu", "--no-tracking", "--no-page", "-q")
    bench("sweep", "--study", "one_task.yaml", "--out", league / "mine", *common)
    bench("pack", league / "mine", "--out", league / "mine.tar.xz")
    export = ("league", "export", "--method", "mine.py")
    assert "`bench league report` makes it" in bench(*export, code=2)
    write_league([shipped("fedavg", tmp_path), shipped("ditto", tmp_path), league / "mine"], league / "report", "test")
    said = bench(*export)
    assert str(Path("runs", STUDY, "export", "mine")) in said
    elsewhere = tmp_path / "elsewhere"
    (league / "export" / "mine").rename(elsewhere)

    (tmp_path / "pull.py").write_text("def proximal(values, center):\n    return 0\n", encoding="utf-8")
    assert "the method's code, the data or the settings are not those it was run with" in bench(*export, code=2)
    mine.unlink()

    readme = (elsewhere / "README.md").read_text(encoding="utf-8")
    [command] = re.findall(r"```\nbench (.*)\n```", readme)
    assert command == "verify mine.tar.xz --plugin mine.py"
    said = bench(*command.split(), "--cells", 2, folder=elsewhere)
    assert "28 cells, 2 computed again as they were, 0 but for rounding, 0 drifted apart, 0 wrong" in said
    chosen = yaml.safe_load((elsewhere / "settings.yaml").read_text(encoding="utf-8"))
    task = "digits labels and new clients alpha=0.1"
    assert list(chosen) == [f"{task}, draw {draw}" for draw in (1, 2, 3, 4)]
    assert all(set(of_draw) == {"lr", "mu"} for of_draw in chosen.values())
    checklist = (elsewhere / "CHECKLIST.md").read_text(encoding="utf-8")
    assert "8 trials for each task in each of 4 draws, 32 together" in checklist
    assert "in 56 rounds of the 28 reported cells" in checklist


@pytest.mark.long
def test_an_export_says_what_its_reader_will_miss(tmp_path: Path) -> None:
    """Of a shipped entry: a table of few columns with the page's numbers; and a warning of edits without a commit."""
    names = ("ditto", "fedavg", "fedper", "finetune", "local")
    runs = [shipped(name, tmp_path) for name in names]
    page = write_league(runs, tmp_path / "page", "test").parent
    with open(page / "tables" / "entries.csv", encoding="utf-8") as lines:
        evaluations = [line["value"] for line in csv.DictReader(lines) if line["column"] == "test evaluations"]
    assert evaluations == ["504"] * 5  # 28 seeds: seven tasks evaluated twice, one four times
    run = load_run(runs[0])
    dirty = replace(run, info={**run.info, "commit": "0123abc-dirty"})
    file = ROOT / "reports" / "league" / "entries" / STUDY / f"ditto{SUFFIX}"
    for one, warned in ((run, False), (dirty, True)):
        folder = tmp_path / "out"
        warnings = write_export(file, one, page, folder, STUDY)
        texts = [(folder / name).read_text(encoding="utf-8") for name in ("README.md", "CHECKLIST.md")]
        assert all(("edits that are in no commit (0123abc-dirty)" in text) is warned for text in (*texts, *warnings))
        assert bool(warnings) is warned
    citation = (folder / "CITATION.bib").read_text(encoding="utf-8")
    described = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation.replace("{", "").replace("}", "").replace("\n", " ").count(described["title"]) == 1
    assert described["authors"][0]["name"] in citation
    assert "version = {0.1.0}" in citation
    assert "Commit 0123abc;" in citation
    table = (folder / "table_pm.tex").read_text(encoding="utf-8").splitlines()
    assert "Task & ditto & fedavg & local & finetune & fedper" in next(line for line in table if "Task &" in line)
    with open(page / "main_pm.csv", encoding="utf-8") as lines:
        values = {(line["row"], line["column"]): line["value"] for line in csv.DictReader(lines)}
    [rotation] = [line for line in table if line.startswith("rotation")]
    assert re.findall(r"\d+\.\d+", rotation) == [
        values[name, "rotation"] for name in ("ditto", "fedavg", "local", "finetune", "fedper")
    ]
