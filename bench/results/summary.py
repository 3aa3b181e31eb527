"""A run's accuracies, or another score, in short, as `bench results` prints them and a notebook shows them."""

import html
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.results.cell_names import data_and_case
from bench.results.privacy import PROTECTED, epsilon_text
from bench.settings import MAIN_MEANS

if TYPE_CHECKING:
    import pandas as pd

_TASK = ("dataset", "case", "alpha")
_REPORTED = {"honest": "validation", "paper": "best"}


def summary(figures: "pd.DataFrame", quantity: str = "accuracy") -> "Iterator[tuple[str, pd.DataFrame]]":
    """Make a title and a table for each protocol: a row for each label, GM and PM for each task.

    Accuracies are in percent, other scores as they are.

    Means and standard deviations are over seeds; square brackets mark what is derived by SCD's Remark 4.1, as in
    reports, where round ones hold notes; a dash stands where that says nothing in some seed. Tasks with an attack have
    columns of their benign clients, too. Where a cell has noise, columns have the largest epsilon of the seeds. Cells
    of one label, task and seed are different experiments that nothing names: each has a row of its own, with its id.

    Args:
        figures: the rows of `bench.results.results.tidy`.
        quantity: the score that they are of.
    """
    unit, percent = (" (%)", True) if quantity == "accuracy" else ("", False)
    # without a figure are the trials of a sweep: they have no test split
    done = figures[(figures["status"] == "done") & (figures["value"].notna() | figures["derived"].astype(bool))]
    for protocol, rows in done.groupby("protocol", sort=False):
        selection = _REPORTED[str(protocol)]
        of_tasks = (rows["selection"] == selection).groupby([rows[name] for name in _TASK], dropna=False)
        chosen = of_tasks.transform("any")
        reported = rows[rows["selection"] == chosen.map({True: selection, False: "last"})]
        at = selection if chosen.any() else "last"
        at += ", on tasks without it the last" if chosen.any() and not chosen.all() else ""
        left_out = rows["cell"].nunique() - reported["cell"].nunique()
        at += f" ({left_out} cells without it are left out)" if left_out else ""
        title = f"{quantity}{unit}, protocol {protocol}, round: {at}, mean ± std over seeds"
        table = reported[reported["mean"].isin((*MAIN_MEANS, "benign"))].copy()
        yield title, _table(table, percent=percent)


def undone(figures: "pd.DataFrame") -> str:
    """Say which cells are not in the summary, e.g. `not in the table: 2 waiting`; empty where none is left out."""
    counts = Counter(figures[figures["status"] != "done"].drop_duplicates("cell")["status"])
    counted = ", ".join(f"{count} {state}" for state, count in counts.most_common())
    return counted and f"not in the table: {counted}"


def to_html(run: Path, figures: "pd.DataFrame", notes: Sequence[str] = ()) -> str:
    """The summary for a notebook, with notes below."""
    texts = [f"<b>{html.escape(str(run))}</b>", html.escape(undone(figures))]
    texts += [f"{html.escape(title)}{table.to_html(border=0)}" for title, table in summary(figures)]
    texts += map(html.escape, notes)
    return "<br>".join(text for text in texts if text)


def _table(figures: "pd.DataFrame", *, percent: bool) -> "pd.DataFrame":
    import pandas as pd

    alpha = figures["alpha"].map(lambda value: "" if value != value else f" α={value:g}")
    names = [data_and_case(*both) for both in zip(figures["dataset"], figures["case"], strict=True)]
    figures["task"] = pd.Series(names, figures.index, dtype=str) + alpha
    figures["row"] = _row_names(figures)
    tasks = list(dict.fromkeys(figures["task"]))
    benign = figures["mean"] == "benign"
    columns = [(task, "", figures[(figures["task"] == task) & ~benign]) for task in tasks]
    columns += [(task, " benign", figures[(figures["task"] == task) & benign]) for task in tasks]
    noisy = {
        task: [protected for protected in PROTECTED if rows[f"epsilon_{protected}"].notna().any()]
        for task, kind, rows in columns
        if not kind
    }
    entries = {}
    for row in dict.fromkeys(figures["row"]):
        of_row = [(task, kind, rows[rows["row"] == row]) for task, kind, rows in columns if len(rows)]
        entries[str(row)] = {
            f"{task} {metric.upper()}{kind}": _entry(rows, metric, on, percent=percent)
            for task, kind, rows in of_row
            for metric, on in (("gm", "global"), ("pm", "local"))
        } | {
            f"{task} ε {protected}": epsilon_text(rows[f"epsilon_{protected}"]) or "–"
            for task, kind, rows in of_row
            if not kind
            for protected in noisy[task]
        }
    return pd.DataFrame.from_dict(entries, orient="index")


def _row_names(figures: "pd.DataFrame") -> "pd.Series[str]":
    """The row of each figure: its label, with the cell's id where label and task do not tell cells of one seed apart.

    Their mean would be taken for one over seeds.
    """
    cells = figures.groupby(["label", "task", "seed"])["cell"].transform("nunique")
    mixed = (cells > 1).groupby([figures["label"], figures["task"]]).transform("any")
    return figures["label"].where(~mixed, figures["label"] + " " + figures["cell"])


def _entry(task: "pd.DataFrame", metric: str, on: str, *, percent: bool) -> str:
    rows = task[task["metric"] == metric]
    rows_on = rows[rows["on"] == on]
    rows = rows_on if not rows_on.empty else rows
    if rows.empty or rows["value"].isna().any():
        return "-"
    values, digits = (100 * rows["value"], 2) if percent else (rows["value"], 4)
    text = f"{values.mean():.{digits}f}" + (f" ± {values.std():.{digits}f}" if len(values) > 1 else "")
    return f"[{text}]" if rows["derived"].any() else text
