"""Counts of wins: the leading methods among each other, and one method against all others (`--method NAME`)."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from reports.league.pictures import means
from reports.league.rule import REFERENCES, rank_text, ranked, task_weights, units_of
from reports.page.section import Section
from reports.pictures.canvas import COLOURS, Picture, drawing, finish, legend
from reports.reading.load import GM, PM, Figure, Store
from reports.statistics.best import TaskOutcome, outcomes
from reports.statistics.inference import LEVEL, Comparison, holm, paired
from reports.statistics.ranking import Ranked
from reports.tables.standings import Family
from reports.tables.table import Column, Table, TableEntry, number, probability, words

_LEADING = 12


def counted(compared: Family, method: str, margin: float) -> dict[str, Counter[TaskOutcome]]:
    """Count the tasks on which `method` wins, ties or loses against each other row, or on which neither is shown.

    Args:
        compared: the rows.
        method: one of them.
        margin: of equivalence, in percentage points.
    """
    rows, erratic = list(compared.scores), compared.flags
    at = rows.index(method)
    counts: dict[str, Counter[TaskOutcome]] = {row: Counter() for row in rows if row != method}
    for task, least in zip(compared.tasks, compared.least, strict=True):
        for row, outcome in zip(rows, outcomes(task, max(1, len(counts)), margin, erratic, least)[at], strict=True):
            if row != method:
                counts[row][outcome] += 1
    return counts


def wins(store: Store, figure: Figure, method: str | None = None) -> Table | None:
    """Table of the tasks on which a leading method (row) is surely better than another one (column).

    Args:
        store: cells of a league.
        figure: which accuracy.
        method: a method that stands beside the leading ones.

    Returns:
        None where fewer than two have a rank.
    """
    compared, places = ranked(store, figure)
    order = sorted(compared.scores, key=lambda row: (-places[row].mean, row)) if places else []
    named = compared.clones.get(method or "", method)
    shown = [row for at, row in enumerate(order) if at < _LEADING or row == named]
    if not shown:
        return None
    pairs, leading = len(shown) * (len(shown) - 1) // 2, compared.only(shown)
    counts = np.zeros((len(shown), len(shown)), dtype=int)
    for task, least in zip(leading.tasks, leading.least, strict=True):
        counts += np.array(outcomes(task, pairs, store.margin, leading.flags, least)) == "win"
    caption = (
        f"On how many of {len(store.tasks)} tasks the method of the row is surely better than that of the column: the "
        f"first {_LEADING} by rank at most, and the one asked for. {figure.text}."
    )
    how = (
        f"{outcome_text(store.margin)} Corrected for the {pairs} pairs, task by task. The tasks that are missing in a "
        "pair's two numbers are ties or not decided."
    )
    rows = tuple(
        (row, tuple(number(count, decimals=0) for count in by_row)) for row, by_row in zip(shown, counts, strict=True)
    )
    name, columns = figure.name.lower(), tuple(map(Column, shown))
    return Table(f"wins_{name}", f"{figure.name}: who beats whom", caption, "Method", columns, rows, how=how)


def outcome_text(margin: float) -> str:
    """Explanation for captions of when a task is won."""
    return (
        "Surely better: the other is worse, as in a column's marks: the interval of the paired difference "
        f"lies below 0 and reaches more than {margin:g} points down (logits, moderated variances)."
    )


def method_section(store: Store, method: str) -> Section:
    """Tables and pictures of one method, for the models that it trains.

    Args:
        store: cells of a league.
        method: a row.
    """
    points, tables, pictures = list[str](), list[Table](), list[Picture]()
    for figure in (PM, GM):
        compared, places = ranked(store, figure)
        if method not in places:
            points.append(f"{figure.name}: not compared ({compared.left_out.get(method, 'no other method is')}).")
            continue
        pairs = _pairs(store, compared, method, figure)
        points.append(_sentence(method, figure, places, pairs))
        tables.append(_table(store, method, figure, pairs))
        pictures.append(_picture(store, compared, method, figure))
    return Section(
        "method", f"{method} against all others", points=tuple(points), tables=tuple(tables), pictures=tuple(pictures)
    )


def _pairs(store: Store, compared: Family, method: str, figure: Figure) -> dict[str, Comparison]:
    """The method's mean over tasks minus that of each other model, paired by seed, p corrected for their number."""
    weights = task_weights(store, store.tasks)
    accuracies = {row: store.units(row, figure) for row in compared.scores}
    seeds = {row: dict(zip(table.index, table.to_numpy() @ weights, strict=True)) for row, table in accuracies.items()}
    method_seeds = seeds.pop(compared.clones.get(method, method))
    least = float(np.linalg.norm(weights * compared.least))
    pairs = {row: paired(method_seeds, other, least=least) for row, other in seeds.items()}
    corrected = holm([pair.p for pair in pairs.values()])
    return {row: replace(pair, p=p) for (row, pair), p in zip(pairs.items(), corrected, strict=True)}


def _sentence(method: str, figure: Figure, places: dict[str, Ranked], pairs: dict[str, Comparison]) -> str:
    place = places[method]
    sure = [pair.difference > 0 for pair in pairs.values() if pair.p < LEVEL]
    return (
        f"{figure.name}: rank {rank_text(place)} of {len(pairs) + 1}, tier {place.tier}. Of the "
        f"{len(pairs)} others, the mean over tasks is surely above that of {sum(sure)} and surely below that of "
        f"{len(sure) - sum(sure)}."
    )


def _table(store: Store, method: str, figure: Figure, pairs: dict[str, Comparison]) -> Table:
    compared, places = ranked(store, figure)
    model = compared.clones.get(method, method)
    tasks = counted(compared, model, store.margin)
    rows = []
    for row in sorted(places.keys() - {method}, key=lambda row: (-places[row].mean, row)):
        first = compared.clones.get(row, row)
        if first == model:
            rows.append((row, (words(f"= {method}"), *[words("–")] * 7)))
            continue
        pair = pairs[first]
        points = [number(x, signed=True) for x in (pair.difference, pair.low, pair.high)]
        counts = [TableEntry(tasks[first][outcome], decimals=0) for outcome in ("win", "tie", "undecided", "loss")]
        rows.append((row, (*points, probability(pair.p), *counts)))
    caption = (
        f"Percentage points of {method} above each other method, mean over tasks with Student's 95 % interval, and on "
        f"how many tasks one is surely better. {figure.text}."
    )
    how = (
        f"Mean: over the tasks of a data family, then over families. The interval is over {units_of(store)}, paired, "
        f"of each pair by itself; p: that the mean is 0, with Holm's correction over the {len(pairs)} other models. "
        f"{outcome_text(store.margin)} Tie: the lower mean is equivalent to the higher one. Undecided: none of these, "
        "which is no sign of equality. Corrected for the number of other models, task by task. The others are in the "
        "order of their ranks."
    )
    columns = ("difference", "95 % low", "95 % high", "p (Holm)", "wins", "ties", "undecided", "losses")
    title = f"{figure.name}: {method} minus each other method"
    return Table(
        f"method_{figure.name.lower()}", title, caption, "Other", tuple(map(Column, columns)), tuple(rows), how=how
    )


def _picture(store: Store, compared: Family, method: str, figure: Figure) -> Picture:
    """The method on each task, beside the best of the others and the references."""
    model = compared.clones.get(method, method)
    others = means(store, [row for row in compared.scores if row != model], figure)
    trained = [row for row in REFERENCES if row in compared.scores and row != method]
    generic = [row for row in REFERENCES if figure == PM and compared.left_out.get(row) == "derived"]
    shown = means(store, [method, *trained, *generic], figure)
    lines: dict[str, dict[str, Any]] = {
        (f"[{row}]" if row in generic else row): {
            "color": COLOURS[k], "marker": "ovs^"[k], "ls": "", "ms": 7 if k == 0 else 5,
            "markerfacecolor": "white" if row in generic else COLOURS[k],
        }
        for k, row in enumerate(shown.index)
    }  # fmt: skip
    best: dict[str, Any] = {"color": "#111111", "marker": "|", "ls": "", "ms": 12, "markeredgewidth": 1.6}
    places = range(len(store.tasks))
    with drawing([""], 1, (6.5, 0.9 + 0.34 * len(store.tasks)), share=False) as (canvas, axes):
        for at in places[::2]:
            axes[0].axhspan(at - 0.5, at + 0.5, color="#f4f6f8", zorder=0, linewidth=0)
        axes[0].plot(others.max(), places, **best)
        for style, (_, accuracies) in reversed(list(zip(lines.values(), shown.iterrows(), strict=True))):
            axes[0].plot(accuracies, places, **style)
        axes[0].set_yticks(places, [f"{task} ({others[task].idxmax()})" for task in store.tasks])
        axes[0].set(xlabel=f"{figure.name} accuracy (%)", ylim=(len(store.tasks) - 0.5, -0.5))
        legend(canvas, {**lines, "best other": best})
        caption = (
            f"{figure.text}, mean over seeds; hollow: a generic model. Black: the best of the other methods that are "
            "compared, named in brackets beside the task; chosen on these very numbers, so it is too high."
        )
        return finish(canvas, f"method_{figure.name.lower()}", f"{figure.name}: {method} task by task", caption)
