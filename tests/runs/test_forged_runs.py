"""A run forged in all its cells is refused, or at least not confirmed; honest ones of other processors are accepted."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from bench.results.pack import SUFFIX, unpack
from bench.results.results import load_run
from bench.runs.verify.verify import CellVerdict, Checked, _copies
from tests.conftest import ROOT
from tests.runs.conftest import COMMON, Bench
from tests.runs.forger import forge
from tests.warm import Start

ENTRIES = ROOT / "tests" / "entries" / "league_1_small"
SEEDS = 20
BOTH_KINDS = ("fedper", "ditto")
"""Entries of league-1, computed on a processor without AVX-512 and on one with it."""


@pytest.fixture(scope="module")
def made(start_in: Start, arrays: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one method and many seeds."""
    folder = tmp_path_factory.mktemp("made")
    data = {"name": "npz", "path": str(arrays), "label": "blobs"}
    grid = {"methods": ["ditto"], "datasets": [data], "alphas": [1.0], "seeds": list(range(SEEDS)), "rounds": 3}
    (folder / "small.yaml").write_text(yaml.safe_dump({**COMMON, **grid}), encoding="utf-8")
    with start_in(["run", "--grid", "small.yaml", "--out", "run", "--quiet"], folder) as process:
        assert process.wait(600) == 0
    return folder / "run"


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


@pytest.fixture(scope="module")
def entry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An entry, unpacked."""
    folder = tmp_path_factory.mktemp("entry") / "fedper"
    unpack(ENTRIES / f"fedper{SUFFIX}", folder)
    return folder


def test_no_two_seeds_have_the_same_numbers(entry: Path, tmp_path: Path) -> None:
    """The best seed's tables under another seed's id, where both have clients of the same sizes: partitions agree."""
    cells = [cell for cell in load_run(entry).cells if cell.settings.case == "shards"]
    for cell in cells:
        shutil.copytree(cell.folder, tmp_path / cell.id)
    moved = [replace(cell, folder=tmp_path / cell.id) for cell in cells]
    assert _copies(moved) == {}
    sums = {name: cells[2].status.checksums[name] for name in ("metrics", "clients")}
    status = replace(cells[4].status, checksums=cells[4].status.checksums | sums, path={"cpu": "another"})
    copied = [*moved[:4], replace(moved[4], status=status)]
    assert _copies(copied) == {moved[4].folder: "metrics.csv and clients.csv are the same as of seed 2"}
    same = [*moved[:4], replace(moved[4], settings=moved[4].settings.model_copy(update={"lr": 0.5}), status=status)]
    assert _copies(same) == {}  # another setting may be without effect


def test_a_run_without_a_confirmed_cell_is_not_ok(entry: Path) -> None:
    """Also where cells of another run were confirmed."""
    cell, other = load_run(entry).cells[:2]
    elsewhere = replace(other, folder=entry.parent / "b" / "c")
    drifted, near = CellVerdict(cell, "drifted", ""), CellVerdict(elsewhere, "near", "")
    assert Checked((near,)).ok
    assert Checked((drifted,)).unconfirmed == [entry]
    assert Checked((drifted, near)).unconfirmed == [entry]
    assert not Checked((drifted, near)).ok
    assert Checked((drifted, CellVerdict(other, "same", ""))).ok
    assert Checked(()).ok


@pytest.mark.long
@pytest.mark.parametrize(
    ("metrics", "losses", "said"),
    [
        (("gm", "pm"), 0.95, "rounding goes up as often as down, and these differences do not: "),
        (("gm",), 0.95, "rounding goes up as often as down, and these differences do not: "),
        (("gm", "pm"), 1.0, "the same losses and other numbers"),
    ],
    ids=["as by drift", "generic model only", "kept losses"],
)
def test_a_run_forged_in_all_cells_is_wrong(
    run: Path, bench: Bench, metrics: tuple[str, ...], losses: float, said: str
) -> None:
    for cell in load_run(run).cells:
        forge(cell.folder, metrics=metrics, losses=losses)
    out = bench("verify", run, "--cells", SEEDS, code=1).stdout
    assert any(line.startswith("WRONG") and said in line for line in out.splitlines()), out


@pytest.mark.long
def test_too_few_cells_of_a_forged_run_confirm_nothing(run: Path, bench: Bench) -> None:
    for cell in load_run(run).cells:
        forge(cell.folder, losses=0.95)
    out = bench("verify", run, "--cells", "2", "--seed", "1", code=3).stdout
    assert f"UNCONFIRMED {run}: all " in out
    assert "to tell a shift of all numbers from rounding: --cells 20 or more would" in out
    assert ", 0 wrong; " in out


@pytest.mark.long
def test_honest_entries_of_both_kinds_of_processor_are_accepted(bench: Bench) -> None:
    """This computer has another path than one of them at least."""
    for name in BOTH_KINDS:
        out = bench("verify", ENTRIES / f"{name}{SUFFIX}", "--cells", "2", "--seed", "3").stdout
        assert sum(line.startswith(("ok", "near")) for line in out.splitlines()) >= 2
        assert ", 0 wrong; " in out
