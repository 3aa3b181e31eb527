"""`bench league compare`, and `bench league report --method`: what is told before anything is computed."""

import shutil
from pathlib import Path

import pytest

from bench.results.pack import SHARED, SUFFIX, unpack
from reports.league.page import write_league
from tests.conftest import ROOT
from tests.warm import PATIENCE, Start

SHIPPED = ROOT / "reports" / "league" / "entries" / "league_2_small"
NAMES = ("ditto", "fedper", "local")


def run(start_in: Start, folder: Path, *arguments: object) -> tuple[int, str, str]:
    with start_in(["league", *map(str, arguments)], folder) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode is not None
    return process.returncode, out, err


def test_an_unknown_method_is_refused_with_a_near_name(start_in: Start, tmp_path: Path) -> None:
    code, _, said = run(start_in, tmp_path, "report", "--method", "dito")
    assert (code, said.strip()) == (2, "bench: there is no entry of a method 'dito'. Did you mean 'ditto'?")
    assert not (tmp_path / "runs").exists()


REFUSED = {
    "run --method fedavg --tier full": "--tier full: league-2 has the tiers photos, small; see also --league",
    "report --league 1 --tier photos": "--tier photos: league-1 has the tiers full, small; see also --league",
    "run --method fedavg --league 1 --division default": "--division default: only league-2's small tier has one",
    "run --method fedavg --tier photos --division default": "--division default: only league-2's small tier has one",
    "export --method fedavg --division default": "there is no runs/league_2_small_default/fedavg.tar.xz: "
    "`bench league run --division default --method fedavg` makes it",
    "report --league 1": "there are no entries yet: `bench league run --league 1 --method NAME` makes one",
}


@pytest.mark.parametrize("command", REFUSED)
def test_a_division_that_is_not_there_is_refused(start_in: Start, tmp_path: Path, command: str) -> None:
    code, _, said = run(start_in, tmp_path, *command.split())
    assert (code, said.strip()) == (2, f"bench: {REFUSED[command]}")
    assert not (tmp_path / "runs").exists()


@pytest.mark.long
def test_two_folders_are_compared_and_nothing_is_written(start_in: Start, tmp_path: Path) -> None:
    """Some of the shipped entries against all three of them; a folder without any is refused."""
    for name in NAMES:
        shutil.copy(SHIPPED / f"{name}{SUFFIX}", tmp_path)
    (tmp_path / "two").mkdir()
    for name in NAMES[:2]:
        shutil.copy(SHIPPED / f"{name}{SUFFIX}", tmp_path / "two")
    for folder in (tmp_path, tmp_path / "two"):
        shutil.copy(SHIPPED / SHARED, folder)
    before = sorted(tmp_path.rglob("*"))
    code, said, _ = run(start_in, tmp_path, "compare", ".", "two")
    assert code == 0
    assert "**PM.** 2 methods have a rank in both, of 3 old and 2 new ones." in said
    assert "Kendall's tau 1.000, Spearman's rho 1.000" in said
    assert "**GM.** Fewer than two methods have a rank in both." in said  # one of the two trains no generic model
    assert "| ditto | 1 |" in said
    assert sorted(tmp_path.rglob("*")) == before
    code, _, said = run(start_in, tmp_path, "compare", ".", "nowhere")
    assert code == 2
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
        assert (page.parent / "figures" / "wins_pm.png").exists()
