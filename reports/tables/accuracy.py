"""Tables of accuracies: the main table, every figure with its interval, comparisons with a reference, aggregates."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bench.results.privacy import PROTECTED, epsilon_text
from bench.results.reported_round import WINDOW
from reports.reading.load import HEADLINE, Figure, Store
from reports.reading.names import setting_text
from reports.statistics import inference
from reports.tables.standings import by_unit, column_marks, derived_rows, family
from reports.tables.table import (
    LEGEND,
    MARKED,
    Column,
    Table,
    TableEntry,
    listed,
    mean_entry,
    number,
    probability,
    words,
)

EPSILON = "ε"
"""How columns begin that say what noise is worth."""

_EPSILON = " ε: the largest over the runs, smaller is more private; the head of the report says what it covers."

SELECTION_TEXT = {
    "validation": f"the round was chosen on validation data (best mean of its last {WINDOW} evaluations)",
    "peak": "the round with the best validation accuracy, the earliest of equals",
    "tail": f"the mean of the last {WINDOW} evaluations",
    "best": "the best test accuracy over the evaluated rounds (optimistic: it was chosen on test data)",
    "last": "the last round",
}


def reference(store: Store) -> str:
    """The row that others are compared with: FedAvg where there is one, else the grid's first."""
    fedavg = [cell.row for cell in store.cells if cell.view.settings.method == "fedavg"]
    return fedavg[0] if fedavg else store.rows[0]


def main_table(
    store: Store,
    figures: Sequence[Figure] = HEADLINE,
    name: str = "main",
    title: str = "Generic and personalized models",
    tuned: Sequence[str] = (),
    tasks: Sequence[str] = (),
) -> Table:
    """Main table, methods x (task, figure): mean and standard deviation over units, the best and its equals marked.

    Args:
        figures: the columns of each task.
        name, title: of the table.
        tuned: metrics that the settings were tuned for: they alone are marked; empty: nothing was tuned, all are.
        tasks: the tasks; empty: all.
    """
    tasks = tasks or store.tasks
    columns = [(task, figure) for task in tasks for figure in figures]
    usual = max((len(store.scores(row, *column)) for row in store.rows for column in columns), default=0)
    noise = {column: entries for column, entries in epsilons(store).items() if column.group in tasks}
    by_column: dict[Column, dict[str, TableEntry]] = {}
    for task in tasks:
        for figure in figures:
            marked = not tuned or figure.metric in tuned
            by_column[Column(figure.name, task)] = _column(store, task, figure, usual, marked=marked)
        by_column |= {column: entries for column, entries in noise.items() if column.group == task}
    rows = tuple((row, tuple(entries[row] for entries in by_column.values())) for row in store.rows)
    caption = (
        f"Test accuracy in percent, {'mean ± standard deviation over' if usual > 1 else 'of'} "
        f"{_units(store, usual, tasks)}; "
        f"{'; '.join(figure.text for figure in figures)}.{_EPSILON if noise else ''}"
    )
    others = [task for task in tasks if store.selected(task) != store.chosen]
    exceptions = f" (the last round on {' and '.join(others)}: no validation data)" if others else ""
    how = (
        f"Protocol: {store.protocols[0]}; {SELECTION_TEXT[store.chosen]}{exceptions}. The standard "
        "deviation has n - 1 in its denominator; n is printed where it is another. A diverged cell counts as chance "
        f"level. {MARKED} Data and settings: {described(store)}."
    )
    note = f"Tuned for {' and '.join(metric.upper() for metric in tuned)}: only these are marked."
    notes = (LEGEND, *(_spelled_out(store) if name == "main" else []), *([note] if tuned else []))
    return Table(name, title, caption, "Method", tuple(by_column), rows, notes, how=how)


def _spelled_out(store: Store) -> list[str]:
    """A note on the settings of cases."""
    cases = {cell.case: ", ".join(cell.case_settings) or "none of these" for cell in store.cells if cell.case}
    return [f"Cases. {'; '.join(f'{name}: {text}' for name, text in cases.items())}."] if cases else []


def epsilons(store: Store) -> dict[Column, dict[str, TableEntry]]:
    """The largest epsilon of each row's cells, in a column for each task and kind of protection."""
    columns = {}
    for kind in PROTECTED:
        known = store.figures[store.figures[f"epsilon_{kind}"].notna()]
        for task in (task for task in store.tasks if (known["task"] == task).any()):
            of_task = known[known["task"] == task]
            texts = {row: epsilon_text(of_task[of_task["row"] == row][f"epsilon_{kind}"]) for row in store.rows}
            columns[Column(f"{EPSILON} {kind}", task)] = {row: words(text or "–") for row, text in texts.items()}
    return columns


def all_figures_table(store: Store) -> Table:
    """One row per method, task, figure and selection: mean, standard deviation, 95 % t interval."""
    names = ("task", "metric", "on", "mean over clients", "selection", "n", "mean", "std", "95 % low", "95 % high")
    rows = []
    keys = ["row", "task", "metric", "on", "mean", "selection"]
    for row, task, *figure, selection in store.figures[keys].drop_duplicates().itertuples(index=False):
        scores = store.scores(row, task, Figure("", *figure), selection)
        summary = inference.summarise(list(scores.values()), least=store.least(task, figure[1]))
        interval = summary.percent
        numbers = (summary.mean, summary.std, *interval)
        entries = (
            words(task),
            *(words(part or "–") for part in (*figure, selection)),
            TableEntry(summary.n, decimals=0),
        )
        rows.append((row, (*entries, *map(number, numbers))))
    caption = "Accuracy in percent with its standard deviation and Student's 95 % interval over seeds."
    how = (
        "Seeds that share a draw of tuning or a partition count as one. Intervals are computed on the logit scale; a "
        "spread below half a test sample counts as half a sample. A diverged cell counts as chance level."
    )
    columns = tuple(map(Column, names))
    return Table("figures", "All figures with intervals", caption, "Method", columns, tuple(rows), how=how)


def comparison_table(store: Store, figures: Sequence[Figure] = HEADLINE) -> Table:
    """Paired differences per seed from the reference method, in percentage points."""
    base = reference(store)
    names = ("n", "difference", "95 % low", "95 % high", "p (Holm)", "verdict", "d_z", "d_z low", "d_z high")
    rows = []
    for task in store.tasks:
        for figure in figures:
            others = [row for row in store.rows if row != base]
            against = store.scores(base, task, figure)
            least = store.least(task, figure.on)
            results = [inference.paired(store.scores(row, task, figure), against, least=least) for row in others]
            whole = [store.complete(row, task, figure) for row in (base, *others)]
            tested = [result.p if whole[0] and ok else math.nan for result, ok in zip(results, whole[1:], strict=True)]
            corrected = inference.holm(tested)
            for row, result, p in zip(others, results, corrected, strict=True):
                if result.n == 0:
                    continue
                points = [number(x, signed=True) for x in (result.difference, result.low, result.high)]
                effect = [number(x) for x in (result.effect, result.effect_low, result.effect_high)]
                head = (words(task), words(figure.name), TableEntry(result.n, decimals=0))
                verdict = words(_verdict(result, p, store.margin))
                rows.append((row, (*head, *points, probability(p), verdict, *effect)))
    caption = (
        f"Difference from {base} in percentage points, paired by seed, with Student's 95 % interval. Better or worse: "
        f"p below 5 %; equivalent: the interval lies within {store.margin:g} points of 0; else undecided."
    )
    how = (
        "Methods of one seed share partition, initial weights, client sampling and batches. p: of the paired t test, "
        "with Holm's correction over the methods of a task and figure. d_z: mean over standard deviation of the "
        "differences, with its 95 % interval. A spread below half a test sample counts as half a sample."
    )
    heads = tuple(map(Column, ("case" if store.cases else "task", "figure", *names)))
    return Table("comparisons", f"Differences from {base}", caption, "Method", heads, tuple(rows), how=how)


def _verdict(difference: inference.Comparison, p: float, margin: float) -> str:
    """Say what a difference from the reference shows, with a p value that is corrected for the number of methods."""
    if math.isnan(p):
        return "–"
    if p < inference.LEVEL:
        return "better" if difference.difference > 0 else "worse"
    return "equivalent" if -margin < difference.low and difference.high < margin else "undecided"


def aggregate_table(store: Store, figures: Sequence[Figure] = HEADLINE) -> Table:
    """Aggregates over all tasks: mean rank, interquartile mean, probability of improvement on the reference."""
    base = reference(store)
    names = ("mean rank", "IQM", "95 % low", "95 % high", f"P(better than {base})", "low", "high")
    columns = tuple(Column(name, figure.name) for figure in figures for name in names)
    parts = [_aggregates(store, figure, base) for figure in figures]
    rows = [row for row in store.rows if any(row in part for part in parts)]
    blank = (words("–"),) * len(names)
    caption = (
        f"Over {len(store.tasks)} task{'s' * (len(store.tasks) != 1)}: mean rank (1 is best), mean of the middle half "
        f"of all runs in percent (IQM), and the probability of beating {base} on the same task and seed (P)."
    )
    how = (
        "A task is a data set with its partition. Only methods with a result on every task are listed, and only those "
        "that trained the model are ranked. The IQM's 95 % interval is Student's t with the error of a bootstrap of "
        "seeds within each task. P counts ties half, with Clopper and Pearson's interval."
    )
    body = tuple((row, tuple(entry for part in parts for entry in part.get(row, blank))) for row in rows)
    return Table("aggregates", "Over all tasks", caption, "Method", columns, body, how=how)


def _aggregates(store: Store, figure: Figure, base: str) -> dict[str, tuple[TableEntry, ...]]:
    """Make the entries of every row without a gap: mean rank, interquartile mean, probability of beating `base`."""
    whole = {row: by_unit(store, row, store.tasks, figure) for row in store.whole(figure)}
    least = [store.least(task, figure.on) for task in store.tasks]
    compared = family(store, store.tasks, figure).scores
    means = np.array([[runs.mean() for runs in tasks] for tasks in compared.values()])
    ranks = dict(zip(compared, inference.ranks(means.T).mean(axis=0), strict=True)) if compared else {}
    entries = {}
    for row, tasks in whole.items():
        bounds = [inference.bootstrap(tasks, inference.iqm, figure.name, least=least)]
        bounds += [inference.probability_of_improvement(tasks, whole[base])] if base in whole and row != base else []
        numbers = (ranks.get(row, math.nan), *(x for of in bounds for x in (of.value, of.low, of.high)))
        entries[row] = (*map(number, numbers), *[words("–")] * (7 - len(numbers)))
    return entries


def ranking(store: Store, figure: Figure) -> inference.CriticalDifference:
    """Ranks over tasks of the methods that trained the model and have all its figures."""
    compared = family(store, store.tasks, figure).scores
    if not compared:
        reason = "no method has a result of its own on every task"
        return inference.CriticalDifference((), (), len(store.tasks), math.nan, (), reason)
    means = np.array([[runs.mean() for runs in tasks] for tasks in compared.values()])
    return inference.critical_difference(list(compared), means.T)


def _column(store: Store, task: str, figure: Figure, usual: int, *, marked: bool) -> dict[str, TableEntry]:
    """One column of the main table, by row."""
    marks, clones = column_marks(store, task, figure)
    derived = derived_rows(store, [task], figure)
    column = {}
    for row in store.rows:
        states = Counter(cell.state for cell in store.of(row, task) if cell.state != "done")
        problems = ", ".join(f"{count} {state}" for state, count in states.items())
        units = store.scores(row, task, figure)
        if not units:
            column[row] = words(problems or "–")
            continue
        n = "" if len(units) == usual else f"n={len(units)}"
        clone = f"= {clones[row]}" if row in clones else ""
        note = "; ".join(part for part in (n, problems, clone) if part)
        entry = mean_entry(units.values(), note=f"({note})" if note else "", derived=row in derived)
        column[row] = replace(entry, mark=marks.get(row, "") if marked else "")
    return column


_DRAW, _PARTITION = ("draw of tuning", "draws of tuning"), ("partition", "partitions")


def _units(store: Store, usual: int, tasks: Sequence[str]) -> str:
    """Name what n counts: seeds, or what several seeds share: a draw of tuning or a partition."""
    repeats = max(map(store.repeats, tasks))
    if repeats > 1:
        singular, plural = _DRAW if any(run.get("draws") for run in store.runs) else _PARTITION
        return f"{usual} {singular if usual == 1 else plural}, each the mean of up to {repeats} seeds,"
    return f"{usual} seed{'s' * (usual != 1)}"


def described(store: Store) -> str:
    """Data, clients, alpha, model, rounds and seeds; where tasks differ, all values."""
    seeds = len({cell.seed for cell in store.cells})
    alphas = dict.fromkeys(cell.view.settings.alpha for cell in store.cells)
    concentrations = listed([f"{alpha:g}" for alpha in alphas if alpha is not None])
    shares = dict.fromkeys(f"{100 * cell.view.settings.participation:g} %" for cell in store.cells)
    parts = [
        _values(store, "dataset"),
        _values(store, "partition") + (f" α={concentrations}" if concentrations else ""),
        _values(store, "clients") + " clients",
        *([f"{listed([*shares])} of them a round"] if [*shares] != ["100 %"] else []),
        f"model {_values(store, 'model')}",
        f"{_values(store, 'rounds')} rounds",
        f"{seeds} seed{'s' * (seeds != 1)}",
    ]
    return ", ".join(parts)


def _values(store: Store, name: str) -> str:
    return listed([setting_text("", value)[1:] for value in dict.fromkeys(cell.flat[name] for cell in store.cells)])
