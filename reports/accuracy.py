"""Tables of accuracies: the main table, every figure with its interval, comparisons with a reference, aggregates."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.runs.results import WINDOW
from reports import statistics
from reports.load import Store
from reports.tables import LEGEND, Column, Entry, Mark, Table, number, words


@dataclass(frozen=True)
class Figure:
    """Which accuracy: of which model, on which test data, averaged over clients how (design, section 9)."""

    name: str
    metric: str
    on: str
    mean: str

    @property
    def text(self) -> str:
        """For captions."""
        models = {"gm": "generic model", "pm": "personalized models", "lm": "models right after local training"}
        means = {"train_size": ", weighted by training size", "equal": ", every client counting the same", "": ""}
        place = "common test set" if self.on == "global" else "clients' local test sets"
        return f"{self.name}: {models[self.metric]} on the {place}{means[self.mean]}"


GM = Figure("GM", "gm", "global", "")
PM = Figure("PM", "pm", "local", "train_size")
PM_EQUAL = Figure("PM", "pm", "local", "equal")
HEADLINE = (GM, PM)

SELECTION = {"honest": "validation", "paper": "best"}
"""Which round a protocol reports."""

SELECTION_TEXT = {
    "validation": f"the round was chosen on validation data (best mean of its last {WINDOW} evaluations)",
    "peak": "the round with the best validation accuracy, the earliest of equals",
    "tail": f"the mean of the last {WINDOW} evaluations",
    "best": "the best test accuracy over the evaluated rounds (optimistic: it was chosen on test data)",
    "last": "the last round",
}


def selection(store: Store, asked: str | None = None) -> str:
    """The selection asked for, else what the store's protocol reports; the last round where there was no such data."""
    wanted = asked or SELECTION[store.protocols[0]]
    return wanted if (store.figures["selection"] == wanted).any() else "last"


def reference(store: Store) -> str:
    """The row that others are compared with: FedAvg where there is one, else the grid's first."""
    fedavg = [cell.row for cell in store.cells if cell.view.settings.method == "fedavg"]
    return fedavg[0] if fedavg else store.rows[0]


def main_table(
    store: Store,
    chosen: str,
    figures: Sequence[Figure] = HEADLINE,
    name: str = "main",
    title: str = "Generic and personalized models",
) -> Table:
    """Method x (task, figure): mean and standard deviation over seeds, the best and its equals marked.

    Args:
        store: cells of one protocol.
        chosen: `best`, `last` or `validation`.
        figures: the columns of each task.
        name, title: of the table.
    """
    columns = [(task, figure) for task in store.tasks for figure in figures]
    usual = max((len(store.of(row, task)) for row in store.rows for task in store.tasks), default=0)
    by_column = [_column(store, task, figure, chosen, usual) for task, figure in columns]
    rows = tuple((row, tuple(entries[row] for entries in by_column)) for row in store.rows)
    heads = tuple(Column(figure.name, task) for task, figure in columns)
    seeds = "1 seed" if usual == 1 else f"{usual} seeds"
    caption = (
        f"Test accuracy in percent, mean ± standard deviation (ddof 1) over {seeds} unless another n is printed. "
        f"{'; '.join(figure.text for figure in figures)}. "
        f"Protocol: {store.protocols[0]}; {SELECTION_TEXT[chosen]}."
    )
    return Table(name, title, caption, "Method", heads, rows, (LEGEND,))


def all_figures_table(store: Store) -> Table:
    """One row per method, task, figure and selection: mean, standard deviation, 95 % t interval."""
    names = ("task", "metric", "on", "mean over clients", "selection", "n", "mean", "std", "95 % low", "95 % high")
    rows = []
    keys = ["row", "task", "metric", "on", "mean", "selection"]
    for key, group in store.figures.groupby(keys, sort=False):
        row, *texts = (str(part) or "–" for part in key)
        summary = statistics.summarise(100 * group["value"].to_numpy())
        numbers = (summary.mean, summary.std, summary.low, summary.high)
        entries = (*map(words, texts), Entry(summary.n, decimals=0), *map(number, numbers))
        rows.append((row, entries))
    caption = "Accuracy in percent, mean, standard deviation (ddof 1) and Student's 95 % interval over seeds."
    return Table("figures", "All figures with intervals", caption, "Method", tuple(map(Column, names)), tuple(rows))


def comparison_table(store: Store, chosen: str, figures: Sequence[Figure] = HEADLINE) -> Table:
    """Paired differences per seed from the reference method, in percentage points."""
    base = reference(store)
    names = ("task", "figure", "n", "difference", "95 % low", "95 % high", "p (Holm)", "d_z", "d_z low", "d_z high")
    rows = []
    for task in store.tasks:
        for figure in figures:
            others = [row for row in store.rows if row != base]
            against = _scores(store, base, task, figure, chosen)
            results = [statistics.paired(_scores(store, row, task, figure, chosen), against) for row in others]
            corrected = statistics.holm([result.p for result in results])
            for row, result, p in zip(others, results, corrected, strict=True):
                if result.n == 0:
                    continue
                points = [number(x, signed=True) for x in (result.difference, result.low, result.high)]
                effect = [number(x) for x in (result.effect, result.effect_low, result.effect_high)]
                head = (words(task), words(figure.name), Entry(result.n, decimals=0))
                rows.append((row, (*head, *points, _p_value(p), *effect)))
    caption = (
        f"Difference from {base} in percentage points, paired by seed (methods of one seed share partition, initial "
        "weights, client sampling and batches): mean, Student's 95 % interval, p value of the paired t test with "
        "Holm's correction over the methods of a task and figure, and the effect size d_z (mean over standard "
        "deviation of the differences) with its 95 % interval."
    )
    return Table("comparisons", f"Differences from {base}", caption, "Method", tuple(map(Column, names)), tuple(rows))


def aggregate_table(store: Store, chosen: str, figures: Sequence[Figure] = HEADLINE) -> Table:
    """Over all tasks: mean rank, interquartile mean, probability of improvement on the reference."""
    base = reference(store)
    names = ("mean rank", "IQM", "95 % low", "95 % high", f"P(better than {base})", "low", "high")
    columns = tuple(Column(name, figure.name) for figure in figures for name in names)
    parts = [_aggregates(store, base, figure, chosen) for figure in figures]
    rows = [row for row in store.rows if any(row in part for part in parts)]
    blank = (words("–"),) * len(names)
    caption = (
        f"Tasks (data set and partition): {len(store.tasks)}; methods without a gap only. Rank 1 is best. "
        "IQM: mean of the middle half of all runs, percent. P: probability that a random run beats one of "
        f"{base} on the same task. Intervals: 95 %, bootstrap of runs within each task."
    )
    body = tuple((row, tuple(entry for part in parts for entry in part.get(row, blank))) for row in rows)
    return Table("aggregates", "Over all tasks", caption, "Method", columns, body)


def ranking(store: Store, figure: Figure, chosen: str) -> statistics.CriticalDifference:
    """Ranks over tasks of the methods that have a figure on every task."""
    complete = _complete(store, figure, chosen)
    if not complete:
        reason = "no method has a figure on every task"
        return statistics.CriticalDifference((), (), len(store.tasks), math.nan, (), reason)
    scores = np.array([[runs.mean() for runs in tasks] for tasks in complete.values()])
    return statistics.critical_difference(list(complete), scores.T)


def _column(store: Store, task: str, figure: Figure, chosen: str, usual: int) -> dict[str, Entry]:
    """One column of the main table, by row."""
    scores = {row: _scores(store, row, task, figure, chosen) for row in store.rows}
    measured = [row for row in store.rows if scores[row]]
    marks: dict[str, Mark] = {}
    highest = math.nan
    if measured:
        best, near = statistics.not_significantly_worse([scores[row] for row in measured])
        marks = {row: "near" if near[k] else "" for k, row in enumerate(measured)}
        highest = statistics.summarise(list(scores[measured[best]].values())).mean
    f = store.figures
    derived = set(f[(f["task"] == task) & (f["metric"] == figure.metric) & f["derived"]]["row"])
    column = {}
    for row in store.rows:
        states = Counter(cell.state for cell in store.of(row, task) if cell.state != "done")
        problems = ", ".join(f"{count} {state}" for state, count in states.items())
        if not scores[row]:
            column[row] = words(problems or "–")
            continue
        summary = statistics.summarise(list(scores[row].values()))
        note = "" if summary.n == usual else f"(n={summary.n}{'; ' if problems else ''}{problems})"
        spread = None if math.isnan(summary.std) else summary.std
        mark = "best" if summary.mean == highest else marks[row]
        column[row] = Entry(summary.mean, spread, note, mark, row in derived)
    return column


def _scores(store: Store, row: str, task: str, figure: Figure, chosen: str) -> dict[str, float]:
    return store.scores(row, task, figure.metric, figure.on, figure.mean, chosen)


def _complete(store: Store, figure: Figure, chosen: str) -> dict[str, list[statistics.Floats]]:
    """Runs per task of each method that has some on every task."""
    runs = {
        row: [np.array(list(_scores(store, row, task, figure, chosen).values())) for task in store.tasks]
        for row in store.rows
    }
    return {row: tasks for row, tasks in runs.items() if all(len(one) for one in tasks)}


def _aggregates(store: Store, base: str, figure: Figure, chosen: str) -> dict[str, tuple[Entry, ...]]:
    complete = _complete(store, figure, chosen)
    if not complete:
        return {}
    means = np.array([[runs.mean() for runs in tasks] for tasks in complete.values()])
    ranks = statistics.ranks(means.T).mean(axis=0)
    found = {}
    for rank, (row, tasks) in zip(ranks, complete.items(), strict=True):
        middle = statistics.bootstrap([tasks], statistics.iqm, row, figure.name)
        entries = [number(x) for x in (rank, middle.value, middle.low, middle.high)]
        if base in complete and row != base:
            better = statistics.bootstrap(
                [tasks, complete[base]], statistics.probability_of_improvement, row, base, figure.name
            )
            entries += [number(x) for x in (better.value, better.low, better.high)]
        else:
            entries += [words("–")] * 3
        found[row] = tuple(entries)
    return found


def _p_value(p: float) -> Entry:
    return words("<0.001") if p < 0.001 else number(p, decimals=3)
