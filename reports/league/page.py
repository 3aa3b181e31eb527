"""The league's page: ranks with intervals, and which method under which heterogeneity (docs/league.md)."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.results.results import RunView
from bench.runs.progress import steps
from reports.league.answers import answers
from reports.league.findings import findings
from reports.league.gain import BOUND, gain_section, gains
from reports.league.method import method_section
from reports.league.pictures import heat_map, means, rank_picture
from reports.league.rule import (
    budget_text,
    by_case,
    entries_of,
    evaluations_on_tests,
    family_mean,
    generic_answers,
    rank_text,
    ranked,
    units_of,
)
from reports.league.shipped import shipped, shown
from reports.league.trials import best_by_trials, trials_picture, trials_table
from reports.league.wins import win_matrix, wins
from reports.page.cells import Recompute, anchor, cells_section
from reports.page.page import write_page
from reports.page.section import Section
from reports.pictures import new_clients
from reports.pictures.profiles import performance_profiles
from reports.pictures.tradeoff import tradeoff
from reports.reading.load import GM, PM, Cell, Figure, Store, load
from reports.statistics.best import Standing
from reports.statistics.ranking import Ranked
from reports.tables import fairness
from reports.tables.standings import Family, column_marks, derived_rows, family
from reports.tables.table import Column, Table, TableEntry, mean_entry, number, words

_LEADERS = 3  # methods that are named per task


def write_league(
    runs: Sequence[Path | RunView],
    out: Path,
    title: str,
    method: str | None = None,
    defaults: Sequence[Path | RunView] | None = None,
) -> Path:
    """Write the page of unpacked entries and return the path of its `index.html`.

    Args:
        runs: the unpacked entries, or what `bench.results.pack.unpack` read of them.
        out: the page's folder.
        title: of the page.
        method: of one of the entries; the page begins with it against all others.
        defaults: entries of the default division, for what tuning is worth; None: a league without one, whose page
            has no first answers.

    Raises:
        UserError: a folder is not a run, or entries contradict each other.
    """
    with steps("bench league report") as step:
        step("reading the entries' cells")
        store = by_case(load(runs))
        comparison = gains(store)
        untuned = by_case(load(defaults)) if defaults else None
        parts: dict[str, Callable[[], Iterable[Section]]] = {
            "in short": lambda: [findings(store, comparison)],
            **({} if defaults is None else {"answers": lambda: [answers(store, untuned)]}),
            **({} if method is None else {method: lambda: [method_section(store, method)]}),
            **{figure.text: partial(_by_figure, store, figure, method) for figure in (PM, GM)},
            "is it worth it?": lambda: [gain_section(store, comparison)],
            "who loses": lambda: _clients(store),
            "new clients": lambda: _newcomers(store),
            "how often, and at what cost": lambda: [_spread(store, method)],
            "cells": lambda: [cells_section(store, _recompute(store))],
            "who computed what": lambda: [Section("entries", "Who computed what", tables=(_entries(store),))],
        }
        sections: list[Section] = []
        for count, (name, sections_of) in enumerate(parts.items(), start=1):
            step(f"section {count} of {len(parts)}: {name}")
            sections += sections_of()
        cells = f"{len(store.rows)} methods, {len(store.tasks)} tasks, {len(store.cells)} cells"
        step("writing the files")
        # What all entries share is the league's definition; the rest stands in the table of entries.
        shared = {name: x for name, x in store.runs[0].items() if all(run.get(name) == x for run in store.runs)}
        common = replace(store, runs=(shared,))
        return write_page(common, out, title, f"{cells}; every method {budget_text(entries_of(store))}.", sections)


def _recompute(store: Store) -> Recompute:
    """The command that checks an entry by computing all its cells again."""
    study = str(store.runs[0]["grid"])
    league_files = {file.name: file for file in shipped(study)}

    def command(cells: Sequence[Cell]) -> str:
        entry = cells[0].view.folder.parent
        place = shown(league_files[entry.name]) if entry.name in league_files else entry.name
        return f"bench verify {place} --cells {sum(path.is_dir() for path in entry.iterdir())}"

    return command


def _entries(store: Store) -> Table:
    """Table of the league's entries: their commands, commits, machines and versions."""
    columns = ("created", "commit", "machine", "versions")
    cells = {cell.view.id: cell.view for cell in store.cells}
    rows = []
    for run in store.runs:
        views = (cells[entry["id"]] for entry in run["cells"] if entry["id"] in cells)
        tests = number(sum(map(evaluations_on_tests, views)), decimals=0)
        rows.append((str(run.get("command", "–")), (tests, *(words(_text(run.get(name, "–"))) for name in columns))))
    caption = (
        "The commands behind the entries; `bench verify ENTRY` computes cells again. Test evaluations: rounds of all "
        "cells of an entry in which models were evaluated on test samples; of each cell one round is reported."
    )
    heads = tuple(map(Column, ("test evaluations", *columns)))
    return Table("entries", "Entries", caption, "Command", heads, tuple(rows))


def _text(value: Any) -> str:
    return ", ".join(f"{name} {part}" for name, part in value.items()) if isinstance(value, dict) else str(value)


def _by_figure(store: Store, figure: Figure, method: str | None) -> tuple[Section, Section]:
    standing, leaders = _standing(store, figure), _best_by_task(store, figure)
    matrix = wins(store, figure, method)
    return standing, leaders if matrix.empty else replace(leaders, pictures=(win_matrix(store, matrix, figure),))


def _standing(store: Store, figure: Figure) -> Section:
    compared, places = ranked(store, figure)
    by_task = means(store, store.rows, figure)
    mean = {str(row): float(value) for row, value in family_mean(store, by_task).items()}
    order = sorted(store.rows, key=lambda row: (row not in places, *_order(places.get(row), mean[row]), row))
    accuracies = _accuracies(store, figure)
    rows = []
    for row in order:
        place = places.get(row)
        tier, interval = _place(row, compared, place)
        derived = compared.left_out.get(row) == "derived"
        average, *figures = (replace(entry, derived=derived) for entry in (number(mean[row]), *accuracies[row]))
        odds = words("–") if place is None else number(place.mean)
        rows.append((row, (tier, interval, average, odds, *figures)))
    name, columns = figure.name.lower(), tuple(map(Column, ("tier", "rank", "mean", "log-odds", *store.tasks)))
    title = f"{figure.name} with standard deviations over {units_of(store)}"
    caption = (
        f"{figure.text}, percent; rows and ranks are in the order of the mean log-odds. Bold, ≈, †: the task's best, "
        "equivalent to it, undecided."
    )
    whole = Table(f"spread_{name}", title, caption, "Method", columns, tuple(rows), how=_how(store, figure))
    short = tuple((row, tuple(replace(entry, spread=None) for entry in entries)) for row, entries in rows)
    table = replace(whole, id=f"main_{name}", title=f"{figure.name}: tiers and ranks", rows=short)
    shown = [row for row in order if row in places] or order
    ranks = (rank_picture(places, figure),) if places else ()
    return Section(
        f"standing_{name}",
        f"{figure.name}: who stands where",
        tables=(table,),
        pictures=(*ranks, heat_map(by_task.loc[shown], figure)),
        more=(whole,),
    )


def _order(place: Ranked | None, mean: float) -> tuple[float, ...]:
    """Key that sorts rows by log-odds where they have a rank, else by the mean; rows without a mean come last."""
    value = mean if place is None else place.mean
    return (math.isnan(value), -value)


def _how(store: Store, figure: Figure) -> str:
    generic = "= GM: on that task every client's model has as many samples right as the generic one, in all seeds. "
    return (
        "A number leads to its settings. Tier: methods whose rank intervals overlap that of the tier's first. Rank: an "
        "interval that holds the true rank of every method at once with 95 % probability over "
        f"{units_of(store)}. Mean: over the tasks of a data family, then over families. Log-odds: of the accuracies, "
        "averaged alike; they can differ from the mean, as from 98 to 99 % they rise as much as from 50 to 67 %. "
        f"{generic if figure == PM else ''}[ ]: a generic model on the clients' tests, or `centralized`, which no "
        "method may do; shown below the others and not ranked. A method without a cell, or that does not train this "
        "model, has no rank."
    )


def _accuracies(store: Store, figure: Figure) -> dict[str, list[TableEntry]]:
    """Make an entry for each task, by row."""
    generic = generic_answers(store) if figure == PM else set()
    entries: dict[str, list[TableEntry]] = {row: [] for row in store.rows}
    for task in store.tasks:
        marks, _ = column_marks(store, task, figure)
        for row in store.rows:
            entry = mean_entry(store.scores(row, task, figure).values())
            if entry.value is not None:
                note = "= GM" if (row, task) in generic else ""
                entry = replace(entry, mark=marks.get(row, ""), link=anchor(row, task), note=note)
            entries[row].append(entry)
    return entries


def _place(row: str, compared: Family, place: Ranked | None) -> tuple[TableEntry, TableEntry]:
    """Tier and rank interval, or why there is none."""
    if place is None:
        return words(compared.left_out.get(row, "–")), words("–")
    note = f"= {compared.clones[row]}" if row in compared.clones else ""
    return TableEntry(place.tier, decimals=0, note=note), words(rank_text(place))


def _best_by_task(store: Store, figure: Figure) -> Section:
    """Section of the methods that lead on each task, and how many cannot be told apart from the first."""
    table_of_means = means(store, store.rows, figure)
    methods = {cell.row: cell.view.settings.method for cell in store.cells}
    generic = generic_answers(store) if figure == PM else set()
    rows = []
    for task in store.tasks:
        mean = {str(row): float(value) for row, value in table_of_means[task].items()}
        compared = family(store, [task], figure)
        marks, _ = column_marks(store, task, figure)
        order = sorted(compared.scores, key=lambda row: -mean[row])
        left_out = (row for row in mean if compared.left_out.get(row) == "derived" and methods[row] != BOUND)
        derived = sorted(left_out, key=lambda row: -mean[row])
        entries = [
            TableEntry(mean[row], note=f"{row} (= GM)" if (row, task) in generic else row, link=anchor(row, task))
            for row in order[:_LEADERS]
        ]
        entries += [words("–")] * (_LEADERS - len(order))
        entries += _ahead(compared.standings(store.margin).get(order[0]) if order else None)
        best_derived = (TableEntry(mean[row], note=row, derived=True, link=anchor(row, task)) for row in derived[:1])
        entries += list(best_derived) or [words("–")]
        entries.append(number(sum(marks.get(row, "") in ("equal", "near") for row in order[1:]), decimals=0))
        rows.append((task, (*entries, number(len(order), decimals=0))))
    ahead = tuple(Column(name, "first minus best other") for name in ("points", "95 % low", "95 % high"))
    leading, others = ("first", "second", "third"), ("best derived", "not worse than the first", "methods compared")
    columns = (*map(Column, leading), *ahead, *map(Column, others))
    caption = (
        f"{figure.text}, percent: the first three on each task, and how far the first is ahead of the best other. Not "
        "worse: equivalent to the first, or undecided."
    )
    how = (
        "First minus best other: by log-odds, in points at the other's level, with the interval that holds for every "
        "method against the best of the others at once, so that it allows for the choice of the first, and for noisy "
        "methods that may be the best. Best derived: the best generic model on the same tests, which is not ranked "
        "here. A clone counts with the model that it is."
        + (" (= GM): its personalized models are its generic one there." if figure == PM else "")
    )
    name = figure.name.lower()
    table = Table(f"leaders_{name}", f"{figure.name}: who leads", caption, "Task", columns, tuple(rows), how=how)
    return Section(f"which_{name}", f"{figure.name}: who leads on which task", tables=(table,))


def _ahead(standing: Standing | None) -> list[TableEntry]:
    """Points of a method above the best of the others, with their simultaneous interval."""
    if standing is None:
        return [words("–")] * 3
    return [number(x, signed=True) for x in (standing.difference, standing.low, standing.high)]


def _clients(store: Store) -> list[Section]:
    """Section of the share of clients that are worse off than alone."""
    clients = fairness.gains(fairness.with_diverged(fairness.client_accuracies(store), store), store)
    if clients.empty:
        return []
    share = clients.assign(worse=100.0 * (clients["gain"] < 0)).pivot_table(index="row", columns="task", values="worse")
    share = share.reindex(columns=store.tasks)
    worse = share.assign(mean=family_mean(store, share))
    derived = derived_rows(store, store.tasks, PM)
    columns = tuple(Column(name) for name in ("mean", *store.tasks))
    rows = []
    for row in sorted(map(str, worse.index), key=lambda row: (row in derived, float(worse["mean"][row]), row)):
        numbers = {name: number(float(worse[name][row]), decimals=1) for name in worse}
        links = {task: anchor(row, task) for task in store.tasks}
        entries = (replace(numbers[c.name], derived=row in derived, link=links.get(c.name, "")) for c in columns)
        rows.append((row, tuple(entries)))
    caption = (
        "Percent of clients whose personalized model is less accurate on their own test data than `local`'s. [ ]: a "
        "generic model, or `centralized`."
    )
    how = "Mean: over the tasks of a data family, then over families; clients of a diverged cell are at chance level."
    table = Table(
        "worse_off", "Clients that are worse off than alone", caption, "Method", columns, tuple(rows), how=how
    )
    return [Section("worse_off", "Who loses", tables=(table,))]


def _newcomers(store: Store) -> list[Section]:
    """Section of the clients that no training saw, where a task has some: its column above is of those that trained."""
    accuracies = new_clients.newcomers(store)
    if not len(accuracies):
        return []
    return [Section("newcomers", "New clients", tables=(new_clients.newcomer_table(store, accuracies),))]


def _spread(store: Store, method: str | None) -> Section:
    """Section of how often a method is good, and of its costs: bytes, steps, trials."""
    choices = (performance_profiles(store), tradeoff(store))
    pictures = tuple(picture for picture in choices if picture is not None)
    trials = best_by_trials(store)
    tables = () if trials.empty else (trials_table(store, trials),)
    if tables:
        pictures += (trials_picture(store, trials, method),)
    return Section("spread", "How often, and at what cost", pictures=pictures, more=tables)
