"""What a forger edits beside accuracies and losses is found too: noise, scores and changes; rows of further tests are
named as not checked."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.runs.verify.drift import differences
from bench.runs.verify.files import disagreement, means_of
from bench.runs.verify.recomputed import allowed_flips, compare
from bench.settings import Settings
from bench.store import store
from tests.runs.conftest import COMMON
from tests.runs.forger import Row, change_rows, claim_another_processor, drift_losses, record_checksums
from tests.runs.helpers import BEST, finished, view

Twice = tuple[Settings, Path, Path]


@pytest.fixture(scope="module")
def made(arrays: Path, tmp_path_factory: pytest.TempPathFactory) -> Twice:
    """A cell with noise, further scores and tests, whose data change; and the same cell computed again."""
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
    finished(settings, folder, BEST)
    finished(settings.model_copy(update={"tests": ()}), again)
    return settings, folder, again


@pytest.fixture
def twice(made: Twice, tmp_path: Path) -> Twice:
    """A copy of the cell, which another processor claims, and the same cell computed here."""
    settings, folder, here = made
    folder = Path(shutil.copytree(folder, tmp_path / "cell"))
    claim_another_processor(folder)
    return settings, folder, here


def test_rows_of_further_tests_are_named_as_not_checked(made: Twice) -> None:
    settings, folder, here = made
    assert compare(view(settings, folder), here).text == "the same bytes; not checked: evaluated.csv"


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


def test_means_and_flips_by_hand() -> None:
    """A client without a value counts in no mean."""
    means = means_of({0: 0.5, 1: 1.0, 2: float("nan")}, [1, 3, 5], [1, 2])
    assert means == {"train_size": 0.875, "equal": 0.75, "benign": 1.0}
    assert [allowed_flips(n) for n in (41, 150, 359)] == [1, 2, 3]
