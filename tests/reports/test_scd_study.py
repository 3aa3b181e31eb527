"""The SCD study: its grids hold what its claims compare, and its verdicts follow the intervals."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bench.config.grid import load_grid
from reports.published.comparison import published_table
from reports.reading.load import load
from tests.conftest import ROOT
from tests.reports.conftest import cells_of, change_run

DOCS = ROOT / "docs"


@pytest.fixture
def study() -> Any:
    return importlib.import_module("docs.examples.scd_study")


def test_every_arm_of_a_claim_is_in_the_grid(study: Any) -> None:
    arms = {cell.name for cell in load_grid(str(study.GRIDS["arms"]), []).cells}
    named = {name.format(r) for *_, better, worse in study.CLAIMS for name in (better, worse) for r in study.READINGS}
    assert named <= arms


def test_the_curves_have_the_printed_values(study: Any) -> None:
    """Of Tables 6 to 8, each with the other two settings at their published values."""
    cells = load_grid(str(study.GRIDS["curves"]), []).cells
    for table, name in (("scd_t6", "tau"), ("scd_t7", "lambda_g"), ("scd_t8", "lambda_p")):
        printed = {row.axes[name] for row in published_table(table).rows}
        rest = {k: v for k, v in study.PUBLISHED.items() if k != name}
        for label in {cell.name for cell in cells}:
            ours = [c.hp for c in cells if c.name == label and all(c.hp[k] == v for k, v in rest.items())]
            assert printed == {hp[name] for hp in ours}


def test_a_claim_is_a_difference_paired_by_seed(study: Any, store_writer: Any, tmp_path: Path) -> None:
    run = store_writer(tmp_path / "run", methods=("fedavg", "ditto", "scd"))
    labels = {"fedavg": "fedavg", "ditto": "ditto_1", "scd": "generalised_kl"}
    store = load([change_run(run, cells=[cell | {"label": labels[cell["label"]]} for cell in cells_of(run)])])
    found = {(f.claim, f.says, f.task): f for f in study.claims(store) if f.reading == "generalised_kl"}
    assert {claim for claim, *_ in found} == {"S1", "S5"}  # the others' arms are not in this run
    for (claim, _, task), f in found.items():
        figure, rival = (study.GM, "fedavg") if claim == "S1" else (study.PM, "ditto_1")
        ours, theirs = (study.values(store, row, task, figure) for row in ("generalised_kl", rival))
        assert f.seeds == 3
        assert f.difference == pytest.approx(sum(ours[seed] - theirs[seed] for seed in ours) / 3)
        assert f.low < f.difference < f.high
    one, other = {"seed=0": 1.0, "seed=1": 2.0}, {"seed=1": 1.0, "seed=2": 2.0}
    assert not [*study._finding("S1", "", study.GM, "mean", "digits", one, other)], "one seed in common is no finding"


@pytest.mark.parametrize("shape", [(3, 28, 28), (3, 32, 32), (3, 32, 32, 3)])
def test_pictures_are_halved_by_the_mean_of_four_pixels(study: Any, shape: tuple[int, ...]) -> None:
    images = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    halved = study.half(images)
    assert halved.shape == (3, 16, 16, *shape[3:])
    assert halved.dtype == np.uint8
    margin = (32 - shape[1]) // 2  # a margin of two pixels is one of the halved picture
    row, column = 3 * 2 - margin, 5 * 2 - margin
    expected = images[1, row : row + 2, column : column + 2].astype(float).mean((0, 1))
    assert np.abs(halved[1, 3, 5] - expected).max() <= 0.5


def test_the_page_shows_the_numbers_that_are_committed(study: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (DOCS / "scd-study.md").read_text(encoding="utf-8")
    folders = [file.parent for file in (DOCS / "scd-study").glob("*/claims.csv")]
    assert folders
    assert all(study.markdown(folder).strip() in page for folder in folders)
    monkeypatch.syspath_prepend(str(DOCS / "examples"))
    table = pd.read_csv(DOCS / "scd-study/search.csv")
    assert importlib.import_module("scd_tuned").markdown(table) in page


@pytest.mark.long
def test_the_tuned_comparison_is_that_of_the_shipped_entries(tmp_path: Path) -> None:
    """Whoever computes one of these methods' entries again computes the study's table again."""
    found = tmp_path / "tuned.csv"
    command = [sys.executable, str(DOCS / "examples/scd_tuned.py"), str(found)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert found.read_text() == (DOCS / "scd-study/tuned.csv").read_text()
    assert printed.strip() in (DOCS / "scd-study.md").read_text()
