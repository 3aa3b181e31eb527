"""Tables of scores beside accuracy (docs/scores.md), at the rounds whose accuracies are reported."""

from collections.abc import Iterator

import pandas as pd

from bench.results.figures import figures_of, further_scores
from bench.results.reported_round import COSTS
from reports.reading.load import HEADLINE, Figure, Store
from reports.tables.accuracy import SELECTION_TEXT
from reports.tables.standings import derived_rows
from reports.tables.table import Column, Table, TableEntry, mean_entry, words

_DECIMALS = 4


def score_tables(store: Store) -> Iterator[Table]:
    """Make a table for each score that cells have beside accuracy and loss: methods x (task, GM and PM)."""
    done = [cell for cell in store.cells if cell.state == "done"]
    views, clients = [cell.view for cell in done], store.table("client_scores")
    for name in further_scores(views):
        by_cell = figures_of(views, name)
        figures = pd.DataFrame(
            [
                {**figure, "row": cell.row, "task": cell.task, "seed": cell.seed, "unit": cell.unit}
                for cell in done
                for figure in by_cell[cell.view.id]
            ]
        )
        of_score = clients[(clients["split"] == "test") & (clients["quantity"] == name)]
        yield _table(store, name, figures[figures["value"].notna()], of_score)


def _table(store: Store, name: str, figures: pd.DataFrame, clients: pd.DataFrame) -> Table:
    """The table of one score, from its figures and the clients' values; a figure is nan where no test defines it."""
    columns = [(task, figure) for task in store.tasks for figure in HEADLINE]
    rows = tuple(
        (row, tuple(_entry(store, row, task, figure, figures, clients) for task, figure in columns))
        for row in store.rows
    )
    better = "smaller" if name in COSTS else "larger"
    caption = (
        f"Mean ± standard deviation over seeds, on test samples; {better} is better. "
        f"{'; '.join(figure.text for figure in HEADLINE)}."
    )
    how = (
        f"Protocol: {store.protocols[0]}; {SELECTION_TEXT[store.chosen]}. Means over clients are of those that have "
        "the score, which a client's test samples may not define. No method is marked: comparisons are of accuracies."
    )
    heads = tuple(Column(figure.name, task) for task, figure in columns)
    return Table(f"score_{name}", name, caption, "Method", heads, rows, how=how)


def _entry(
    store: Store, row: str, task: str, figure: Figure, figures: pd.DataFrame, clients: pd.DataFrame
) -> TableEntry:
    """An entry, with the number of clients that have no value in it."""
    figures, clients = (table[(table["row"] == row) & (table["task"] == task)] for table in (figures, clients))
    reported = figure.of(figures[figures["selection"] == store.selected(task)])
    values = clients.merge(reported[["seed", "metric", "round"]])["value"] if figure.on == "local" else pd.Series()
    missing, cells = int(values.isna().sum()), len(store.of(row, task))
    if reported.empty:
        return words("–")
    notes = [f"{missing} of {len(values)} clients have none"] if missing else []
    if lost := cells - len(reported):
        notes.append(f"{lost} of {cells} cells have none")
    note, derived = f"({'; '.join(notes)})" if notes else "", row in derived_rows(store, [task], figure)
    means = reported.groupby("unit", sort=False)["value"].mean()
    return mean_entry(means, note=note, derived=derived, decimals=_DECIMALS)
