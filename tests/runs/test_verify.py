"""`bench verify` accepts an unchanged run and names the cell of any change; the statistics by which it does."""

import itertools
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.results.results import load_run
from bench.rng import generator
from bench.runs.cell_options import Options
from bench.runs.verify.drift import ENOUGH, FEWEST, LEVEL, shift
from bench.runs.verify.recomputed import compare
from bench.runs.verify.verify import CellVerdict, check_files, discovery
from bench.store import store
from reports.league.export import verification
from tests.conftest import ROOT
from tests.runs.conftest import COMMON, Bench
from tests.runs.forger import change_entries, change_status
from tests.runs.helpers import cells, make_run
from tests.runs.sessions import METHOD
from tests.warm import Start
from tools.league import CELLS

METHODS = ["fedavg", "ditto", "local", "mine"]


@pytest.fixture(scope="module")
def made(start_in: Start, arrays: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plug-in, and a run with four methods, one of them from the plug-in."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "mine.py").write_text(METHOD, encoding="utf-8")
    data = {"name": "npz", "path": str(arrays), "label": "blobs"}
    grid = {**COMMON, "methods": METHODS, "plugins": ["mine.py"], "datasets": [data], "alphas": [1.0], "seeds": [0]}
    (folder / "small.yaml").write_text(yaml.safe_dump({**grid, "rounds": 3}), encoding="utf-8")
    with start_in(["run", "--grid", "small.yaml", "--out", "run", "--quiet"], folder) as process:
        assert process.wait(120) == 0
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy of the run, with the plug-in next to it."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path / "run"


def change_a_digit(folder: Path, name: str) -> None:
    """Change the last digit of a table and adjust the checksum, as a deliberate forger would."""
    table = folder / f"{name}.csv"
    text = table.read_text(encoding="utf-8").rstrip("\n")
    table.write_text(f"{text[:-1]}{(int(text[-1]) + 1) % 10}\n", encoding="utf-8")
    change_status(folder, lambda status: status["checksums"].update({name: store.checksum(table)}))


@pytest.mark.long
def test_a_run_and_its_packed_form_verify(run: Path, bench: Bench) -> None:
    out = bench("verify", run, "--cells", "9", "--seed", "1", "--plugin", "mine.py").stdout
    assert out.count("the same bytes") == 4
    bench("pack", run, "--out", "one.tar.xz")
    bench("pack", run, "--out", "two.tar.xz")
    first, second = (run.with_name(name).read_bytes() for name in ("one.tar.xz", "two.tar.xz"))
    assert first == second
    shutil.rmtree(run)
    both = bench("verify", "one.tar.xz", "two.tar.xz", "--cells", "2", "--plugin", "mine.py").stdout
    assert "8 cells, 2 computed again" in both  # the cells are drawn over all runs
    bench("unpack", "one.tar.xz", "again")
    assert "fedavg" in bench("results", "again").stdout


@pytest.mark.long
def test_one_changed_digit_of_any_table_is_found(run: Path, bench: Bench, tmp_path: Path) -> None:
    folder = cells(run)["ditto"].folder
    for name in ("metrics", "clients", "ledger", "work"):
        copy = Path(shutil.copytree(folder, tmp_path / name))
        change_a_digit(copy, name)
        assert f"other numbers on the same path: {name}.csv, line" in compare(cells(run)["ditto"], copy).text
    change_a_digit(folder, "ledger")
    out = bench("verify", run, "--cells", "9", "--plugin", "mine.py", code=1).stdout
    (wrong,) = (line for line in out.splitlines() if line.startswith("WRONG"))
    assert folder.name in wrong
    assert "ledger.csv, line" in wrong


@pytest.mark.long
def test_other_code_and_other_data_are_found(run: Path, bench: Bench, tmp_path: Path, arrays: Path) -> None:
    (tmp_path / "mine.py").write_text(METHOD.replace("/ 2", "/ 3"), encoding="utf-8")
    out = bench("verify", run, "--cells", "0", "--plugin", "mine.py", code=1).stdout
    assert out.count("WRONG") == 1
    assert f"WRONG {cells(run)['mine'].id}" in out
    assert "method's code" in out
    before = arrays.read_bytes()
    try:
        arrays.write_bytes(before + b" ")
        out = bench("verify", run, "--cells", "0", "--plugin", "mine.py", code=1).stdout
    finally:
        arrays.write_bytes(before)
    assert out.count("WRONG") == 4


# -- what is no part of a cell's id: its label, and the score that chooses the reported round --------------------------


@pytest.fixture
def labelled(tmp_path: Path, arrays: Path) -> Path:
    """A run of two cells, of which one has a label."""
    methods: Any = ["fedavg", {"name": "ditto", "label": "Ours"}]
    return make_run(tmp_path / "labelled", arrays, methods, rounds=1, options=Options(device="cpu"))


def test_methods_that_swapped_their_names_are_wrong(labelled: Path, bench_here: Bench) -> None:
    """Tables would show each under the other's name."""
    other = {"fedavg": "Ours", "Ours": "fedavg"}
    change_entries(labelled, lambda entry: entry.update(label=other[entry["label"]]))
    out = bench_here("verify", labelled, "--cells", "0", code=1).stdout
    assert "run.json labels it 'Ours', and its settings there are of 'fedavg'" in out
    assert out.count("WRONG") == 2


def test_a_label_that_was_changed_since_is_not_wrong_and_lines_name_the_method(labelled: Path) -> None:
    """Finished cells keep the label that they ran with in their `settings.json`."""

    def rename(entry: dict[str, Any]) -> None:
        if entry["label"] == "Ours":
            entry["label"] = entry["settings"]["label"] = "New name"
            entry["settings"]["case"] = "a case"

    change_entries(labelled, rename)
    failed, sound = check_files([load_run(labelled)], Path("data"))
    assert failed == []
    names = [CellVerdict(cell, "same", "").name for cell, _ in sound]
    assert names == ["fedavg blobs alpha=1 seed=0", "New name blobs a case alpha=1 seed=0 (method ditto)"]


def test_the_command_says_what_its_draw_can_find_and_which_rounds_are_chosen_otherwise(
    labelled: Path, bench_here: Bench
) -> None:
    out = bench_here("verify", labelled, "--cells", "1", "--jobs", "1").stdout
    assert "2 cells, 1 computed again" in out
    assert "1 meet one with a probability of 0.5 if 5% are, 0.5 if 30% are" in out
    assert "chosen alike" not in out
    choice = {"fedavg": "accuracy", "Ours": "loss"}
    change_entries(labelled, lambda entry: entry["settings"].update(select_by=choice[entry["label"]]))
    out = bench_here("verify", labelled, "--cells", "0").stdout
    assert "the reported rounds are not chosen alike: by accuracy in cells of fedavg; by loss in cells of Ours" in out


# -- statistics: a shift of all cells is seen and honest drift is not --------------------------------------------------


def drifts(cells: int, seed: int, by: float = 0.0) -> list[dict[str, float]]:
    """Differences as those between two kinds of processor: most are 0, few are far, one metric further than another."""
    rng = generator("tests", "drift", seed)
    far = rng.standard_t(2, size=(cells, 2)) * (rng.random((cells, 1)) < 0.3)
    return [{"gm": 3 * float(row[0]), "pm": float(row[1]) + by} for row in far]


@pytest.mark.parametrize("by", [-3.0, 0.5, 3.0])
def test_a_shift_of_every_cell_is_seen(by: float) -> None:
    found = shift(drifts(ENOUGH + 10, 1, by))
    assert found is not None
    assert found.name == "pm"
    assert found.mean == pytest.approx(by, abs=1)
    assert found.p <= LEVEL


def test_fewer_cells_than_the_level_needs_say_nothing() -> None:
    """Of n differences on one side, 2 of the 2^n ways to flip signs are as one-sided: by hand, 14 are too few."""
    assert FEWEST == 15
    assert shift([{"pm": 3.0}] * 14) is None
    found = shift([{"pm": 3.0}] * 15)
    assert found is not None
    assert found.p == 2 / 2**15
    assert shift([{"pm": 3.0}] * 15 + [{"pm": 0.0}] * 9) == found  # cells that are the same do not count
    assert shift([{"pm": 3.0}] * 14 + [{"pm": -3.0}]) is None
    assert shift([]) is None


@pytest.mark.long
def test_honest_drift_is_no_shift() -> None:
    assert not any(shift(drifts(40, seed)) for seed in range(40))


def test_one_figure_of_many_is_enough() -> None:
    cells = [{"gm": float(x), "pm": float(y), "bytes": -0.1} for x, y in generator("tests", "x").normal(size=(25, 2))]
    found = shift(cells)
    assert found is not None
    assert (found.name, found.cells) == ("bytes", 25)


@settings(max_examples=30)
@given(st.lists(st.floats(-100, 100), min_size=0, max_size=16), st.floats(0.01, 100))
def test_neither_scale_nor_direction_matters(values: list[float], scale: float) -> None:
    clear = [round(value, 3) for value in values]
    found = [shift([{"pm": sign * value} for value in clear]) for sign in (1.0, -1.0, scale)]
    assert len({one is None for one in found}) == 1
    if found[0] is not None:
        assert all(np.isclose(one.p, found[0].p) for one in found if one)


def test_the_probability_is_the_share_of_draws_that_hold_a_forged_cell() -> None:
    for count, forged, drawn in itertools.product((5, 6), (0, 1, 3), (0, 1, 2, 5)):
        draws = list(itertools.combinations(range(count), drawn))
        found = sum(any(cell < forged for cell in draw) for draw in draws)
        assert discovery(count, forged, drawn) == pytest.approx(found / len(draws))
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
