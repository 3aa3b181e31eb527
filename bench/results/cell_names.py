"""Names of cells in tables and messages: their columns, tasks and data sets."""

from typing import Any

from bench.settings import Settings, data_name

CELL_COLUMNS = ("label", "dataset", "case", "alpha", "seed", "cell")
"""Columns that say which cell a row of a table is of."""


def cell_columns(id: str, settings: Settings) -> dict[str, Any]:
    """The columns that tell a cell apart in tables, by the names in `CELL_COLUMNS`."""
    return {
        "label": settings.name,
        "dataset": dataset_name(settings),
        "case": settings.case,
        "alpha": settings.alpha,
        "seed": settings.seed,
        "cell": id,
    }


def cell_name(settings: Settings) -> str:
    """The name of a cell in messages, e.g. `scd digits alpha=0.1 seed=0`."""
    return f"{settings.name} {task_name(settings)} seed={settings.seed}"


def task_name(settings: Settings) -> str:
    """The name of a cell's task, e.g. `digits alpha=0.1`."""
    alpha = [] if settings.alpha is None else [f"alpha={settings.alpha:g}"]
    return " ".join([data_and_case(dataset_name(settings), settings.case), *alpha])


def data_and_case(dataset: str, case: str) -> str:
    """A data set's name and a case's, e.g. `npz noisy`; labelled data sets stand in the case too, and here once."""
    case = f"{case}, ".removeprefix(f"{dataset}, ").removesuffix(", ")
    return f"{dataset} {case}" if case else dataset


def drawn(task: str, draw: int) -> str:
    """The name of a task in one draw of tuning, from 1; 0: there is a single one."""
    return f"{task}, draw {draw}" if draw else task


def dataset_name(settings: Settings) -> str:
    """The name of the data set in tables: a user's own arrays have the name given to them, or that of their file."""
    return data_name(settings.dataset, settings.dataset_options)
