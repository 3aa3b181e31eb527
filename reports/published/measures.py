"""Measures that the papers' tables print, from our cells: accuracies, rounds to a target, gains, speed, traffic."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from reports.reading.load import GM, PM, PM_EQUAL, Cell, Figure, Store, remembered
from reports.statistics import inference
from reports.tables import fairness
from reports.tables.table import TableEntry, mean_entry, words

AMBIGUOUS = "ambiguous"
"""Printed in place of a number."""


@dataclass(frozen=True)
class Place:
    """Our cells in the place of one printed number.

    Attributes:
        axes: the number's position on the table's axes.
        cells: ours there, one per seed; `reference`: those of the table's first method at the same position.
        rivals: the cells of every method of the table at that position.
    """

    axes: dict[str, Any]
    cells: list[Cell]
    reference: list[Cell]
    rivals: list[list[Cell]]


@remembered
def clients_of(store: Store) -> pd.DataFrame:
    """Accuracy in percent of every client's personalized model, in the round that `acc` and `client` report.

    Those of a diverged cell are at chance level.
    """
    return fairness.with_diverged(fairness.client_accuracies(store, PM_EQUAL), store)


@remembered
def gains_of(store: Store) -> pd.DataFrame:
    """Every client's gain over training alone."""
    return fairness.gains(clients_of(store), store)


def measured(store: Store, metric: str, place: Place) -> TableEntry:
    """Our value for one printed number of a metric of `MEASURES`; if no cell is done, the states of the cells.

    `AMBIGUOUS` if the cells of a method there differ in more than the seed, because their mean would mean nothing.
    """
    if not any(cell.state == "done" for cell in place.cells):
        states = Counter(cell.state for cell in place.cells)
        return words(", ".join(f"{count} {state}" for state, count in states.items()) or "missing")
    compared = {"relative_speed": [place.reference], "speedup_over_slowest": place.rivals}.get(metric, [])
    if any(len({(cell.row, cell.task) for cell in cells}) > 1 for cells in (place.cells, *compared)):
        return words(AMBIGUOUS)
    return MEASURES[metric](store, place)


def _done(cells: list[Cell]) -> list[Cell]:
    return [cell for cell in cells if cell.state == "done"]


def _ended(cells: list[Cell]) -> list[Cell]:
    return [cell for cell in cells if cell.state in ("done", "diverged")]


def _guesses(store: Store, place: Place) -> list[float]:
    """The accuracy of guessing for each of the place's cells that diverged."""
    return [store.chance(cell.task) for cell in place.cells if cell.state == "diverged"]


def _accuracy(figure: Figure, store: Store, place: Place) -> TableEntry:
    """Mean and standard deviation over seeds; of one client where the table has clients on an axis."""
    if place.axes.get("client_id", "mean") != "mean":
        return _client_accuracy(store, place)
    if place.axes.get("eval") == "GM":
        figure = Figure("GM", "gm", "local", "equal")
    units = {cell.unit for cell in place.cells}
    entries = {(cell.row, cell.task) for cell in place.cells}
    scores = [
        score for row, task in entries for unit, score in store.scores(row, task, figure).items() if unit in units
    ]
    derived = any(figure.metric in cell.view.status.derived for cell in place.cells)
    least = max((store.least(task, figure.on) for _, task in entries), default=0.0)
    return replace(_over_seeds(scores, derived=derived), least=least)


def _client_accuracy(store: Store, place: Place) -> TableEntry:
    """Accuracy of the client that the paper calls `c1`, `c2` and so on."""
    number = int(place.axes["client_id"].removeprefix("c")) - 1
    by_cell = [_rows_of(clients_of(store), cell).set_index("client")["accuracy"] for cell in place.cells]
    return _over_seeds([float(accuracies[number]) for accuracies in by_cell if number in accuracies])


def _rounds_to(target: float, store: Store, place: Place) -> TableEntry:
    """Rounds until the first evaluation at or above the target; how many seeds got there, if not all."""
    rounds = list(_first_rounds(place.cells, target))
    hits = [count for count in rounds if math.isfinite(count)]
    if not hits:
        return words("never")
    return _over_seeds(hits, note=f"({len(hits)} of {len(rounds)} seeds)" if len(hits) < len(rounds) else "")


def _speedup(target: float, store: Store, place: Place) -> TableEntry:
    """Rounds of the slowest method that reaches the target, divided by the method's own; geometric means over seeds.

    A method counts as having reached it where all its seeds have: else its figure would be that of the lucky ones.
    """
    ended = [cells for cells in map(_ended, [place.cells, *place.rivals]) if cells]
    rounds = [list(_first_rounds(cells, target)) for cells in ended]
    mean, *rivals = (inference.geometric(seeds)[0] if all(map(math.isfinite, seeds)) else math.inf for seeds in rounds)
    slowest = max((rival for rival in rivals if math.isfinite(rival)), default=math.nan)
    hits = sum(map(math.isfinite, rounds[0]))
    if math.isinf(mean):
        return words(f"{hits} of {len(rounds[0])} seeds")
    return TableEntry(slowest / mean, note=f"(n={hits})")


def _first_rounds(cells: list[Cell], target: float) -> Iterator[float]:
    """Find by seed the first evaluated round with such a mean personalized accuracy; infinite where there is none.

    A cell that diverged reaches no target, whatever it had before.
    """
    for cell in _ended(cells):
        curve = _curve(cell, PM_EQUAL) if cell.state == "done" else pd.Series(dtype=float)
        yield float(curve[curve >= target].index.min()) if len(curve) else math.inf


def _last_rounds(count: int, store: Store, place: Place) -> TableEntry:
    """Mean personalized accuracy over the last evaluated rounds: mean and standard deviation over seeds."""
    curves = [_curve(cell, PM).sort_index() for cell in _done(place.cells)]
    derived = any(PM.metric in cell.view.status.derived for cell in place.cells)
    means = [float(curve.iloc[-count:].mean()) for curve in curves if len(curve)]
    return _over_seeds(means + _guesses(store, place), derived=derived)


def _curve(cell: Cell, figure: Figure) -> "pd.Series[float]":
    """Test accuracy in percent by evaluated round."""
    return figure.accuracies(cell.view.table("metrics")).set_index("round")["value"]


def _gain(store: Store, place: Place) -> TableEntry:
    """Gain over training alone: mean over clients, and standard deviation over clients, both averaged over seeds."""
    by_cell = [_rows_of(gains_of(store), cell)["gain"] for cell in place.cells]
    moments = [(gains.mean(), gains.std(ddof=1)) for gains in by_cell if len(gains)]
    if not moments:
        return words("–")
    mean, spread = np.mean(moments, axis=0)
    return TableEntry(float(mean), float(spread))


def _new_clients(store: Store, place: Place) -> TableEntry:
    """Accuracy of the clients held out, each counting the same, after the most epochs of adapting."""
    values = []
    for cell in _done(place.cells):
        metrics = cell.view.table("metrics")
        last = f"new{max(cell.view.settings.new_client_epochs)}"
        on_test = (metrics["split"] == "test") & (metrics["quantity"] == "accuracy") & (metrics["mean"] == "equal")
        values += [100 * float(value) for value in metrics[on_test & (metrics["metric"] == last)]["value"]]
    return _over_seeds(values + _guesses(store, place) if values else values)


def _relative_speed(store: Store, place: Place) -> TableEntry:
    """Throughput in percent of that of the table's first method."""
    base, speeds = list(_throughput(place.reference)), list(_throughput(place.cells))
    if not base:
        return words("–")
    return TableEntry(100 * inference.geometric(speeds)[0] / inference.geometric(base)[0], note=f"(n={len(speeds)})")


def _throughput(cells: list[Cell]) -> Iterator[float]:
    """Samples of all local epochs per wall second of the whole cell, by seed: as many clients a round as it takes."""
    for cell in _done(cells):
        settings, timing = cell.view.settings, cell.json("timing")
        if not timing or not timing["seconds"]:
            continue
        samples = float(np.mean([n for n in cell.json("partition")["n_train"] if n]))
        of_round = settings.selected(cell.trained) * samples * settings.epochs
        yield of_round * settings.rounds / timing["seconds"]


def _scalars(store: Store, place: Place) -> TableEntry:
    """Scalars sent, buffers apart; what many clients receive counts once."""
    totals = []
    for cell in _done(place.cells):
        ledger = cell.view.table("ledger")
        size = np.dtype(cell.view.settings.dtype).itemsize
        totals.append(float((ledger["up"] + ledger["down_distinct"]).sum() / size))
    return _over_seeds(totals)


def _of_partition(count: Callable[[dict[str, Any]], float], store: Store, place: Place) -> TableEntry:
    """Mean over seeds of what `count` reads of a cell's partition, itself a mean over clients."""
    return _over_seeds([count(cell.json("partition")) for cell in _done(place.cells)])


def _rows_of(frame: pd.DataFrame, cell: Cell) -> pd.DataFrame:
    return frame[(frame["row"] == cell.row) & (frame["task"] == cell.task) & (frame["seed"] == cell.seed)]


def _over_seeds(values: list[float], *, derived: bool = False, note: str = "") -> TableEntry:
    return mean_entry(values, note=note or f"(n={len(values)})", derived=derived)


def _classes(partition: dict[str, Any]) -> float:
    return float((np.array(partition["counts"]) > 0).sum(axis=1).mean())


_TARGET = 70.0  # percent, of the one table that counts rounds

MEASURES: dict[str, Callable[[Store, Place], TableEntry]] = {
    "GM": partial(_accuracy, GM),
    "PM": partial(_accuracy, PM),
    "PM_last_10": partial(_last_rounds, 10),
    "acc": partial(_accuracy, PM_EQUAL),
    "client": partial(_accuracy, PM_EQUAL),
    "server": partial(_accuracy, Figure("GM", "gm", "global", "")),
    "rounds_to_70": partial(_rounds_to, _TARGET),
    "speedup_over_slowest": partial(_speedup, _TARGET),
    "individual_gain": _gain,
    "new_clients": _new_clients,
    "images_per_s": lambda _, place: _over_seeds(list(_throughput(place.cells))),
    "relative_speed": _relative_speed,
    "comcost": _scalars,
    "classes_per_client": partial(_of_partition, _classes),
    "train_samples": partial(_of_partition, lambda partition: float(np.mean(partition["n_train"]))),
    "test_samples": partial(_of_partition, lambda partition: float(np.mean(partition["n_test"]))),
}
"""Measures by the names of the papers' metrics. Speed-ups by not waiting have another table (`speedup`)."""
