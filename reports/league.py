"""The league's page: ranks with intervals, and which method under which heterogeneity (docs/league.md)."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from reports import cost, fairness, newcomers
from reports.accuracy import GM, PM, selection
from reports.figure import Figure, scores
from reports.league_entries import evaluations_on_tests
from reports.league_pictures import heat_map, means, rank_picture
from reports.load import Store, load
from reports.page import cells_section, write_page
from reports.profiles import performance_profiles
from reports.ranking import Ranked, rank
from reports.sections import Section
from reports.standings import Family, column_marks, family
from reports.tables import Column, Mark, Table, TableEntry, number, words
from reports.tradeoff import tradeoff

_HERE = Path(__file__).resolve().parent
_ALONE = ("local", "finetune")
"""What a personalized method has to beat: training alone, and FedAvg with fine-tuning."""
_BOUND = "centralized"
"""What no method may do: pool all clients' data."""
_LEAST_ROOM = 1.0  # percentage points between the two, for a personalization score
_LEADERS = 3  # methods that are named per task


def write_league(runs: Sequence[Path], out: Path, title: str) -> Path:
    """Write the page of unpacked entries and return the path of its `index.html`.

    Raises:
        UserError: a folder is not a run, or entries contradict each other.
    """
    store = by_case(load(list(runs)))
    chosen = selection(store)
    sections = [
        *(part(store, figure, chosen) for figure in (PM, GM) for part in (_standing, _best_by_task)),
        _against_simple(store, chosen),
        *_clients(store, chosen),
        *_newcomers(store),
        _spread(store, chosen),
        replace(whole := cells_section(store), more=(_entries(store), *whole.more)),
    ]
    cells = len(store.cells)
    summary = f"{len(store.rows)} methods, {len(store.tasks)} tasks, {cells} cells; every method tuned with one budget."
    described = Store(store.runs[:1], store.cells, store.figures)  # the definition is the same in all entries
    return write_page(described, out, title, summary, sections)


def _entries(store: Store) -> Table:
    """Who computed what."""
    columns = ("created", "commit", "machine", "versions")
    cells = {cell.view.id: cell.view for cell in store.cells}
    rows = []
    for run in store.runs:
        own = (cells[entry["id"]] for entry in run["cells"] if entry["id"] in cells)
        tests = number(sum(map(evaluations_on_tests, own)), decimals=0)
        rows.append((str(run.get("command", "–")), (tests, *(words(_text(run.get(name, "–"))) for name in columns))))
    caption = (
        "The commands behind the entries; `bench verify ENTRY` computes cells again. Test evaluations: rounds of all "
        "cells of an entry in which models were evaluated on test samples; of each cell one round is reported."
    )
    heads = tuple(map(Column, ("test evaluations", *columns)))
    return Table("entries", "Entries", caption, "Command", heads, tuple(rows))


def _text(value: Any) -> str:
    return ", ".join(f"{name} {one}" for name, one in value.items()) if isinstance(value, dict) else str(value)


def by_case(store: Store) -> Store:
    """The same cells with each task called by its case's name alone, as a league names its tasks."""
    names = {cell.task: cell.view.settings.case or cell.task for cell in store.cells}
    cells = tuple(replace(cell, task=names[cell.task]) for cell in store.cells)
    return Store(store.runs, cells, store.figures.assign(task=store.figures["task"].map(names)))


def data_families(store: Store, tasks: Sequence[str]) -> list[str]:
    """The data set behind each task: its tasks count together as much as another data set's."""
    found = {cell.task: cell.view.settings.dataset for cell in store.cells}
    return [found[task] for task in tasks]


def ranked(store: Store, figure: Figure, chosen: str) -> tuple[Family, dict[str, Ranked]]:
    """The rows that may be compared on all tasks, and their ranks; a clone stands where its first one does."""
    compared = family(store, store.tasks, figure, chosen)
    if len(compared.scores) < 2:
        return compared, {}
    tasks = [np.array(rows) for rows in zip(*compared.scores.values(), strict=True)]
    found = dict(zip(compared.scores, rank(tasks, data_families(store, store.tasks)), strict=True))
    return compared, found | {row: found[first] for row, first in compared.clones.items()}


def _standing(store: Store, figure: Figure, chosen: str) -> Section:
    compared, places = ranked(store, figure, chosen)
    order = sorted(store.rows, key=lambda row: (-places[row].mean if row in places else np.inf, row))
    marks: dict[str, dict[str, Mark]] = {task: column_marks(store, task, figure, chosen)[0] for task in store.tasks}
    columns = (Column("tier"), Column("rank"), *(Column(task) for task in store.tasks))
    rows = []
    for row in order:
        tier, interval = _place(row, compared, places.get(row))
        derived = compared.left_out.get(row) == "derived"
        entries = (
            replace(_entry(store, row, task, figure, chosen, marks[task].get(row, "")), derived=derived)
            for task in store.tasks
        )
        rows.append((row, (tier, interval, *entries)))
    caption = (
        f"{figure.text}, percent. Rank: an interval that holds the true rank of every method at once with 95 % "
        "probability over seeds (tasks averaged within a data family, then over families). Tier: methods whose "
        "intervals overlap that of the tier's first. Bold, ≈, †: the task's best, equivalent to it, undecided. "
        "[ ]: a generic model on the clients' tests, or `centralized`, which no method may do; shown and not ranked. "
        "A method without a cell, or that does not train this model, has no rank."
    )
    name = figure.name.lower()
    whole = Table(
        f"spread_{name}", f"{figure.name} with standard deviations over seeds", caption, "Method", columns, tuple(rows)
    )
    short = tuple((row, tuple(replace(entry, spread=None) for entry in entries)) for row, entries in rows)
    table = replace(whole, id=f"main_{name}", title=f"{figure.name}: tiers and ranks", rows=short)
    shown = [row for row in order if row in places] or order
    ranks = (rank_picture(places, figure),) if places else ()
    return Section(
        f"standing_{name}",
        f"{figure.name}: who stands where",
        tables=(table,),
        pictures=(*ranks, heat_map(means(store, shown, figure, chosen), figure)),
        more=(whole,),
    )


def _place(row: str, compared: Family, place: Ranked | None) -> tuple[TableEntry, TableEntry]:
    """Tier and rank interval, or why there is none."""
    if place is None:
        return words(compared.left_out.get(row, "–")), words("–")
    note = f"= {compared.clones[row]}" if row in compared.clones else ""
    ranks = f"{place.first}" if place.first == place.last else f"{place.first}–{place.last}"
    return TableEntry(place.tier, decimals=0, note=note), words(ranks)


def _entry(store: Store, row: str, task: str, figure: Figure, chosen: str, mark: Mark) -> TableEntry:
    found = list(scores(store, row, task, figure, chosen).values())
    if not found:
        return words("–")
    spread = float(np.std(found, ddof=1)) if len(found) > 1 else None
    return TableEntry(float(np.mean(found)), spread, mark=mark, n=len(found))


def _best_by_task(store: Store, figure: Figure, chosen: str) -> Section:
    """Which methods lead under which heterogeneity, and how many cannot be told apart from the first."""
    table_of_means = means(store, store.rows, figure, chosen)
    methods = {cell.row: cell.view.settings.method for cell in store.cells}
    rows = []
    for task in store.tasks:
        mean = {str(row): float(value) for row, value in table_of_means[task].items()}
        compared = family(store, [task], figure, chosen)
        marks, _ = column_marks(store, task, figure, chosen)
        order = sorted(compared.scores, key=lambda row: -mean[row])
        left_out = (row for row in mean if compared.left_out.get(row) == "derived" and methods[row] != _BOUND)
        derived = sorted(left_out, key=lambda row: -mean[row])
        entries = [TableEntry(mean[row], note=row) for row in order[:_LEADERS]]
        entries += [words("–")] * (_LEADERS - len(order))
        entries += [TableEntry(mean[row], note=row, derived=True) for row in derived[:1]] or [words("–")]
        entries.append(number(sum(marks.get(row, "") in ("equal", "near") for row in order[1:]), decimals=0))
        rows.append((task, (*entries, number(len(order), decimals=0))))
    columns = tuple(
        map(Column, ("first", "second", "third", "best derived", "not worse than the first", "methods compared"))
    )
    caption = (
        f"{figure.text}, percent. Best derived: the best generic model on the same tests, which is not ranked here. "
        "Not worse: equivalent to the first, or undecided. A clone counts with the model that it is."
    )
    name = figure.name.lower()
    table = Table(f"leaders_{name}", f"{figure.name}: who leads", caption, "Task", columns, tuple(rows))
    return Section(f"which_{name}", f"{figure.name}: which method under which heterogeneity", tables=(table,))


def _against_simple(store: Store, chosen: str) -> Section:
    """Personalized models against the better of what needs no method, and against what no method may do."""
    methods = {cell.row: cell.view.settings.method for cell in store.cells}
    simple = [row for row in store.rows if methods[row] in _ALONE]
    bound = [row for row in store.rows if methods[row] == _BOUND]
    found = means(store, store.rows, PM, chosen)
    best = found.loc[simple].max()
    gains = found.drop(index=simple + bound) - best
    caption = (
        "Percentage points of PM accuracy above the better of training alone (`local`) and FedAvg with fine-tuning "
        "(`finetune`), each tuned with the same budget. Below 0, a method is not worth its trouble on that task."
    )
    gain = _by_mean("gain", "Gain over what needs no method", caption, gains)
    room = found.loc[bound].max() - best
    caption = (
        "PM accuracy on a scale from 0, the better of training alone and FedAvg with fine-tuning, to 1, one model "
        "trained on all clients' data at once and then fine-tuned by every client (`centralized`, with the same "
        f"budget). No score where these two are less than {_LEAST_ROOM:g} points apart: the scale has no length there. "
        "Above 1, a method is better than that."
    )
    score = _by_mean("score", "Personalization score", caption, gains / room.where(room >= _LEAST_ROOM))
    tables = ((gain,) if simple else ()) + ((score,) if simple and bound else ())
    return Section("gain", "Is it worth it?", tables=tables)


def _by_mean(id: str, title: str, caption: str, found: pd.DataFrame) -> Table:
    """A number for each method and task, by the mean over the tasks that have one."""
    found = found.assign(mean=found.mean(axis=1)).sort_values("mean", ascending=False)
    columns = tuple(Column(str(name)) for name in ("mean", *found.columns[:-1]))
    rows = tuple(
        (
            str(row),
            tuple(number(own[c.name], signed=True) for c in columns),
        )
        for row, own in found.iterrows()
    )
    return Table(id, title, caption, "Method", columns, rows)


def _clients(store: Store, chosen: str) -> list[Section]:
    """Share of clients that are worse off than alone."""
    found = fairness.gains(fairness.client_accuracies(store, chosen), store)
    if found.empty:
        return []
    worse = found.assign(worse=100.0 * (found["gain"] < 0)).pivot_table(index="row", columns="task", values="worse")
    worse = worse.assign(mean=worse.mean(axis=1)).sort_values("mean")
    columns = tuple(Column(name) for name in ("mean", *store.tasks))
    rows = tuple(
        (str(row), tuple(number(share[c.name], decimals=1) if c.name in share else words("–") for c in columns))
        for row, share in worse.iterrows()
    )
    caption = "Percent of clients whose personalized model is less accurate on their own test data than `local`'s."
    table = Table("worse_off", "Clients that are worse off than alone", caption, "Method", columns, rows)
    return [Section("worse_off", "Who loses", tables=(table,))]


def _newcomers(store: Store) -> list[Section]:
    """The clients that no training saw, where a task has some: its column above is of those that took part."""
    found = newcomers.newcomers(store)
    return [Section("newcomers", "New clients", tables=(newcomers.newcomer_table(store, found),))] if len(found) else []


def _spread(store: Store, chosen: str) -> Section:
    """How often a method is good, and what it takes."""
    drawn = (performance_profiles(store, chosen), tradeoff(store, cost.totals(store), chosen))
    return Section("spread", "How often, and at what cost", pictures=tuple(one for one in drawn if one is not None))


def shipped(study: str) -> list[Path]:
    """The entries that come with the harness."""
    return sorted((_HERE / "leagues" / study).glob("*.tar.xz"))
