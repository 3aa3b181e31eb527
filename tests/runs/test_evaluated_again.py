"""`bench verify` and rows that `bench evaluate` added: computed again with the cell, or named as not checked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.results.further_tests import evaluate_cell
from bench.results.results import CellView
from bench.runs.cell import run_cell
from bench.runs.cell_options import Options
from bench.runs.verify.recomputed import compare, evaluated_tests, scores_of
from bench.settings import CorruptedTest, PlainTest, ShiftedTest
from tests.runs.conftest import Bench, Cell
from tests.runs.helpers import view

DEVICE = Options(device="cpu", executor="sequential", keep="best")
ADDED = [PlainTest(name="global"), CorruptedTest(name="corrupted", kinds=("fog",), severity=2)]
SHIFTED = ShiftedTest(name="shifted", shifts=({"name": "label_noise", "share": 0.3},))


@pytest.fixture
def again(cell: Cell, tmp_path: Path) -> tuple[CellView, Path]:
    """A cell with rows that were added later, and the same cell computed again."""
    settings = cell(method="ditto", rounds=2, tests=("others",))
    assert run_cell(settings, tmp_path / "cell", DEVICE).state == "done"
    done = view(settings, tmp_path / "cell")
    evaluate_cell(done, [*ADDED, SHIFTED], ["macro_f1"])
    scoring: dict[str, Any] = {"metrics": tuple(sorted(scores_of(done))), "tests": tuple(evaluated_tests(done))}
    assert run_cell(settings.model_copy(update=scoring), tmp_path / "new", DEVICE).state == "done"
    return done, tmp_path / "new"


def test_added_rows_are_computed_again(again: tuple[CellView, Path]) -> None:
    """Also those of a score on the cell's own tests, which the new cell has in its tables of scores."""
    done, new = again
    assert [test.name for test in evaluated_tests(done)] == ["others", "global", "corrupted"]
    rows = done.table("evaluated")
    assert {"test", "global", "others", "corrupted fog 2"} < set(rows["split"])
    verdict = compare(done, new)
    assert verdict.outcome == "same"
    assert verdict.text == "the same bytes; not checked: evaluated.csv (shifted label_noise share=0.3)"


@pytest.mark.parametrize("split", ["others", "global", "corrupted fog 2", "test"])
def test_an_edited_row_is_found(split: str, again: tuple[CellView, Path]) -> None:
    done, new = again
    file = done.folder / "evaluated.csv"
    lines = file.read_text().splitlines()
    at = max(i for i, line in enumerate(lines) if f",{split}," in line)
    *head, value = lines[at].split(",")
    lines[at] = ",".join([*head, repr(float(value) + 0.01)])
    file.write_text("\n".join(lines) + "\n")
    verdict = compare(done, new)
    assert verdict.outcome == "wrong"
    assert f"evaluated.csv, line {at + 1}" in verdict.text


def test_a_row_of_a_client_that_is_none_is_found(again: tuple[CellView, Path]) -> None:
    done, new = again
    file = done.folder / "evaluated.csv"
    with file.open("a") as stream:
        stream.write("2,pm,local,,77,others,accuracy,1.0\n")
    assert compare(done, new).outcome == "wrong"


@pytest.mark.long
def test_the_command_finds_it(bench: Bench, grid: Callable[..., Path], tmp_path: Path) -> None:
    bench("run", "--grid", grid(methods=["fedavg"], rounds=2), "--out", "run", "--device", "cpu", "--keep", "best")
    bench("evaluate", "run", "--tests", "others", "--metrics", "macro_f1")
    sound = bench("verify", "run")
    assert "not checked" not in sound.stdout
    (file,) = tmp_path.glob("run/*/evaluated.csv")
    text = file.read_text().splitlines()
    text[-1] = text[-1].rpartition(",")[0] + ",0.123"
    file.write_text("\n".join(text) + "\n")
    out = bench("verify", "run", code=1).stdout
    assert "evaluated.csv, line" in out
    assert "by the clients' values" in out  # a mean, which the client's value no longer gives
