"""`bench verify` finds edited cells also where another path computed them, whose bytes need not be the same; honest
ones of other processors are accepted."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.results.pack import SUFFIX
from bench.results.results import CellView, load_run
from bench.runs.cell_options import Options
from bench.runs.verify.files import disagreement
from bench.runs.verify.recomputed import compare
from bench.runs.verify.verify import CellVerdict, Checked, _copies, check_files
from tests.conftest import ROOT
from tests.runs.conftest import COMMON, Bench
from tests.runs.forger import (
    ANOTHER,
    Row,
    change_rows,
    change_status,
    claim_another_processor,
    drift_losses,
    forge,
    record_checksums,
)
from tests.runs.helpers import make_run

pytestmark = pytest.mark.long

Twice = tuple[CellView, Path]
SEEDS = 20


@pytest.fixture(scope="module")
def made(arrays: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one method and many seeds."""
    settings = {**COMMON, "seeds": list(range(SEEDS)), "rounds": 3}
    return make_run(tmp_path_factory.mktemp("made") / "run", arrays, ["ditto"], Options(device="cpu"), **settings)


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy of the run."""
    return Path(shutil.copytree(made, tmp_path / "run"))


# -- files that are not computed again ---------------------------------------------------------------------------------


def raise_where(row: Row, **where: str) -> None:
    """Raise the value of a row that has these entries."""
    if where.items() <= row.items():
        row["value"] = repr(float(row["value"]) + 0.001)


EDITS: dict[str, tuple[list[str], Callable[[Row], object], str]] = {
    "no round 2": (
        ["ledger"], lambda row: row.update(round=row["round"].replace("2", "")),
        "ledger.csv has rounds 1, 3, by the settings 1, 2, 3",
    ),
    "no evaluation of round 1": (
        ["metrics", "clients", "hits"], lambda row: row.update(round=row["round"].replace("1", "")),
        "metrics.csv has rounds 2, 3",
    ),
    "more samples": (
        ["clients"], lambda row: row.update(samples=str(int(row["samples"]) + (row["client"] == "2"))),
        "by partition.json",
    ),
    "more correct samples than samples": (
        ["clients"], lambda row: row.update(correct=str(int(row["samples"]) + 1)), "samples are correct",
    ),
    "clients twice": (["clients"], lambda row: row.update(metric="pm"), "a second time"),
    "no equal mean": (
        ["metrics"], lambda row: row.update(round="" if row["mean"] == "equal" else row["round"]),
        "do not have the same rows",
    ),
    "another mean": (
        ["metrics"], lambda row: raise_where(row, metric="pm", mean="equal", quantity="accuracy"), "metrics.csv, line",
    ),
    "another common accuracy": (
        ["metrics"], lambda row: raise_where(row, on="global", split="test", quantity="accuracy"), "metrics.csv, line",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("tables", "change", "said"), EDITS.values(), ids=EDITS)
def test_files_that_disagree_are_found(
    run: Path, tables: list[str], change: Callable[[Row], object], said: str
) -> None:
    cell = load_run(run).cells[0]
    assert disagreement(cell) is None
    for name in tables:
        change_rows(cell.folder, name, change)
    assert said in (disagreement(load_run(run).cells[0]) or "")


def test_a_table_without_a_checksum_and_tables_of_another_seed_are_found(run: Path) -> None:
    first, second = load_run(run).cells[:2]
    for name in ("metrics", "clients"):
        shutil.copy(second.folder / f"{name}.csv", first.folder)
        change_rows(first.folder, name, lambda row: None)
    assert "clients.csv, line" in (disagreement(load_run(run).cells[0]) or "")
    change_status(second.folder, lambda status: status["checksums"].pop("metrics"))
    assert "no checksum of metrics.csv" in (disagreement(load_run(run).cells[1]) or "")


def test_all_files_of_another_seed_are_found_by_their_partition(run: Path) -> None:
    first, second = load_run(run).cells[:2]
    for path in second.folder.iterdir():
        if path.name != "settings.json":
            shutil.copy(path, first.folder)
    change_status(first.folder, lambda status: status.update(cell=first.folder.name))  # type: ignore[arg-type]
    record_checksums(first.folder)
    ((verdict,), sound) = check_files([load_run(run)], Path("data"))
    assert verdict.cell.folder == first.folder
    assert verdict.text.startswith("status.json: its partition is not the one that its settings make")
    assert len(sound) == SEEDS - 1


def test_no_two_seeds_have_the_same_numbers(made: Path) -> None:
    """The best seed's tables under another seed's id, where both have clients of the same sizes: partitions agree."""
    cells = load_run(made).cells[:5]
    assert _copies(cells) == {}
    sums = {name: cells[2].status.checksums[name] for name in ("metrics", "clients")}
    status = replace(cells[4].status, checksums=cells[4].status.checksums | sums, path={"cpu": "another"})
    copy = replace(cells[4], status=status)
    assert _copies([*cells[:4], copy]) == {copy.folder: "metrics.csv and clients.csv are the same as of seed 2"}
    other = replace(copy, settings=copy.settings.model_copy(update={"lr": 0.25}))
    assert _copies([*cells[:4], other]) == {}  # another setting may be without effect


# -- a cell that is computed again on another path ---------------------------------------------------------------------


@pytest.fixture
def twice(run: Path, tmp_path: Path) -> Twice:
    """A cell, and the same cell as another processor computed it."""
    cell = load_run(run).cells[0]
    here = Path(shutil.copytree(cell.folder, tmp_path / "here"))
    claim_another_processor(here)
    return cell, here


@pytest.mark.parametrize(
    ("losses", "count", "outcome"),
    [
        (1.0, 0, "same"),
        (1 + 1e-14, 0, "same"),
        (1.0, 1, "wrong"),
        (1.0001, 1, "near"),
        (1.0001, 4, "wrong"),
        (1.1, 9, "drifted"),
    ],
)
def test_what_two_paths_may_differ_by(twice: Twice, losses: float, count: int, outcome: str) -> None:
    """Counts only where losses have moved, and few where they hardly have."""
    cell, here = twice
    left = [count]

    def change(row: Row) -> None:
        if (row["round"], row["metric"], row["split"]) == ("3", "pm", "test"):
            taken = min(left[0], int(row["correct"]))
            left[0] -= taken
            row["correct"] = str(int(row["correct"]) - taken)

    change_rows(here, "clients", change)
    drift_losses(here, losses)
    verdict = compare(cell, here)
    assert verdict.outcome == outcome
    assert f" -> {ANOTHER}" in verdict.text


@pytest.mark.parametrize(
    ("table", "edit", "said"),
    [
        ("ledger", lambda row: row.update(up=str(2 * int(row["up"]))), "another count: ledger.csv"),
        ("ledger", lambda row: row.update(seconds=repr(float(row["seconds"]) / 2)), "another count: ledger"),
        ("work", lambda row: row.update(steps="1"), "another count: work.csv"),
    ],
    ids=["bytes", "seconds", "steps"],
)
def test_no_training_drifts_so(twice: Twice, table: str, edit: Callable[[Row], None], said: str) -> None:
    """What was sent and done drifts with the losses only where it follows from numbers."""
    cell, here = twice
    drift_losses(here, 1.05)
    change_rows(here, table, edit)
    verdict = compare(cell, here)
    assert verdict.outcome == "wrong"
    assert said in verdict.text


@pytest.mark.parametrize(
    ("losses", "steps", "outcome"), [(1.00001, False, "drifted"), (1.0, False, "wrong"), (1.00001, True, "wrong")]
)
def test_only_bytes_that_follow_numbers_may_be_others(twice: Twice, losses: float, steps: bool, outcome: str) -> None:
    """As FedKD's, which are another number in every round: rounding can change them where it changes losses."""
    cell, here = twice
    for folder, more in ((here, 0), (cell.folder, 8)):
        change_rows(
            folder, "ledger", lambda row, more=more: row.update(up=str(int(row["up"]) * int(row["round"]) + more))
        )
    drift_losses(here, losses)
    if steps:
        change_rows(here, "work", lambda row: row.update(steps=str(int(row["steps"]) + int(row["round"]))))
    assert compare(cell, here).outcome == outcome


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("losses", [1.0, 1.01], ids=["same", "drifted"])
def test_a_forgery_whose_numbers_all_agree_is_found_once_drawn(run: Path, bench: Bench, losses: float) -> None:
    """By its losses if they are the old ones, else by cells of other seeds, which are computed for it."""
    cells = load_run(run).cells
    for cell in cells:
        claim_another_processor(cell.folder)
    cell = cells[np.random.default_rng(0).permutation(SEEDS)[0]]
    forge(cell.folder, losses=losses)
    out = bench("verify", run, "--cells", "1", "--seed", "0", code=1).stdout
    (wrong,) = (line for line in out.splitlines() if line.startswith("WRONG"))
    assert cell.id in wrong
    expected = "the same losses and other numbers: " if losses == 1 else "looks edited, for 2 of 2 cells of other seeds"
    assert expected in wrong


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


def test_too_few_cells_of_a_forged_run_confirm_nothing(run: Path, bench: Bench) -> None:
    for cell in load_run(run).cells:
        forge(cell.folder, losses=0.95)
    out = bench("verify", run, "--cells", "2", "--seed", "1", code=3).stdout
    assert f"UNCONFIRMED {run}: all " in out
    assert "to tell a shift of all numbers from rounding: --cells 20 or more would" in out
    assert ", 0 wrong; " in out


def test_a_run_without_a_confirmed_cell_is_not_ok(made: Path) -> None:
    """Also where cells of another run were confirmed."""
    cell, other = load_run(made).cells[:2]
    elsewhere = replace(other, folder=made.parent / "b" / "c")
    drifted, near = CellVerdict(cell, "drifted", ""), CellVerdict(elsewhere, "near", "")
    assert Checked((near,)).ok
    assert Checked((drifted, near)).unconfirmed == [made]
    assert not Checked((drifted, near)).ok
    assert Checked((drifted, CellVerdict(other, "same", ""))).ok
    assert Checked(()).ok


@pytest.mark.parametrize("name", ["fedper", "ditto"])
def test_honest_entries_of_both_kinds_of_processor_are_accepted(bench: Bench, name: str) -> None:
    """Computed on a processor without AVX-512 and on one with it, so that one path at least is another than here."""
    entry = ROOT / "tests" / "entries" / "league_1_small" / f"{name}{SUFFIX}"
    out = bench("verify", entry, "--cells", "2", "--seed", "3").stdout
    assert sum(line.startswith(("ok", "near")) for line in out.splitlines()) >= 2
    assert ", 0 wrong; " in out
