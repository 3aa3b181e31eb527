"""Figures of finished cells, at the rounds that their protocols choose (`bench/results/reported_round.py`)."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from bench.results.reported_round import (
    WINDOW,
    CurveKey,
    Curves,
    after,
    chosen_rounds,
    curves_of_cells,
    selecting_curves,
    selection_curve,
    table_of,
)
from bench.settings import RECORDED, FurtherTest, Settings
from bench.store import documents
from bench.store.store import Status
from bench.store.tables import read_table, read_tables

if TYPE_CHECKING:
    import pandas as pd  # its import starts a thread, and workers are forked from a process that has this module

ALL = -1
"""In the column `client` of `evaluated`: the row is a mean over clients, or of all samples together."""


class ReadCell(Protocol):
    """The part of a cell (`bench.results.results.CellView`) that figures and saved models are made of."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def status(self) -> Status: ...
    @property
    def folder(self) -> Path: ...
    def table(self, name: str) -> "pd.DataFrame": ...


def reported_figures(cell: ReadCell, quantity: str = "accuracy") -> list[dict[str, Any]]:
    """The accuracies, or another score, that a report shows of a cell, at the round that its protocol chooses:
    `metric`, `on`, `mean`, `round`, `value` and others. Empty where the cell is not done."""
    figures = figures_of([cell], quantity)[cell.id] if cell.status.state == "done" else []
    wanted = "best" if cell.settings.protocol == "paper" else "validation"
    chosen = [figure for figure in figures if figure["selection"] == wanted]
    return chosen or [figure for figure in figures if figure["selection"] == "last"]


def further_scores(cells: Sequence[ReadCell]) -> list[str]:
    """The scores beside accuracy and loss that some of the cells have on their own tests, in the tables' order."""
    folders = [cell.folder for cell in cells]
    later = read_tables(folders, "evaluated")[0]
    names = [*read_tables(folders, "scores")[0]["quantity"], *later[later["split"] == "test"]["quantity"]]
    return list(dict.fromkeys(names))


def missing_scores(folder: Path, tests: Sequence[FurtherTest], metrics: Sequence[str]) -> list[tuple[str, str]]:
    """The tests, by their names in tables, and scores that a finished cell has no rows of; its own test is `test`."""
    labels = dict.fromkeys([*(label for test in tests for label in test.labels), "test"])
    wanted = [(label, quantity) for label in labels for quantity in dict.fromkeys((*RECORDED, *metrics))]
    later = read_table(folder, "evaluated")
    present = {("test", quantity) for quantity in (*RECORDED, *read_table(folder, "scores")["quantity"])}
    present.update(zip(later["split"], later["quantity"], strict=True))
    return [pair for pair in wanted if pair not in present]


def figures_of(cells: Sequence[ReadCell], quantity: str = "accuracy") -> dict[str, list[dict[str, Any]]]:
    """The figures of cells that are done, by id; nan where they say nothing (`_beyond_guessing`).

    Their tables are read together: see `read_tables`.
    """
    once = list({cell.id: cell for cell in cells}.values())
    curves = _curves(once, "accuracy")
    of_score = curves if quantity == "accuracy" else _curves(once, quantity)
    selecting = _selecting(once, curves)
    local = [cell for cell in once if any(metric == "lm" for _, metric, *_ in curves[cell.id])]
    alike = dict(zip([cell.id for cell in local], _rounds_alike(local), strict=True))
    lost = _beyond_guessing(once)
    figures = {
        cell.id: _cell_figures(cell, curves[cell.id], selecting[cell.id], of_score[cell.id], alike.get(cell.id, set()))
        for cell in once
    }
    for id, rows in figures.items():
        for row in rows:
            if (("test", row["metric"], row["on"], row["mean"]), row["round"]) in lost.get(id, ()):
                row["value"] = math.nan
    return figures


def _beyond_guessing(cells: Sequence[ReadCell]) -> dict[str, set[tuple[CurveKey, int]]]:
    """Find the places and rounds, by cell, at which a mean of personalized models is no model any more.

    Its loss is then above ln(n + C), for n test samples of C classes. A guess that counts each class once more often
    than it was seen (Laplace) gives every class at least 1 / (n + C), so that no loss of such a guess is larger.
    """
    means = [cell for cell in cells if cell.status.derived == ["gm"]]
    lost: dict[str, set[tuple[CurveKey, int]]] = {}
    for cell, curves in zip(means, _curves(means, "loss").values(), strict=True):
        record = documents.read(cell.folder, "partition.json") or {}
        samples = max(sum(record.get("n_test", ())), record.get("n_global_test", 0))
        largest = math.log(samples + len(record["counts"][0])) if samples else math.inf
        of_means = ((place, curve) for place, curve in curves.items() if place[:2] == ("test", "gm"))
        lost[cell.id] = {(place, at) for place, curve in of_means for at, loss in curve.items() if not loss <= largest}
    return lost


def _curves(cells: Sequence[ReadCell], quantity: str) -> dict[str, Curves]:
    """The curves of a score, by cell."""
    folders = [cell.folder for cell in cells]
    curves = curves_of_cells(*read_tables(folders, table_of(quantity)), quantity)
    if table_of(quantity) == "scores" and any((folder / "evaluated.csv").exists() for folder in folders):
        table, lengths = read_tables(folders, "evaluated")
        of_cells = np.repeat(np.arange(len(folders)), lengths)[table["client"] == ALL]
        later = curves_of_cells(
            table[table["client"] == ALL], np.bincount(of_cells, minlength=len(folders)).tolist(), quantity
        )
        for known, added in zip(curves, later, strict=True):
            known.update({key: curve for key, curve in added.items() if key not in known})
    return {cell.id: after(of_cell, cell.settings.last_change) for cell, of_cell in zip(cells, curves, strict=True)}


def _selecting(cells: Sequence[ReadCell], accuracies: dict[str, Curves]) -> dict[str, Curves]:
    """The curves by which each cell's rounds are chosen (`select_by`)."""
    chosen = {"accuracy": accuracies}
    for name in {cell.settings.select_by for cell in cells} - {"accuracy"}:
        of_score = _curves([cell for cell in cells if cell.settings.select_by == name], name)
        chosen[name] = {id: selecting_curves(curves, name) for id, curves in of_score.items()}
    return {cell.id: chosen[cell.settings.select_by][cell.id] for cell in cells}


def _cell_figures(
    cell: ReadCell, curves: Curves, selecting: Curves, of_score: Curves, alike: set[int]
) -> list[dict[str, Any]]:
    """The figures of one cell.

    Args:
        cell: the cell.
        curves: its accuracies.
        selecting: the curves by which its rounds are chosen.
        of_score: the curves of the score whose figures these are.
        alike: its rounds from `_rounds_alike`, for the scores of local models.
    """
    figures = []
    rounds: dict[tuple[Any, ...], dict[str, int]] = {}  # what was chosen: the same for all curves of a model
    for place, curve in curves.items():
        split, metric, on, mean = place
        if split != "test" or place not in of_score:
            continue
        eligible = {round_: value for round_, value in curve.items() if metric != "lm" or round_ in alike}
        key = (metric, on, mean) if cell.settings.protocol == "paper" else (metric, *eligible)
        if key not in rounds:
            rounds[key] = chosen_rounds(eligible, selection_curve(selecting, metric), cell.settings.protocol)
        last, values = max(curve), of_score[place]
        tail = [values[round_] for round_ in [*eligible][-WINDOW:] if round_ in values]
        figures += [
            {
                "metric": metric,
                "on": on,
                "mean": mean,
                "selection": selection,
                "round": round_,
                "value": _mean(tail) if selection == "tail" else values[round_],
                "derived": metric in cell.status.derived,
            }
            for selection, round_ in ({"last": last, "tail": last} | rounds[key]).items()
            if round_ in values
        ]
    return figures


def _mean(values: Sequence[float]) -> float:
    """The mean of those that are defined; nan where none is."""
    defined = [value for value in values if not math.isnan(value)]
    return float(np.mean(defined)) if defined else math.nan


def _rounds_alike(cells: Sequence[ReadCell]) -> list[set[int]]:
    """The rounds of each cell in which as many local models were scored as in its last round."""
    clients, lengths = read_tables([cell.folder for cell in cells], "clients")
    local = clients.assign(cell=np.repeat(np.arange(len(cells)), lengths))[clients["metric"] == "lm"]
    scored = local.groupby(["cell", "round"])["client"].nunique()
    last = scored.groupby("cell").transform("last")
    alike: list[set[int]] = [set() for _ in cells]
    for cell, round_ in scored.index[scored == last]:
        alike[cell].add(round_)
    return alike
