"""The league's rule: how tasks are called, how much each counts, and who has a rank."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from bench.data import Floats
from bench.results.cell_names import dataset_name
from bench.results.results import CellView
from bench.settings import Settings
from reports.reading.load import Figure, Store, equal_models, remembered
from reports.statistics.ranking import Ranked, family_weights, rank
from reports.tables.standings import Family, family

REFERENCES = ("fedavg", "local", "finetune")
"""The entries that every method is shown beside."""


def by_case(store: Store) -> Store:
    """Rename each task of the cells to its case's name alone, as a league names its tasks; without one to its data's.

    Where several tasks have one name, they keep their whole names.
    """
    cases = {cell.task: cell.view.settings.case or dataset_name(cell.view.settings) for cell in store.cells}
    often = Counter(cases.values())
    names = {task: case if often[case] == 1 else task for task, case in cases.items()}
    cells = tuple(replace(cell, task=names[cell.task]) for cell in store.cells)
    return Store(store.runs, cells, store.figures.assign(task=store.figures["task"].map(names)))


def most_draws(store: Store) -> int:
    """Number of independent draws of tuning that the entries have, as since league-2; 0: one for all seeds."""
    return max((len(run.get("draws", [])) for run in store.runs), default=0)


def has_draws(store: Store) -> bool:
    """Whether the units of intervals are independent draws of tuning, and not seeds."""
    return most_draws(store) > 0


def units_of(store: Store) -> str:
    """Name the units of intervals, for captions."""
    return "draws of tuning, each with its own seeds" if has_draws(store) else "seeds"


def entries_of(store: Store) -> list[Path]:
    """The unpacked entries that a league's cells lie in."""
    return list(dict.fromkeys(cell.view.folder.parent for cell in store.cells))


def data_families(store: Store, tasks: Sequence[str]) -> list[str]:
    """The data set behind each task: its tasks count together as much as another data set's."""
    families = {cell.task: _family(cell.view.settings) for cell in store.cells}
    return [families[task] for task in tasks]


def _family(settings: Settings) -> str:
    """The name of a file with the user's own arrays, of which many are one data set; else the data set, whatever its
    tasks are called."""
    return dataset_name(settings) if settings.dataset_options.get("path") else settings.dataset


def task_weights(store: Store, tasks: Sequence[str]) -> Floats:
    """Weight of each task in a mean over these tasks; the sum is 1."""
    return family_weights(data_families(store, tasks))


def family_mean(store: Store, values: pd.DataFrame) -> pd.Series:
    """Mean over tasks of a data family, then over families; nan for a row without a task that others have.

    Args:
        values: rows x tasks; a task that is nan in all rows does not count.
    """
    whole = values.dropna(axis="columns", how="all")
    tasks = [str(task) for task in whole.columns]
    if not tasks:
        return pd.Series(np.nan, values.index)
    return pd.Series(whole.to_numpy(dtype=float) @ task_weights(store, tasks), values.index)


def positions(places: Mapping[str, Ranked]) -> dict[str, int]:
    """Ranks by the mean alone, 1 is best; clones share one and count once."""
    return {
        row: 1 + len({other.mean for other in places.values() if other.mean > place.mean})
        for row, place in places.items()
    }


def rank_text(place: Ranked) -> str:
    """The rank interval of a method, `2–4`, or its only rank."""
    return f"{place.first}" if place.first == place.last else f"{place.first}–{place.last}"


@remembered
def ranked(store: Store, figure: Figure) -> tuple[Family, dict[str, Ranked]]:
    """The rows that may be compared on all tasks, and their ranks; a clone stands where its first one does."""
    compared = family(store, store.tasks, figure)
    if len(compared.scores) < 2:
        return compared, {}
    ranks = rank(compared.tasks, data_families(store, store.tasks), compared.flags, compared.least)
    places = dict(zip(compared.scores, ranks, strict=True))
    return compared, places | {row: places[first] for row, first in compared.clones.items()}


@remembered
def generic_answers(store: Store) -> set[tuple[str, str]]:
    """Rows and tasks whose personalized models are the generic one, of methods that train some of their own."""
    cells = equal_models(store.figures, {cell.view.id: cell.view for cell in store.cells})
    same = cells.groupby(["row", "task"]).all()
    return {(str(row), str(task)) for row, task in same[same].index}


def evaluations_on_tests(cell: CellView) -> int:
    """Number of rounds in which a cell's models were evaluated on test samples."""
    metrics = cell.table("metrics")
    return int(metrics[metrics["split"] == "test"]["round"].nunique()) if len(metrics) else 0
