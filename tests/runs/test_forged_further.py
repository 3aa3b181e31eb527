"""What a forger edits beside accuracies and losses is found too: noise, scores, changes, and rows of further tests,
which are computed again with the cell or named as not checked."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.results.further_tests import evaluate_cell
from bench.runs.verify.drift import differences
from bench.runs.verify.files import disagreement, means_of, read_rows
from bench.runs.verify.recomputed import allowed_flips, compare, evaluated_tests, scores_of
from bench.settings import CorruptedTest, PlainTest, Settings, ShiftedTest
from bench.store import store
from tests.runs.conftest import COMMON, Bench
from tests.runs.forger import Row, change_rows, claim_another_processor, drift_losses, record_checksums, write_rows
from tests.runs.helpers import BEST, finished, view

Twice = tuple[Settings, Path, Path]
ADDED = [
    PlainTest(name="global"),
    CorruptedTest(name="corrupted", kinds=("fog",), severity=2),
    ShiftedTest(name="shifted", shifts=({"name": "label_noise", "share": 0.3},)),
]


@pytest.fixture(scope="module")
def made(arrays: Path, tmp_path_factory: pytest.TempPathFactory) -> Twice:
    """A cell with noise, further scores and tests, whose data change, to which tests and a score were added; and the
    same cell computed again with all of them."""
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
    folder, again = (tmp_path_factory.mktemp("made") / name for name in ("cell", "again"))
    done = finished(settings, folder, BEST)
    evaluate_cell(done, ADDED, ["macro_f1"])
    scoring: dict[str, Any] = {"metrics": tuple(sorted(scores_of(done))), "tests": tuple(evaluated_tests(done))}
    finished(settings.model_copy(update=scoring), again, BEST)
    return settings, folder, again


@pytest.fixture
def twice(made: Twice, tmp_path: Path) -> Twice:
    """A copy of the cell, which another processor claims, and the same cell computed here."""
    settings, folder, here = made
    folder = Path(shutil.copytree(folder, tmp_path / "cell"))
    claim_another_processor(folder)
    return settings, folder, here


def test_added_rows_are_computed_again_and_an_edited_one_is_found(made: Twice, tmp_path: Path) -> None:
    """Also those of a score on the cell's own tests, which the new cell has in its tables of scores; and a row of a
    client that is none."""
    settings, folder, here = made
    done = view(settings, Path(shutil.copytree(folder, tmp_path / "cell")))
    assert [test.name for test in evaluated_tests(done)] == ["others", "global", "corrupted"]
    splits = ["test", "global", "others", "corrupted fog 2"]
    assert set(splits) < set(done.table("evaluated")["split"])
    verdict = compare(done, here)
    assert verdict.text == "the same bytes; not checked: evaluated.csv (shifted label_noise share=0.3)"
    sound = read_rows(done.folder, "evaluated")
    for split in splits:
        rows = [dict(row) for row in sound]
        at = max(i for i, row in enumerate(rows) if row["split"] == split)
        rows[at]["value"] = repr(float(rows[at]["value"]) + 0.01)
        write_rows(done.folder, "evaluated", rows)
        verdict = compare(done, here)
        assert (verdict.outcome, f"evaluated.csv, line {at + 2}" in verdict.text) == ("wrong", True)
    stranger = {"round": "2", "metric": "pm", "on": "local", "mean": "", "client": "77", "split": "others"}
    write_rows(done.folder, "evaluated", [*sound, stranger | {"quantity": "accuracy", "value": "1.0"}])
    assert compare(done, here).outcome == "wrong"


@pytest.mark.long
def test_the_command_computes_added_rows_again(bench: Bench, grid: Callable[..., Path], tmp_path: Path) -> None:
    bench("run", "--grid", grid(methods=["fedavg"], rounds=2), "--out", "run", "--device", "cpu", "--keep", "best")
    bench("evaluate", "run", "--tests", "others", "--metrics", "macro_f1")
    assert "not checked" not in bench("verify", "run").stdout
    (file,) = tmp_path.glob("run/*/evaluated.csv")
    change_rows(file.parent, "evaluated", nearer_to_all)
    assert "evaluated.csv, line" in bench("verify", "run", code=1).stdout


def nearer_to_all(row: Row) -> None:
    row["value"] = repr((1 + float(row["value"])) / 2)


def halve_epsilon(folder: Path) -> None:
    privacy = json.loads((folder / "privacy.json").read_text(encoding="utf-8"))
    privacy["statements"][0]["epsilon"] /= 2
    store.write_json(folder / "privacy.json", privacy)
    record_checksums(folder)


def raise_scores(folder: Path) -> None:
    """Every score of clients, and the means that follow."""
    for name in ("client_scores", "scores"):
        change_rows(folder, name, nearer_to_all)


FORGERIES: list[tuple[Callable[[Path], None], str]] = [
    (halve_epsilon, "privacy.json: epsilon"),
    (lambda folder: change_rows(folder, "changes", nearer_to_all), "changes.csv, line"),
    (lambda folder: change_rows(folder, "evaluated", nearer_to_all), "evaluated.csv, line"),
    (raise_scores, "scores.csv, line"),
]


@pytest.mark.long
def test_every_forged_table_is_wrong_on_another_path(twice: Twice, tmp_path: Path) -> None:
    """With the same losses, and with losses that only rounding moved."""
    settings, folder, here = twice
    rounded = Path(shutil.copytree(folder, tmp_path / "rounded"))
    drift_losses(rounded, 1 + 1e-6)
    for source, honest in ((folder, "same"), (rounded, "near")):
        assert disagreement(view(settings, source)) is None
        assert compare(view(settings, source), here).outcome == honest
        for number, (forge, said) in enumerate(FORGERIES):
            forged = Path(shutil.copytree(source, tmp_path / f"{honest}{number}"))
            forge(forged)
            verdict = compare(view(settings, forged), here)
            assert (verdict.outcome, said in verdict.text) == ("wrong", True), verdict.text


def test_scores_enter_the_test_of_shifts(twice: Twice) -> None:
    """What rounding may move in one cell may not be on one side in all; the last digits count for nothing."""
    settings, folder, here = twice
    assert differences(view(settings, folder), view(settings, here))["pm auroc (local, equal)"] == 0
    raise_scores(folder)
    reported = "metric == 'pm' and split == 'test' and mean == 'equal' and round == 2 and quantity == 'auroc'"
    values = [view(settings, of).table("scores").query(reported)["value"].item() for of in (folder, here)]
    apart = differences(view(settings, folder), view(settings, here))
    assert apart["pm auroc (local, equal)"] == pytest.approx(100 * (values[0] - values[1]))
    assert apart["pm accuracy (local, equal)"] == 0


ROUNDED: dict[str, Callable[[Row], object]] = {
    # validation scores that are moved may choose another round, whose models are other ones
    "another round": lambda row: row.update(round="1") if row["split"] != "test" else None,
    # though none of the cell's own tests is
    "a sample of another test classified otherwise": lambda row: (
        row.update(value=repr(float(row["value"]) - 0.02)) if row["quantity"] == "accuracy" else None
    ),
}


@pytest.mark.parametrize("change", ROUNDED.values(), ids=ROUNDED)
def test_added_rows_may_be_others_only_where_training_rounds_otherwise(
    twice: Twice, change: Callable[[Row], object]
) -> None:
    settings, folder, here = twice
    change_rows(folder, "evaluated", change)
    assert compare(view(settings, folder), here).outcome == "wrong"
    drift_losses(folder, 1 + 1e-6)
    assert compare(view(settings, folder), here).outcome == "near"


def test_a_mean_of_an_added_test_that_is_not_its_clients_is_seen_in_any_cell(twice: Twice) -> None:
    settings, folder, _ = twice
    rows = read_rows(folder, "evaluated")
    line, row = next((i, row) for i, row in enumerate(rows, start=2) if row["mean"] == "equal")
    row["value"] = "0.99"
    write_rows(folder, "evaluated", rows)
    assert str(disagreement(view(settings, folder))).startswith(f"evaluated.csv, line {line}: 0.99, by the clients'")


def test_means_and_flips_by_hand() -> None:
    """A client without a value counts in no mean."""
    means = means_of({0: 0.5, 1: 1.0, 2: float("nan")}, [1, 3, 5], [1, 2])
    assert means == {"train_size": 0.875, "equal": 0.75, "benign": 1.0}
    assert [allowed_flips(n) for n in (41, 150, 359)] == [1, 2, 3]
