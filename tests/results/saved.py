"""A finished grid whose models are saved."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.results.figures import reported_figures
from bench.results.results import CellView
from bench.runs.cell_options import Keep, Options
from bench.settings import Settings
from tests.engine import problems  # noqa: F401 (registers a model with BatchNorm)
from tests.runs import helpers

Grid = Callable[..., Path]


def finished(settings: Settings, folder: Path, keep: Keep) -> CellView:
    """Run a cell to its end and return its view."""
    return helpers.finished(settings, folder, Options(device="cpu", keep=keep, checkpoint_seconds=0))


def scored_tests(cell: CellView, at: Mapping[str, int]) -> list[tuple[str, Any]]:
    """ "gm" or "pm", and the row of the cell's table that counts right answers on a client's tests in that round."""
    scores = cell.table("clients")
    tested = scores[(scores["split"] == "test") & (scores["round"] == scores["metric"].map(dict(at)))]
    assert (tested["metric"] == "pm").sum() == cell.settings.clients
    return [(row.metric, row) for row in tested.itertuples()]


def rounds(cell: CellView) -> dict[str, int]:
    """The reported round of the generic and of the personalized models."""
    found = reported_figures(cell)
    return {
        metric: next(f["round"] for f in found if f["metric"] == metric and f["mean"] != "equal")
        for metric in ("gm", "pm")
    }
