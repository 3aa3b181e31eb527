"""What is said while cells run: how many have ended, and what a stopped cell counts as."""

import pytest

from bench.runs.progress import Event, PlainReporter, Reporter
from bench.store.store import CellState


@pytest.mark.parametrize(("state", "finished"), [("done", 1), ("failed", 1), ("diverged", 1), ("interrupted", 0)])
def test_a_cell_that_is_stopped_is_not_counted_as_finished(
    state: CellState, finished: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with PlainReporter({"a": "first", "b": "second"}, {"a": 30, "b": 30}) as report:
        report.event(Event("a", "running", 3, 30))
        report.event(Event("a", state, 4, 30))
    said = capsys.readouterr().err
    assert f"[{finished}/2] first: {state}, round 4/30" in said
    assert state != "interrupted" or "left" not in said.splitlines()[-1]
    assert report.finished() == finished


def test_a_cell_that_goes_on_elsewhere_is_counted_once() -> None:
    """Its worker was lost, and another one ends it."""
    report = Reporter({"a": "first"}, {"a": 30})
    for state in ("running", "interrupted", "running", "done", "done"):
        report.event(Event("a", state, 4, 30))  # type: ignore[arg-type]
        assert report.finished() == (state == "done")
