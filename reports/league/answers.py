"""The first answers of a league's page, with intervals: what beats fine-tuning, where, and what tuning is worth."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import stats

from bench.data import Floats
from reports.league.gain import BOUND
from reports.league.rule import generic_answers, task_weights
from reports.page.section import Section
from reports.reading.load import PM, Store
from reports.statistics.best import pairs_of
from reports.statistics.inference import LEVEL, summarise
from reports.statistics.reference import Differences, differences
from reports.tables.cost import budget_table, totals
from reports.tables.standings import by_unit, derived_rows, each_once, erratic_rows, family
from reports.tables.table import Column, Table, TableEntry, number, words

SIMPLE = "finetune"
"""What a personalized method has to beat: FedAvg's model, fine-tuned by every client."""
_INTERVAL = (Column("points"), Column("95 % low"), Column("95 % high"))
Interval = tuple[float, float, float]
"""Mean, low and high."""
_AT_ONCE = "Intervals hold for all methods at once, so also for the one that leads."


@dataclass(frozen=True)
class _Compared:
    """Methods beside fine-tuning, in percent.

    Attributes:
        rows: the methods.
        tasks: for each task, `[methods, units]`.
        simple: for each task, `[units]` of fine-tuning.
        weights: of the tasks.
        erratic: of fine-tuning and then of each method, whether it diverged in some cells and not in others.
        least: of each task, the least standard deviation of a unit.
    """

    rows: list[str]
    tasks: list[Floats]
    simple: list[Floats]
    weights: Floats
    erratic: list[bool]
    least: tuple[float, ...]

    def on(self, *at: int) -> Differences:
        """Differences from fine-tuning, averaged over the tasks of these numbers; without any over all."""
        at = at or tuple(range(len(self.tasks)))
        tasks, simple = ([of[k] for k in at] for of in (self.tasks, self.simple))
        weights = self.weights[list(at)]
        return differences(tasks, simple, weights / weights.sum(), self.erratic, [self.least[k] for k in at])

    def intervals(self, *at: int, comparisons: int = 1) -> list[Interval]:
        """The same of each method, with intervals that hold at once for all, and for so many comparisons of each."""
        return _intervals(self.on(*at), len(self.rows) * comparisons)


def answers(store: Store, defaults: Store | None = None) -> Section:
    """Section of the first answers.

    Args:
        store: cells of a league.
        defaults: the same methods' cells of the default division.
    """
    compared, tables, points = _compared(store), list[Table](), list[str]()
    if compared is not None:
        tables += [_beating(store, compared), _by_task(store, compared)]
        points += _beating_text(store, compared)
    if (needed := _needed(store)).rows:
        tables.append(needed)
    if defaults is not None and (worth := _worth(store, defaults)) is not None:
        tables.append(worth[0])
        points.append(worth[1])
    more = () if totals(store).empty else (budget_table(store),)
    return Section("answers", "First answers", points=tuple(points), tables=tuple(tables), more=more)


def _compared(store: Store) -> _Compared | None:
    group = family(store, store.tasks, PM)
    simple = group.clones.get(SIMPLE, SIMPLE)
    others = group.only([row for row in group.scores if row != simple])
    if simple not in group.scores or not others.scores or len(group.scores[simple][0]) < 2:
        return None
    weights, erratic = task_weights(store, store.tasks), [simple in group.erratic, *others.flags]
    return _Compared(list(others.scores), others.tasks, group.scores[simple], weights, erratic, group.least)


def _intervals(compared: Differences, comparisons: int) -> list[Interval]:
    """Mean, low and high of each method, with intervals that hold for so many comparisons at once (Bonferroni)."""
    half = compared.half(LEVEL / comparisons)
    return list(zip(*((compared.mean + sign * half).tolist() for sign in (0, -1, 1)), strict=True))


def _beating(store: Store, compared: _Compared) -> Table:
    """Table of the methods against fine-tuning over all tasks, and where each is surely ahead."""
    together = compared.intervals()
    by_task = [compared.intervals(at, comparisons=len(store.tasks)) for at in range(len(store.tasks))]
    rows = []
    for at in sorted(range(len(together)), key=lambda at: -together[at][0]):
        sure = [task for task, of_task in zip(store.tasks, by_task, strict=True) if of_task[at][1] > 0]
        rows.append((compared.rows[at], (*_numbers(together[at]), words(", ".join(sure) or "–"))))
    caption = (
        "Points of PM accuracy above FedAvg with fine-tuning, mean over tasks of a family, then over families. "
        f"{_AT_ONCE} Surely ahead on: tasks whose own interval, corrected for methods and tasks, lies above 0."
    )
    columns = (*_INTERVAL, Column("surely ahead on"))
    return Table("beats", "Who beats fine-tuning?", caption, "Method", columns, tuple(rows))


def _by_task(store: Store, compared: _Compared) -> Table:
    """Table of the method that leads on each task, and its distance from fine-tuning."""
    rows = []
    for at, task in enumerate(store.tasks):
        first, interval = max(zip(compared.rows, compared.intervals(at), strict=True), key=lambda pair: pair[1][0])
        rows.append((task, (words(first), *_numbers(interval))))
    caption = (
        "The method with the highest PM accuracy on each task, fine-tuning aside, in points above fine-tuning there: "
        f"below 0, fine-tuning leads. {_AT_ONCE}"
    )
    title, columns = "Which method for which heterogeneity?", (Column("first"), *_INTERVAL)
    return Table("for_which", title, caption, "Task", columns, tuple(rows))


def _needed(store: Store) -> Table:
    """Table of the best generic model against the best personalized ones on the clients' own tests, by task."""
    methods = {cell.row: cell.view.settings.method for cell in store.cells}
    rows = []
    for task in store.tasks:
        derived = derived_rows(store, [task], PM) | {row for row, of_task in generic_answers(store) if of_task == task}
        trained = {row: units for row, units in family(store, [task], PM).scores.items() if row not in derived}
        whole = {
            row: by_unit(store, row, [task], PM)
            for row in store.rows
            if row in derived and methods[row] != BOUND and store.complete(row, task, PM)
        }
        models, _ = each_once(whole | trained)  # so what is a generic model counts as one
        generic, personal = ([row for row in models if row in group] for group in (whole, trained))
        names = [*generic, *personal]
        if not personal or not generic or len(models[names[0]][0]) < 2:
            continue
        table = np.array([models[row][0] for row in names])
        erratic, least = [row in erratic_rows(store, [task]) for row in names], store.least(task, PM.on)
        pairs = pairs_of([table], np.ones(1), erratic, [np.full(len(names), least)])
        variance, freedom = pairs.cautious()
        means = table.mean(axis=1)
        pair = int(means[: len(generic)].argmax()), len(generic) + int(means[len(generic) :].argmax())
        quantile = float(stats.t.ppf(1 - LEVEL / (2 * len(generic) * len(personal)), freedom[pair]))
        mean, half = float(means[pair[0]] - means[pair[1]]), quantile * float(variance[pair]) ** 0.5
        rows.append((task, (*(words(names[at]) for at in pair), *_numbers((mean, mean - half, mean + half)))))
    caption = (
        "The best generic model minus the best personalized one, on the clients' own tests, each model once; where a "
        "method's personalized models are its generic one, it counts as that. Where the "
        "interval, corrected for all such pairs, holds 0, one model for all may do as well."
    )
    heads = (Column("generic"), Column("personalized"), *_INTERVAL)
    return Table("needed", "Is a personalized model needed?", caption, "Task", heads, tuple(rows))


def _worth(store: Store, defaults: Store) -> tuple[Table, str] | None:
    """Table of what tuning brings each method, on the seeds that both divisions have, and the sentence about it."""
    units = {(cell.task, cell.seed): cell.unit for cell in store.cells}
    bounds = {cell.row for cell in store.cells if cell.view.settings.method == BOUND}
    by_row = {row: _both(store, defaults, row, units) for row in store.rows if row not in bounds}
    models, _ = each_once({row: figures for row, figures in by_row.items() if figures is not None})
    if len(models) < 2:
        return None
    by_table = [np.array(rows) for rows in zip(*models.values(), strict=True)]
    count = len(store.tasks)
    tables = [tuned - plain for tuned, plain in zip(by_table[:count], by_table[count:], strict=True)]
    weights = task_weights(store, store.tasks)
    parted = erratic_rows(store, store.tasks) | erratic_rows(defaults, store.tasks)
    erratic = [False, *(row in parted for row in models)]
    least = [store.least(task, PM.on) for task in store.tasks]
    references = [np.zeros(table.shape[1]) for table in tables]
    intervals = _intervals(differences(tables, references, weights, erratic, least), len(models))
    ordered = sorted(zip(models, intervals, strict=True), key=lambda pair: -pair[1][0])
    overall = summarise(np.tensordot(weights, np.array([table.mean(axis=0) for table in tables]), 1))
    caption = (
        "Points of PM accuracy (of derived ones, too) that tuning with the league's budget adds to a method's own "
        "defaults and the one learning rate, on the seeds that both divisions have; each model once, without "
        f"`{BOUND}`. {_AT_ONCE}"
    )
    most, (mean, low, high) = ordered[0]
    sentence = (
        f"Tuning is worth {overall.mean:+.2f} points [{overall.low:.2f}, {overall.high:.2f}] to the mean method "
        f"({len(models)} methods, {overall.n} draws of tuning), most to {most} ({mean:+.2f} [{low:.2f}, {high:.2f}])."
    )
    rows = tuple((row, _numbers(interval)) for row, interval in ordered)
    return Table("worth", "What is tuning worth?", caption, "Method", _INTERVAL, rows), sentence


def _both(store: Store, defaults: Store, row: str, units: dict[tuple[str, str], str]) -> list[Floats] | None:
    """Accuracies of the seeds that both divisions have, `[draws]` for each task: tuned, and then the defaults'.

    None where a task or a draw has none.
    """
    by_task = []
    for task in store.tasks:
        tuned, plain = (
            of.by_seed(row, task, PM) if row in of.rows and task in of.tasks else {} for of in (store, defaults)
        )
        draws: dict[str, list[tuple[float, float]]] = {}
        for seed in sorted(tuned.keys() & plain.keys()):
            draws.setdefault(units[task, seed], []).append((tuned[seed], plain[seed]))
        if len(draws) < max(2, len({unit for (of_task, _), unit in units.items() if of_task == task})):
            return None
        by_task.append(np.array([np.mean(draws[unit], axis=0) for unit in sorted(draws)]))
    return [figures[:, division] for division in (0, 1) for figures in by_task]


def _beating_text(store: Store, compared: _Compared) -> Iterator[str]:
    """Say which methods surely beat fine-tuning over all tasks, and what that rests on."""
    ordered = sorted(zip(compared.rows, compared.intervals(), strict=True), key=lambda pair: -pair[1][0])
    sure = [row for row, (_, low, _) in ordered if low > 0]
    first, (mean, low, high) = ordered[0]
    yield (
        f"{len(sure)} of {len(compared.rows)} methods surely beat fine-tuning over all tasks"
        f"{': ' + ', '.join(sure) if sure else ''}. The highest mean of them has {first}, "
        f"{mean:+.2f} points [{low:.2f}, {high:.2f}]."
    )
    yield from (_what_it_rests_on(store, compared, row) for row in sure)


def _what_it_rests_on(store: Store, compared: _Compared, row: str) -> str:
    """Say which tasks carry that a method beats fine-tuning, and whether its own units show it by themselves."""
    at, tasks = compared.rows.index(row), range(len(store.tasks))
    by_task = [of_task[at] - simple for of_task, simple in zip(compared.tasks, compared.simple, strict=True)]
    means = [f"{gain.mean():+.2f} on {task}" for gain, task in zip(by_task, store.tasks, strict=True)]
    rest = {k: [other for other in tasks if other != k] for k in tasks if len(tasks) > 1}
    carrying = [store.tasks[k] for k, others in rest.items() if compared.intervals(*others)[at][1] <= 0]
    least = float(np.linalg.norm(compared.weights * compared.least))
    alone = summarise(compared.weights @ np.array(by_task), LEVEL / len(compared.rows), least)
    return (
        f"{row} above fine-tuning: {', '.join(means)} points. "
        + (f"That it beats it is not sure without {' or without '.join(carrying)}. " if carrying else "")
        + f"Student's interval of its own draws, corrected alike, is [{alone.low:.2f}, {alone.high:.2f}] and "
        + ("agrees." if alone.low > 0 else "does not agree.")
    )


def _numbers(interval: Interval) -> tuple[TableEntry, ...]:
    return tuple(number(value, signed=True) for value in interval)
