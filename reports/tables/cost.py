"""What an accuracy costs: steps, samples, rounds, bytes and simulated seconds."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from bench.errors import UserError
from bench.results.reported_round import WINDOW
from reports.reading.figure import Figure
from reports.reading.load import Store
from reports.statistics import inference
from reports.tables.accuracy import GM, PM, SELECTION_TEXT, reference
from reports.tables.table import Column, Table, TableEntry, number, words

MEGABYTE = 1e6
_BYTES = ("up", "down_receivers", "up_buffers", "down_receivers_buffers")
_WORK = ("steps", "samples", "server_steps")
_STEP = 5.0
_KEYS = ["row", "task", "seed"]


def totals(store: Store) -> pd.DataFrame:
    """Costs up to the end of every round: row, task, seed, round, seconds and settled (simulated; the second when the
    personalized models were ready as well), megabytes (all clients).

    Every receiver of a download counts, and buffers count too.
    """
    ledger = store.table("ledger").sort_values([*_KEYS, "round"])
    megabytes = ledger[list(_BYTES)].sum(axis=1).groupby([ledger[key] for key in _KEYS]).cumsum() / MEGABYTE
    return ledger[[*_KEYS, "round", "seconds", "settled"]].assign(megabytes=megabytes)


def curves(metrics: pd.DataFrame, costs: pd.DataFrame, figure: Figure) -> pd.DataFrame:
    """Test accuracy in percent by round with its costs: row, task, seed, round, accuracy, seconds, megabytes.

    A personalized model's seconds include the training that goes on while the server works.

    Args:
        metrics: `metrics.csv` of all cells.
        costs: `totals`.
        figure: which accuracy.
    """
    chosen = metrics[
        (metrics["metric"] == figure.metric)
        & (metrics["on"] == figure.on)
        & (metrics["mean"] == figure.mean)
        & (metrics["split"] == "test")
        & (metrics["quantity"] == "accuracy")
    ]
    accuracy = chosen.assign(accuracy=100 * chosen["value"])[[*_KEYS, "round", "accuracy"]]
    found = accuracy.merge(costs, on=[*_KEYS, "round"], how="left")
    return found.assign(seconds=found["settled"] if figure.metric == "pm" else found["seconds"])


def read_targets(given: Sequence[str]) -> dict[str, float]:
    """Targets in percent by task, from `90` (of all tasks, under the name "") or `digits, α=1=90`.

    Raises:
        UserError: one is no number from 0 to 100.
    """
    found = {}
    for one in given:
        task, _, percent = one.rpartition("=")
        try:
            found[task] = float(percent)
        except ValueError:
            found[task] = -1.0
        if not 0 <= found[task] <= 100:
            raise UserError(
                f"--target {one}: write a percentage such as 90, or TASK=90 with the task as tables name it"
            )
    return found


def targets(curve: pd.DataFrame, base: str, given: Mapping[str, float]) -> dict[str, float]:
    """The target of each task: the given one, else the highest multiple of 5 % that the reference method holds in the
    mean of its last evaluations and of its seeds. So it does not depend on who else is in the table; a task without
    the reference has none."""
    own = curve[curve["row"] == base].sort_values("round")
    held = own.groupby(["task", "seed"])["accuracy"].apply(lambda one: one.iloc[-WINDOW:].mean()).groupby("task").mean()
    found = {str(task): float(np.floor(value / _STEP) * _STEP) for task, value in held.items()}
    named = {
        task: given[task] if task in given else given[""]
        for task in curve["task"].unique()
        if {task, ""} & given.keys()
    }
    return found | named


def cost_table(store: Store, curve: pd.DataFrame, costs: pd.DataFrame, wanted: Mapping[str, float]) -> Table:
    """Traffic per client, and what it took each method to reach its task's target accuracy (PM)."""
    rows = []
    for task in store.tasks:
        for row in store.rows:
            own = curve[(curve["row"] == row) & (curve["task"] == task)]
            if own.empty:
                continue
            trained = {cell.seed: cell.trained for cell in store.of(row, task) if cell.state == "done"}
            mine = costs[(costs["row"] == row) & (costs["task"] == task)]
            whole = mine.groupby("seed")["megabytes"].max()
            traffic = [megabytes / trained[str(seed)] for seed, megabytes in whole.items()]
            target = words("–") if task not in wanted else number(wanted[task], decimals=0)
            runs = [group for _, group in own.groupby("seed")] if task in wanted else []
            rounds, megabytes, seconds = (_running(runs, wanted.get(task, 0.0), k) for k in range(3))
            rows.append((row, (words(task), _mean(traffic, 2), target, rounds, megabytes, seconds)))
    caption = (
        "MB per client: megabytes (10⁶ bytes) sent and received over the whole run, buffers included, by the number of "
        "clients that train (with samples, and not held out as new ones). Target: given with "
        f"--target, else the highest multiple of {_STEP:.0f} % that {reference(store)} holds in the mean of its last "
        f"{WINDOW} evaluations ({PM.text}), whoever else is in the table. Rounds, megabytes (all clients together) and "
        "simulated seconds until the first of two evaluations in a row at or above the target; mean ± standard "
        "deviation over seeds. Where some seeds miss it, (2/3) says how many reach it, and the figure is the expected "
        "running time: what all seeds spent, those that miss it to their end, by the number that reach it. A "
        "dash: none does."
    )
    heads = ("task", "MB per client", "target %", "rounds", "MB to target", "seconds to target")
    return Table("costs", "What an accuracy costs", caption, "Method", tuple(map(Column, heads)), tuple(rows))


def budget_table(store: Store, chosen: str, costs: pd.DataFrame) -> Table:
    """What a round of each method takes of all clients, beside its accuracy: equal rounds are no equal budgets.

    Args:
        store: cells of one protocol; those from before work was kept have dashes.
        chosen: `best`, `last` or `validation`.
        costs: `totals`.
    """
    work = store.table("work")
    rows = []
    for task in store.tasks:
        for row in store.rows:
            done = [cell for cell in store.of(row, task) if cell.state == "done"]
            if not done:
                continue
            scores = [store.scores(row, task, one.metric, one.on, one.mean, chosen) for one in (GM, PM)]
            own = work[(work["row"] == row) & (work["task"] == task)]
            means = own.groupby("seed")[list(_WORK)].mean() if len(own) else pd.DataFrame(columns=list(_WORK))
            sent = costs[(costs["row"] == row) & (costs["task"] == task)].groupby("seed")
            megabytes = sent["megabytes"].max() / sent["round"].max()
            entries = [_mean(list(one.values()), 2) for one in scores]
            entries += [_mean(means[name], 1) for name in _WORK]
            rows.append((row, (words(task), *entries, _mean(megabytes, 2))))
    caption = (
        f"{GM.text}; {PM.text}, in percent ({SELECTION_TEXT[chosen]}). Per round, the mean over all rounds and of all "
        "clients together: steps (batches trained on), samples read (as often as a gradient or a look at the data "
        "read them, so several gradients of one batch count several times), the server's own steps, and megabytes "
        "(10⁶ bytes) sent and received, buffers included. Evaluation, and what a method trains for it, does not count. "
        "Mean ± standard deviation over seeds; a dash: not recorded."
    )
    heads = ("task", "GM", "PM", "steps", "samples", "server steps", "MB")
    return Table("budgets", "What a round takes", caption, "Method", tuple(map(Column, heads)), tuple(rows))


def reached(curve: pd.DataFrame, target: float) -> tuple[float, float, float]:
    """Round, megabytes and seconds of the first of two evaluations in a row that reach the target; nan where none does.

    One evaluation alone may be a lucky one, so the last one counts only together with the one before.
    """
    ordered = curve.sort_values("round")
    above = (ordered["accuracy"] >= target).to_numpy()
    twice = np.flatnonzero(above[:-1] & above[1:])
    if not twice.size:
        return (np.nan, np.nan, np.nan)
    first = ordered.iloc[int(twice[0])]
    return (float(first["round"]), float(first["megabytes"]), float(first["seconds"]))


def _running(runs: "Sequence[pd.DataFrame]", target: float, k: int) -> TableEntry:
    """Cost `k` of `reached`: of a run that misses the target, what it has spent is a lower bound and counts as such."""
    firsts = [reached(one, target)[k] for one in runs]
    hits = [value for value in firsts if not np.isnan(value)]
    decimals = 1 if k == 0 else 2
    if not hits:
        return words(f"– (0/{len(runs)})" if runs else "–")
    if len(hits) == len(runs):
        return _mean(hits, decimals)
    name = ("round", "megabytes", "seconds")[k]
    spent = sum(float(one[name].max()) for one, first in zip(runs, firsts, strict=True) if np.isnan(first))
    return TableEntry((sum(hits) + spent) / len(hits), note=f"({len(hits)}/{len(runs)})", decimals=decimals)


def _mean(values: "list[float] | pd.Series[float]", decimals: int) -> TableEntry:
    summary = inference.summarise(np.asarray(values, dtype=float))
    if np.isnan(summary.mean):
        return words("–")
    return TableEntry(summary.mean, None if np.isnan(summary.std) else summary.std, decimals=decimals)
