"""What a forger edits beside accuracies and losses is compared on another path too: noise, scores, tests, changes."""

import csv
import json
import shutil
from pathlib import Path

import pytest

from bench.runs.cell import run_cell
from bench.runs.cell_options import Options
from bench.runs.verify.drift import differences
from bench.runs.verify.files import disagreement, means_of, read_rows
from bench.runs.verify.recomputed import allowed_flips, compare
from bench.settings import Settings
from bench.store import store
from tests.runs.conftest import COMMON
from tests.runs.forger import ANOTHER, Row, change_status, write_rows
from tests.runs.helpers import view

Twice = tuple[Settings, Path, Path]
OPTIONS = Options(device="cpu", executor="sequential", keep="best")


@pytest.fixture(scope="module")
def made(arrays: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, Path]:
    """A cell with noise, further scores and tests, whose data change."""
    settings = Settings(
        **{**COMMON, "rounds": 2, "metrics": ("auroc",)},
        dataset="npz",
        dataset_options={"path": str(arrays)},
        method="ditto",
        alpha=1.0,
        tests=("others",),
        timeline=({"round": 1, "shifts": [{"name": "label_noise", "share": 0.1}]},),
        dp_sgd={"noise": 1.0, "norm": 1.0},
    )
    folder = tmp_path_factory.mktemp("made") / "cell"
    status = run_cell(settings, folder, OPTIONS)
    assert status.state == "done", status.reason
    return settings, folder


@pytest.fixture
def twice(made: tuple[Settings, Path], tmp_path: Path) -> Twice:
    """The cell, which another processor claims, and the same cell computed here."""
    settings, here = made
    folder = Path(shutil.copytree(here, tmp_path / "cell"))
    change_status(folder, lambda status: status["path"].update(cpu=ANOTHER))
    return settings, folder, here


def halve_epsilon(folder: Path) -> None:
    privacy = json.loads((folder / "privacy.json").read_text(encoding="utf-8"))
    privacy["statements"][0]["epsilon"] /= 2
    store.write_json(folder / "privacy.json", privacy)
    change_status(folder, lambda status: status["checksums"].update(store.record_checksums(folder)))


def nearer_to_all(row: Row) -> None:
    row["value"] = repr((1 + float(row["value"])) / 2)


def raise_changes(folder: Path) -> None:
    rows = read_rows(folder, "changes")
    for row in rows:
        nearer_to_all(row)
    write_rows(folder, "changes", rows)


def raise_tests(folder: Path) -> None:
    """Every accuracy of later evaluations, so that means follow."""
    rows = read_rows(folder, "evaluated")
    for row in rows:
        nearer_to_all(row)
    write_evaluated(folder, rows)


def write_evaluated(folder: Path, rows: list[Row]) -> None:
    with open(folder / "evaluated.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, store.EVALUATED, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def raise_scores(folder: Path) -> None:
    """Every score of clients, and the means that follow."""
    clients, scores = read_rows(folder, "client_scores"), read_rows(folder, "scores")
    for row in clients + scores:
        nearer_to_all(row)
    write_rows(folder, "client_scores", clients)
    write_rows(folder, "scores", scores)


def round_otherwise(folder: Path) -> None:
    """Other losses, by a millionth, as another processor computes."""
    rows = read_rows(folder, "metrics")
    for row in rows:
        if row["quantity"] == "loss":
            row["value"] = repr(float(row["value"]) * (1 + 1e-6 * int(row["round"])))
    write_rows(folder, "metrics", rows)


FORGERIES = [
    (halve_epsilon, "privacy.json: epsilon"),
    (raise_changes, "changes.csv, line"),
    (raise_tests, "evaluated.csv, line"),
    (raise_scores, "scores.csv, line"),
]


@pytest.mark.long
def test_every_forged_table_is_wrong_on_another_path(twice: Twice, tmp_path: Path) -> None:
    """With the same losses, and with losses that only rounding moved."""
    settings, folder, here = twice
    rounded = Path(shutil.copytree(folder, tmp_path / "rounded"))
    round_otherwise(rounded)
    for source, honest in ((folder, "same"), (rounded, "near")):
        assert disagreement(view(settings, source)) is None
        assert compare(view(settings, source), here).outcome == honest
        for number, (forge, said) in enumerate(FORGERIES):
            forged = Path(shutil.copytree(source, tmp_path / f"{honest}{number}"))
            forge(forged)
            verdict = compare(view(settings, forged), here)
            assert (verdict.outcome, said in verdict.text) == ("wrong", True), verdict.text


def test_scores_enter_the_test_of_shifts(twice: Twice, tmp_path: Path) -> None:
    """What rounding may move in one cell may not be on one side in all; the last digits count for nothing."""
    settings, folder, here = twice
    assert differences(view(settings, folder), view(settings, here))["pm auroc (local, equal)"] == 0
    raise_scores(folder)
    values = [
        cell.table("scores").query("metric == 'pm' and split == 'test' and mean == 'equal' and round == 2")["value"]
        for cell in (view(settings, folder), view(settings, here))
    ]
    apart = differences(view(settings, folder), view(settings, here))
    assert apart["pm auroc (local, equal)"] == pytest.approx(100 * (values[0].item() - values[1].item()))
    assert apart["pm accuracy (local, equal)"] == 0


def test_added_rows_of_another_round_are_no_forgery_where_training_rounds_otherwise(twice: Twice) -> None:
    """Validation scores that are moved may choose another round, whose models are other ones."""
    settings, folder, here = twice
    rows = read_rows(folder, "evaluated")
    for row in rows:
        row["round"] = "1"
    write_evaluated(folder, rows)
    assert compare(view(settings, folder), here).outcome == "wrong"
    round_otherwise(folder)
    assert compare(view(settings, folder), here).outcome == "near"


def test_a_mean_of_an_added_test_that_is_not_its_clients_is_seen_in_any_cell(twice: Twice) -> None:
    settings, folder, _ = twice
    rows = read_rows(folder, "evaluated")
    line, row = next((i, row) for i, row in enumerate(rows, start=2) if row["mean"] == "equal")
    row["value"] = "0.99"
    write_evaluated(folder, rows)
    assert str(disagreement(view(settings, folder))).startswith(f"evaluated.csv, line {line}: 0.99, by the clients'")


def test_means_and_flips_by_hand() -> None:
    """A client without a value counts in no mean."""
    means = means_of({0: 0.5, 1: 1.0, 2: float("nan")}, [1, 3, 5], [1, 2])
    assert means == {"train_size": 0.875, "equal": 0.75, "benign": 1.0}
    assert [allowed_flips(n) for n in (41, 150, 359)] == [1, 2, 3]


def test_a_sample_of_another_test_may_be_classified_otherwise(twice: Twice, tmp_path: Path) -> None:
    """Though none of the cell's own tests is, where losses differ by rounding."""
    settings, folder, here = twice
    rounded = Path(shutil.copytree(folder, tmp_path / "rounded"))
    round_otherwise(rounded)
    rows = read_rows(rounded, "evaluated")
    for row in rows:
        if row["quantity"] == "accuracy":
            row["value"] = repr(float(row["value"]) - 0.02)
    write_evaluated(rounded, rows)
    assert compare(view(settings, rounded), here).outcome == "near"
