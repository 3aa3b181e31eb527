"""Costs of an accuracy: steps, samples, rounds, bytes and simulated seconds."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from bench.errors import UserError
from bench.results.reported_round import WINDOW
from reports.reading.load import GM, HEADLINE, PM, Store, remembered
from reports.tables.accuracy import SELECTION_TEXT, reference
from reports.tables.table import Column, Table, TableEntry, mean_entry, number, words

MEGABYTE = 1e6
BYTES = ("up", "down_receivers", "up_buffers", "down_receivers_buffers")
_WORK = ("steps", "samples", "server_steps")
_STEP = 5.0
_KEYS = ["row", "task", "seed"]


@remembered
def totals(store: Store) -> pd.DataFrame:
    """Costs up to the end of every round: row, task, seed, round, seconds and settled (simulated; the second when the
    personalized models were ready as well), megabytes (all clients).

    Every receiver of a download counts, and buffers count too.
    """
    ledger = store.table("ledger").sort_values([*_KEYS, "round"])
    megabytes = ledger[list(BYTES)].sum(axis=1).groupby([ledger[key] for key in _KEYS]).cumsum() / MEGABYTE
    return ledger[[*_KEYS, "round", "seconds", "settled"]].assign(megabytes=megabytes)


@remembered
def curves(store: Store) -> dict[str, pd.DataFrame]:
    """Test accuracy in percent by round with its costs, by figure (GM, PM): row, task, seed, round, accuracy, seconds,
    megabytes.

    A personalized model's seconds include the training that goes on while the server works.
    """
    metrics, by_figure = store.table("metrics"), {}
    for figure in HEADLINE:
        accuracy = figure.accuracies(metrics).rename(columns={"value": "accuracy"})[[*_KEYS, "round", "accuracy"]]
        merged = accuracy.merge(totals(store), on=[*_KEYS, "round"], how="left")
        by_figure[figure.name] = merged.assign(seconds=merged["settled"] if figure == PM else merged["seconds"])
    return by_figure


def read_targets(texts: Sequence[str]) -> dict[str, float]:
    """Read targets in percent by task, from `90` (of all tasks, under the name "") or `digits, α=1=90`.

    Raises:
        UserError: a target is no number from 0 to 100, or a task has two.
    """
    percents = {}
    for text in texts:
        task, _, percent = text.rpartition("=")
        if task in percents:
            raise UserError(f"--target {text}: the target of {task or 'all tasks'} is given twice; give one")
        try:
            percents[task] = float(percent)
        except ValueError:
            percents[task] = -1.0
        if not 0 <= percents[task] <= 100:
            raise UserError(
                f"--target {text}: write a percentage such as 90, or TASK=90 with the task as tables name it"
            )
    return percents


def targets(curve: pd.DataFrame, base: str, choices: Mapping[str, float]) -> dict[str, float]:
    """Choose the target of each task: that of `choices`, else the highest multiple of 5 % that the reference method
    holds in the mean of its last evaluations and of its seeds. So it does not depend on the other methods of the
    table; a task without the reference has none."""
    base_curve = curve[curve["row"] == base].sort_values("round")
    accuracies = base_curve.groupby(["task", "seed"])["accuracy"]
    levels = accuracies.apply(lambda values: values.iloc[-WINDOW:].mean()).groupby("task").mean()
    defaults = {str(task): float(np.floor(value / _STEP) * _STEP) for task, value in levels.items()}
    overrides = {
        task: choices[task] if task in choices else choices[""]
        for task in curve["task"].unique()
        if {task, ""} & choices.keys()
    }
    return defaults | overrides


def cost_table(store: Store, curve: pd.DataFrame, goals: Mapping[str, float]) -> Table:
    """Traffic per client, and the costs at which each method reached its task's target accuracy (PM)."""
    costs, rows = totals(store), []
    for task in store.tasks:
        for row in store.rows:
            row_curve = curve[(curve["row"] == row) & (curve["task"] == task)]
            diverged = sum(cell.state == "diverged" for cell in store.of(row, task))
            if row_curve.empty and not diverged:
                continue
            trained = {cell.seed: cell.trained for cell in store.of(row, task) if cell.state == "done"}
            row_costs = costs[(costs["row"] == row) & (costs["task"] == task)]
            whole = row_costs.groupby("seed")["megabytes"].max()
            traffic = [megabytes / trained[str(seed)] for seed, megabytes in whole.items()]
            target = words("–") if task not in goals else number(goals[task], decimals=0)
            runs = [group for _, group in row_curve.groupby("seed")] if task in goals else []
            names = ("round", "megabytes", "seconds")
            spent = (_running(runs, goals.get(task, 0.0), name, diverged) for name in names)
            rows.append((row, (words(task), mean_entry(traffic), target, *spent)))
    caption = (
        f"What each method takes to reach a target accuracy ({PM.text}): rounds, megabytes of all clients together and "
        "simulated seconds, mean ± standard deviation over seeds. (2/3): so many seeds reach it, and the number is the "
        "expected running time; a dash: none does."
    )
    how = (
        "MB per client: megabytes (10⁶ bytes) sent and received over the whole run, buffers included, by the number of "
        "clients that train (with samples, and not held out as new ones). Target: given with --target, else the "
        f"highest multiple of {_STEP:.0f} % that {reference(store)} holds in the mean of its last {WINDOW} "
        "evaluations, whatever other methods the table has. It is reached at the first of two evaluations in a row at "
        "or above it. Where some seeds miss it, the figure is the expected running time: what all seeds spent, those "
        "that miss it to their end, divided by the number that reach it. Diverged seeds miss it; what they spent is "
        "not counted."
    )
    heads = ("task", "MB per client", "target %", "rounds", "MB to target", "seconds to target")
    columns = tuple(map(Column, heads))
    return Table("costs", "What an accuracy costs", caption, "Method", columns, tuple(rows), how=how)


def budget_table(store: Store) -> Table:
    """Costs of a round of each method, all clients together, beside its accuracy: equal rounds are no equal budgets.

    Args:
        store: cells of one protocol; those from before work was kept have dashes.
    """
    work, costs, rows = store.table("work"), totals(store), []
    for task in store.tasks:
        for row in store.rows:
            done = [cell for cell in store.of(row, task) if cell.state == "done"]
            if not done:
                continue
            scores = [store.scores(row, task, figure) for figure in (GM, PM)]
            row_work = work[(work["row"] == row) & (work["task"] == task)]
            means = row_work.groupby("seed")[list(_WORK)].mean() if len(row_work) else pd.DataFrame(columns=list(_WORK))
            sent = costs[(costs["row"] == row) & (costs["task"] == task)].groupby("seed")
            megabytes = sent["megabytes"].max() / sent["round"].max()
            entries = [mean_entry(list(units.values())) for units in scores]
            entries += [mean_entry(means[name], decimals=1) for name in _WORK]
            rows.append((row, (words(task), *entries, mean_entry(megabytes))))
    caption = (
        "What all clients together do in a round, mean over all rounds and ± standard deviation over seeds, beside the "
        f"accuracy that it buys ({GM.text}; {PM.text}, in percent). A dash: not recorded."
    )
    how = (
        "Steps: batches trained on. Samples: how often samples were read, for gradients or otherwise; several "
        "gradients of one batch count several times. Server steps: the server's own. MB: 10⁶ bytes sent and received, "
        "buffers included. Evaluation, and what a method trains for it, does not count. Accuracies: "
        f"{SELECTION_TEXT[store.chosen]}."
    )
    heads = ("task", "GM", "PM", "steps", "samples", "server steps", "MB")
    columns = tuple(map(Column, heads))
    return Table("budgets", "What a round takes", caption, "Method", columns, tuple(rows), how=how)


def reached(curve: pd.DataFrame, target: float) -> "pd.Series[float] | None":
    """Find the first of two evaluations in a row that reach the target; None where none does.

    One evaluation alone may be a lucky one, so the last one counts only together with the one before.
    """
    ordered = curve.sort_values("round")
    above = (ordered["accuracy"] >= target).to_numpy()
    twice = np.flatnonzero(above[:-1] & above[1:])
    return ordered.iloc[int(twice[0])] if twice.size else None


def _running(runs: Sequence[pd.DataFrame], target: float, name: str, diverged: int) -> TableEntry:
    """A cost of `reached`; a run that misses the target counts with what it has spent, which is a lower bound.

    Of runs that diverged only the number is known.
    """
    count, decimals = len(runs) + diverged, 1 if name == "round" else 2
    firsts = [reached(run, target) for run in runs]
    hits = [float(first[name]) for first in firsts if first is not None]
    if not hits:
        return words(f"– (0/{count})" if count else "–")
    if len(hits) == count:
        return mean_entry(hits, decimals=decimals)
    spent = sum(float(run[name].max()) for run, first in zip(runs, firsts, strict=True) if first is None)
    return TableEntry((sum(hits) + spent) / len(hits), note=f"({len(hits)}/{count})", decimals=decimals)
