"""Tables of scores beside accuracy (docs/scores.md), at the rounds whose accuracies are reported."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bench.results.figures import figures_of, further_scores
from bench.results.reported_round import COSTS
from bench.store.tables import read_tables
from reports.reading.load import HEADLINE, Cell, Figure, Store
from reports.tables.accuracy import SELECTION_TEXT
from reports.tables.table import Column, Table, TableEntry, mean_entry, words

_DECIMALS = 4


@dataclass(frozen=True)
class _Scored:
    """The figures of one score by cell, place and selection, and the clients' values in the cells' tables."""

    figures: dict[tuple[str, ...], dict[str, Any]]
    clients: pd.DataFrame

    def figure(self, cell: Cell, figure: Figure, selection: str) -> dict[str, Any] | None:
        """The figure of a cell; None where the cell has none, or its tests do not define the score."""
        row = self.figures.get((cell.view.id, figure.metric, figure.on, figure.mean, selection))
        return None if row is None or np.isnan(row["value"]) else row

    def clients_without(self, cell: Cell, figure: dict[str, Any]) -> tuple[int, int]:
        """Number of clients whose tests do not define the score at a figure's round, and number of all clients."""
        rows = self.clients
        of_figure = (rows["cell"] == cell.view.id) & (rows["metric"] == figure["metric"])
        values = rows.loc[of_figure & (rows["round"] == figure["round"]), "value"]
        return int(values.isna().sum()), len(values)


def score_tables(store: Store, chosen: str) -> Iterator[Table]:
    """Make a table for each score that cells have beside accuracy and loss: methods x (task, GM and PM).

    Args:
        store: cells of one protocol.
        chosen: which round is reported.
    """
    views = list({cell.view.id: cell.view for cell in store.cells if cell.state == "done"}.values())
    clients, lengths = read_tables([view.folder for view in views], "client_scores")
    clients = clients.assign(cell=np.repeat([view.id for view in views], lengths))
    clients = clients[clients["split"] == "test"]
    for name in further_scores(views):
        figures = {
            (id, *(figure[key] for key in ("metric", "on", "mean", "selection"))): figure
            for id, rows in figures_of(views, name).items()
            for figure in rows
        }
        yield _table(store, chosen, name, _Scored(figures, clients[clients["quantity"] == name]))


def _table(store: Store, chosen: str, name: str, scored: _Scored) -> Table:
    """The table of one score."""
    columns = [(task, figure) for task in store.tasks for figure in HEADLINE]
    without: Counter[str] = Counter()
    rows = []
    for row in store.rows:
        entries = []
        for task, figure in columns:
            entry, missing, clients = _entry(store, chosen, row, task, figure, scored)
            entries.append(entry)
            without.update({"missing": missing, "clients": clients})
        rows.append((row, tuple(entries)))
    better = "smaller" if name in COSTS else "larger"
    caption = (
        f"Mean ± standard deviation over seeds, on test samples; {better} is better. "
        f"{'; '.join(figure.text for figure in HEADLINE)}."
    )
    how = (
        f"Protocol: {store.protocols[0]}; {SELECTION_TEXT[chosen]}. Means over clients are of those that have the "
        "score. No method is marked: comparisons are of accuracies."
    )
    notes: tuple[str, ...] = ()
    if without["missing"]:
        share = f"{without['missing']} of {without['clients']} clients' values"
        notes = (f"Missing: {share} of personalized models, as the client's test samples do not define the score.",)
    heads = tuple(Column(figure.name, task) for task, figure in columns)
    return Table(f"score_{name}", name, caption, "Method", heads, tuple(rows), notes, how=how)


def _entry(
    store: Store, chosen: str, row: str, task: str, figure: Figure, scored: _Scored
) -> tuple[TableEntry, int, int]:
    """An entry with the number of clients that have no value in it, and that of all its clients."""
    selection = store.selected(task, chosen)
    units: dict[str, list[float]] = defaultdict(list)
    missing, clients = 0, 0
    cells = store.of(row, task)
    for cell in cells:
        if (value := scored.figure(cell, figure, selection)) is None:
            continue
        units[cell.unit].append(value["value"])
        if figure.on == "local":
            lacking, total = scored.clients_without(cell, value)
            missing, clients = missing + lacking, clients + total
    if not units:
        return words("–"), missing, clients
    notes = [f"{missing} of {clients} clients have none"] if missing else []
    if lost := len(cells) - sum(map(len, units.values())):
        notes.append(f"{lost} of {len(cells)} cells have none")
    derived = store.figures[(store.figures["row"] == row) & (store.figures["task"] == task)]
    is_derived = bool(derived.loc[derived["metric"] == figure.metric, "derived"].any())
    note = f"({'; '.join(notes)})" if notes else ""
    means = [float(np.mean(values)) for values in units.values()]
    return mean_entry(means, note=note, derived=is_derived, decimals=_DECIMALS), missing, clients
