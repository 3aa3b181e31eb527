"""What a draw of cells can find of a forgery, and that nobody can choose the draw."""

import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.runs.verify.verify import discovery
from reports.league.submission import verification
from tests.runs.conftest import Bench
from tests.runs.helpers import make_run
from tools.league import CELLS

ROOT = Path(__file__).parents[2]


def test_the_probability_is_the_share_of_draws_that_hold_a_forged_cell() -> None:
    for cells, forged, drawn in itertools.product((5, 6), (0, 1, 3), (0, 1, 2, 5)):
        draws = list(itertools.combinations(range(cells), drawn))
        found = sum(any(cell < forged for cell in draw) for draw in draws)
        assert discovery(cells, forged, drawn) == pytest.approx(found / len(draws))
    assert discovery(4, 1, 9) == 1


@given(st.integers(1, 3000))
def test_an_entry_that_is_submitted_is_searched_for_five_percent(cells: int) -> None:
    """59 is the least number that suffices for any entry: of many cells, draws are nearly independent."""
    assert discovery(cells, -(-cells // 20), CELLS) >= 0.95
    assert discovery(10**6, 10**6 // 20, CELLS - 1) < 0.95


def test_no_draw_is_made_by_a_commit_or_a_file() -> None:
    """Their authors can try many. Without a seed `bench verify` draws by the operating system's randomness."""
    assert not [argument for argument in verification(Path("a"), [], 3) if "seed" in argument]
    [draw] = re.findall(r"bench verify .*", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert "--seed" not in draw


@pytest.mark.long
def test_the_command_says_what_its_draw_can_find(arrays: Path, tmp_path: Path, bench_here: Bench) -> None:
    run = make_run(tmp_path / "run", arrays, ("fedavg", "local"), rounds=2)
    said = bench_here("verify", run, "--cells", "1", "--jobs", "1").stdout
    assert "2 cells, 1 computed again" in said
    assert "1 meet one with a probability of 0.5 if 5% are, 0.5 if 30% are" in said
