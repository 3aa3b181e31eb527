"""`bench verify` finds edited cells also where another path computed them, whose bytes need not be the same."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from bench.results.results import CellView, load_run
from bench.runs.verify.files import disagreement
from bench.runs.verify.recomputed import compare
from bench.store import store
from tests.runs.conftest import COMMON, Bench
from tests.runs.forger import ANOTHER, Row, change_rows, change_status, drifted, forge
from tests.warm import Start

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def made(start_in: Start, arrays: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two methods and three seeds, whose recorded path is then called another CPU's."""
    folder = tmp_path_factory.mktemp("made")
    data = {"name": "npz", "path": str(arrays), "label": "blobs"}
    grid = {"methods": ["fedavg", "ditto"], "datasets": [data], "alphas": [1.0], "seeds": [0, 1, 2], "rounds": 3}
    (folder / "small.yaml").write_text(yaml.safe_dump({**COMMON, **grid}), encoding="utf-8")
    with start_in(["run", "--grid", "small.yaml", "--out", "run", "--quiet"], folder) as process:
        assert process.wait(300) == 0
    for cell in load_run(folder / "run").cells:
        change_status(cell.folder, lambda status: status["path"].update(cpu=ANOTHER))
    return folder / "run"


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy of the run."""
    return Path(shutil.copytree(made, tmp_path / "run"))


def cell_of(run: Path, label: str = "ditto", seed: int = 0) -> CellView:
    return next(cell for cell in load_run(run).cells if (cell.label, cell.settings.seed) == (label, seed))


def better(row: Row) -> None:
    """One correct sample more, or one less where all are correct, for a personalized model in the last round."""
    if (row["round"], row["metric"], row["client"], row["split"]) == ("3", "pm", "1", "test"):
        row["correct"] = str(int(row["correct"]) + (1 if row["correct"] != row["samples"] else -1))


def record_checksums(folder: Path) -> None:
    """Make the checksums of a cell's records those of the files that it has."""
    change_status(folder, lambda status: status["checksums"].update(store.record_checksums(folder)))


def an_accuracy(run: Path) -> None:
    def change(row: Row) -> None:
        if (row["round"], row["metric"], row["mean"], row["split"]) == ("3", "pm", "equal", "test"):
            row["value"] = repr(float(row["value"]) - (0.01 if row["quantity"] == "accuracy" else 0))

    change_rows(cell_of(run).folder, "metrics", change)


def another_seeds_tables(run: Path) -> None:
    for name in ("metrics", "clients"):
        shutil.copy(cell_of(run, seed=1).folder / f"{name}.csv", cell_of(run).folder)
        change_rows(cell_of(run).folder, name, lambda row: None)


def another_seeds_files(run: Path) -> None:
    """All but its settings, partition included."""
    own = cell_of(run).folder
    for path in cell_of(run, seed=1).folder.iterdir():
        if path.name != "settings.json":
            shutil.copy(path, own)
    change_status(own, lambda status: status.update(cell=own.name))  # type: ignore[arg-type]
    record_checksums(own)


def a_partition_and_its_hash(run: Path) -> None:
    other = cell_of(run, seed=1)
    shutil.copy(other.folder / "partition.json", cell_of(run).folder)
    change_status(cell_of(run).folder, lambda status: status.update(partition=other.status.partition))  # type: ignore[arg-type]
    record_checksums(cell_of(run).folder)


FORGERIES = [
    (an_accuracy, "metrics.csv, line"),
    (another_seeds_tables, "clients.csv, line"),
    (another_seeds_files, "status.json: its partition is not the one that its settings make"),
    (a_partition_and_its_hash, "status.json: its partition is not the one that its settings make"),
]


@pytest.mark.parametrize(("forgery", "where"), FORGERIES, ids=[forgery.__name__ for forgery, _ in FORGERIES])
def test_a_forgery_is_found_in_a_cell_that_is_not_drawn(
    run: Path, bench: Bench, forgery: Callable[[Path], None], where: str
) -> None:
    forgery(run)
    out = bench("verify", run, "--cells", "0", code=1).stdout
    wrong = [line for line in out.splitlines() if line.startswith("WRONG")]
    assert len(wrong) == 1
    assert f"{cell_of(run).id}  ditto blobs alpha=1 seed=0: " in wrong[0]
    assert where in wrong[0]


def test_the_same_numbers_on_another_path(run: Path, bench: Bench) -> None:
    bench("pack", run)
    out = bench("verify", "run.tar.xz", "--cells", "9").stdout
    assert out.count(f"the same numbers, on another path (cpu {ANOTHER} -> ") == 6


@pytest.mark.parametrize("losses", [1.0, 1.01], ids=["same", "drifted"])
def test_a_forgery_whose_numbers_all_agree_is_found_once_drawn(run: Path, bench: Bench, losses: float) -> None:
    """By its losses if they are the old ones, else by cells of other seeds, which are computed for it."""
    cell = cell_of(run)
    forge(cell.folder, losses=losses)
    seed = next(seed for seed in range(99) if drawn_first(run, seed) == cell.id)
    out = bench("verify", run, "--cells", "1", "--seed", seed, code=1).stdout
    wrong = [line for line in out.splitlines() if line.startswith("WRONG")]
    assert len(wrong) == 1
    assert cell.id in wrong[0]
    expected = "the same losses and other numbers: " if losses == 1 else "looks edited, for 2 of 2 cells of other seeds"
    assert expected in wrong[0]


def drawn_first(run: Path, seed: int) -> str:
    cells = load_run(run).cells
    return cells[np.random.default_rng(seed).permutation(len(cells))[0]].id


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
def test_what_two_paths_may_differ_by(run: Path, tmp_path: Path, losses: float, count: int, outcome: str) -> None:
    """Counts only where losses have moved, and few where they hardly have."""
    cell = cell_of(run)
    here = Path(shutil.copytree(cell.folder, tmp_path / "here"))
    change_status(here, lambda status: status["path"].update(cpu="aarch64 DEFAULT Neoverse-V1"))
    left = [count]

    def change(row: Row) -> None:
        if (row["round"], row["metric"], row["split"]) == ("3", "pm", "test"):
            taken = min(left[0], int(row["correct"]))
            left[0] -= taken
            row["correct"] = str(int(row["correct"]) - taken)

    change_rows(here, "clients", change)
    change_rows(
        here,
        "metrics",
        lambda row: row.update(value=repr(drifted(row, losses))) if row["quantity"] == "loss" else None,
    )
    assert compare(cell, here).outcome == outcome


def unevenly(row: Row) -> None:
    if row["quantity"] == "loss":
        row["value"] = repr(drifted(row, 1.05))


@pytest.mark.parametrize(
    ("table", "edit", "said"),
    [
        ("ledger", lambda row: row.update(up=str(2 * int(row["up"]))), "another count: ledger.csv"),
        ("ledger", lambda row: row.update(seconds=repr(float(row["seconds"]) / 2)), "another count: ledger"),
        ("work", lambda row: row.update(steps="1"), "another count: work.csv"),
    ],
    ids=["bytes", "seconds", "steps"],
)
def test_no_training_drifts_so(run: Path, tmp_path: Path, table: str, edit: Callable[[Row], None], said: str) -> None:
    """What was sent and done drifts with the losses only where it follows from numbers."""
    cell = cell_of(run)
    here = Path(shutil.copytree(cell.folder, tmp_path / "here"))
    change_status(here, lambda status: status["path"].update(cpu="aarch64 DEFAULT Neoverse-V1"))
    change_rows(cell.folder, "metrics", unevenly)
    change_rows(cell.folder, table, edit)
    verdict = compare(cell_of(run), here)
    assert verdict.outcome == "wrong"
    assert said in verdict.text


@pytest.mark.parametrize(
    ("losses", "steps", "outcome"), [(1.00001, False, "drifted"), (1.0, False, "wrong"), (1.00001, True, "wrong")]
)
def test_only_bytes_that_follow_numbers_may_be_others(
    run: Path, tmp_path: Path, losses: float, steps: bool, outcome: str
) -> None:
    """As FedKD's, which are another number in every round: rounding can change them where it changes losses."""
    cell = cell_of(run)
    here = Path(shutil.copytree(cell.folder, tmp_path / "here"))
    change_status(here, lambda status: status["path"].update(cpu="aarch64 DEFAULT Neoverse-V1"))
    for folder, more in ((here, 0), (cell.folder, 8)):
        change_rows(
            folder, "ledger", lambda row, more=more: row.update(up=str(int(row["up"]) * int(row["round"]) + more))
        )
    change_rows(
        here, "metrics", lambda row: row.update(value=repr(drifted(row, losses))) if row["quantity"] == "loss" else None
    )
    if steps:
        change_rows(here, "work", lambda row: row.update(steps=str(int(row["steps"]) + int(row["round"]))))
    assert compare(cell_of(run), here).outcome == outcome


def lacks_a_round(folder: Path) -> None:
    change_rows(folder, "ledger", lambda row: row.update(round=row["round"].replace("2", "")))


def lacks_an_evaluation(folder: Path) -> None:
    for name in ("metrics", "clients", "hits"):
        change_rows(folder, name, lambda row: row.update(round=row["round"].replace("1", "")))


def has_more_samples(folder: Path) -> None:
    change_rows(folder, "clients", lambda row: row.update(samples=str(int(row["samples"]) + (row["client"] == "2"))))


def has_more_correct_samples_than_samples(folder: Path) -> None:
    change_rows(folder, "clients", lambda row: row.update(correct=str(int(row["samples"]) + 1)))


def has_a_client_twice(folder: Path) -> None:
    path = folder / "clients.csv"
    text = path.read_text(encoding="utf-8")
    path.write_text(text + text.splitlines()[-1] + "\n", encoding="utf-8")
    change_rows(folder, "clients", lambda row: None)


def lacks_a_mean(folder: Path) -> None:
    change_rows(folder, "metrics", lambda row: row.update(round=row["round"] if row["mean"] != "equal" else ""))


def lacks_a_checksum(folder: Path) -> None:
    change_status(folder, lambda status: status["checksums"].pop("metrics"))


def another_common_accuracy(folder: Path) -> None:
    def change(row: Row) -> None:
        if (row["on"], row["split"], row["quantity"]) == ("global", "test", "accuracy"):
            row["value"] = repr(float(row["value"]) + 0.001)

    change_rows(folder, "metrics", change)


EDITS = [
    (lacks_a_round, "ledger.csv has rounds 1, 3, by the settings 1, 2, 3"),
    (lacks_an_evaluation, "metrics.csv has rounds 2, 3"),
    (has_more_samples, "by partition.json"),
    (has_more_correct_samples_than_samples, "samples are correct"),
    (has_a_client_twice, "a second time"),
    (lacks_a_mean, "do not have the same rows"),
    (lacks_a_checksum, "no checksum of metrics.csv"),
    (another_common_accuracy, "metrics.csv, line"),
]


@pytest.mark.parametrize(("edit", "text"), EDITS, ids=[edit.__name__ for edit, _ in EDITS])
def test_files_that_disagree(run: Path, edit: Callable[[Path], None], text: str) -> None:
    assert disagreement(cell_of(run)) is None
    edit(cell_of(run).folder)
    assert text in (disagreement(cell_of(run)) or "")
