"""`bench league` before anything is trained: dry runs, methods given by their file, refusals, comparisons."""

import shutil
from pathlib import Path

import pytest
import yaml

from bench.results.pack import SHARED, SUFFIX, unpack
from reports.league.page import write_league
from tests.conftest import ROOT
from tests.sweeps.conftest import Bench

SHIPPED = ROOT / "reports" / "league" / "entries" / "league_2_small"
NAMES = ("ditto", "fedper", "local")
METHOD = (ROOT / "methods" / "fedavg.py").read_text(encoding="utf-8")


REFUSED = {
    "report --method dito": "there is no entry of a method 'dito'. Did you mean 'ditto'?",
    "run --method fedavg --tier full": "--tier full: league-2 has the tiers photos, small; see also --league",
    "report --league 1 --tier photos": "--tier photos: league-1 has the tiers full, small; see also --league",
    "run --method fedavg --league 1 --division default": "--division default: only league-2's small tier has one",
    "run --method fedavg --tier photos --division default": "--division default: only league-2's small tier has one",
    "export --method fedavg --division default": "there is no runs/league_2_small_default/fedavg.tar.xz: "
    "`bench league run --method fedavg`, with the same options, makes it",
    "report --league 1": "there are no entries yet: `bench league run --method NAME`, with the same options, makes one",
}


@pytest.mark.parametrize("command", REFUSED)
def test_what_is_not_there_is_refused(bench: Bench, tmp_path: Path, command: str) -> None:
    assert bench("league", *command.split(), code=2) == f"bench: {REFUSED[command]}\n"
    assert not (tmp_path / "runs").exists()


@pytest.mark.long
def test_two_folders_are_compared_and_nothing_is_written(bench: Bench, tmp_path: Path) -> None:
    """Some of the shipped entries against all three of them; a folder without any is refused."""
    for name in NAMES:
        shutil.copy(SHIPPED / f"{name}{SUFFIX}", tmp_path)
    (tmp_path / "two").mkdir()
    for name in NAMES[:2]:
        shutil.copy(SHIPPED / f"{name}{SUFFIX}", tmp_path / "two")
    for folder in (tmp_path, tmp_path / "two"):
        shutil.copy(SHIPPED / SHARED, folder)
    before = sorted(tmp_path.rglob("*"))
    said = bench("league", "compare", ".", "two")
    assert "**PM.** 2 methods have a rank in both, of 3 old and 2 new ones; the 2 that moved" in said
    assert "Kendall's tau 1.000, Spearman's rho 1.000" in said
    assert "**GM.** Fewer than two methods have a rank in both." in said  # one of the two trains no generic model
    assert "| ditto | 1 |" in said
    assert sorted(tmp_path.rglob("*")) == before
    said = bench("league", "compare", ".", "nowhere", code=2)
    assert "there is no folder of entries nowhere" in said


@pytest.mark.long
def test_the_page_begins_with_the_method(tmp_path: Path) -> None:
    """After what it says in short; the matrices of wins are there with and without it."""
    for name in NAMES:
        unpack(SHIPPED / f"{name}{SUFFIX}", tmp_path / name)
    runs = [tmp_path / name for name in NAMES]
    for method in (None, "fedper"):
        page = write_league(runs, tmp_path / "page", "test", method)
        text = page.read_text(encoding="utf-8")
        at = text.find('<section id="method"')
        assert (text.find('<section id="short"') < at < text.find('<section id="standing_pm"')) == (method is not None)
        assert (page.parent / "tables" / "method_pm.csv").exists() == (method is not None)
        assert (page.parent / "tables" / "wins_pm.csv").exists()


@pytest.mark.long
def test_a_dry_run_of_a_file_counts_cells_and_rounds(bench: Bench, tmp_path: Path) -> None:
    """Eight tasks, each tuned four times by eight trials on one seed, with seven seeds of results; one has 40 rounds,
    not 24."""
    (tmp_path / "mine.py").write_text(METHOD.replace('"fedavg"', '"mine"'), encoding="utf-8")
    said = bench("league", "run", "--method", "mine.py", "--dry-run").splitlines()
    assert sum(line.startswith("mine ") and "15 cells, 24 rounds of " in line for line in said) == 7 * 4
    few = [line for line in said if line.startswith("mine digits sizes and few at a time")]
    assert len(few) == 4
    assert all("15 cells, 40 rounds of " in line for line in few)
    rounds = 7 * 24 + 40
    assert "trials: 256 cells, best trials again: 0 cells, results: 224 cells" in said
    assert any(line.startswith(f"480 cells, at most {60 * rounds} rounds, ") and " of memory" in line for line in said)
    assert not (tmp_path / "runs").exists()


@pytest.mark.long
def test_a_dry_run_of_the_full_tier_needs_no_data(bench: Bench, tmp_path: Path) -> None:
    """It says which are missing. One case and a small model, because the forecast times rounds of every case."""
    definition = yaml.safe_load((ROOT / "sweeps" / "studies" / "league_1_full.yaml").read_text(encoding="utf-8"))
    definition["grid"] |= {"cases": definition["grid"]["cases"][2:3], "model": "mlp", "precision": "fp32"}
    (tmp_path / "full.yaml").write_text(yaml.safe_dump(definition), encoding="utf-8")
    said = bench("sweep", "--study", "full.yaml", "--device", "cpu", "--dry-run")
    for data, file in (("cifar10", "cifar-10-batches-py"), ("cifar100", "cifar-100-python")):
        assert f"fedavg {data} 1 in 10 clients alpha=0.3: 27 cells, 400 rounds of " in said
        assert f"missing, for 1 of 2: {data}: data/{file}" in said
    assert f"54 cells, at most {54 * 400} rounds" in said
    assert "add `--download`" in said


def test_a_file_of_no_method_or_of_two_is_refused(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "none.py").write_text("x = 1\n", encoding="utf-8")
    assert "none.py registers no method" in bench("league", "run", "--method", "none.py", code=2)
    two = METHOD.replace('@METHODS.register("fedavg")', '@METHODS.register("one")\n@METHODS.register("two")')
    (tmp_path / "both.py").write_text(two, encoding="utf-8")
    said = bench("league", "run", "--method", "both.py", code=2)
    assert "both.py registers 2 methods: choose one, for instance --method one --plugin both.py" in said
