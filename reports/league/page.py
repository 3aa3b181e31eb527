"""The league's page: ranks with intervals, and which method under which heterogeneity (docs/league.md)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from bench.results.results import RunView
from bench.runs.progress import steps
from reports.league.answers import answers
from reports.league.gain import BOUND, Gains, gain_section, gains
from reports.league.method import method_section, wins
from reports.league.pictures import heat_map, means, rank_picture
from reports.league.rule import (
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
from reports.league.trials import best_by_trials, trials_table
from reports.league.tuning import budget_text
from reports.page.cells import Recompute, anchor, cells_section
from reports.page.page import write_page
from reports.page.section import Section
from reports.pictures import new_clients
from reports.pictures.profiles import performance_profiles
from reports.pictures.tradeoff import tradeoff
from reports.reading.load import GM, PM, Cell, Figure, Store, load
from reports.statistics.inference import Summary
from reports.tables import fairness
from reports.tables.standings import column_marks, derived_rows, family
from reports.tables.table import Column, Table, TableEntry, mean_entry, number, words

_GLOSSARY = (
    "GM: the generic model, one for all clients, on the common test set. PM: the personalized models, each on its "
    "client's own test set. A task is named after what differs between its clients; the tasks of a data set are a data "
    "family. Tier: methods that the intervals do not tell apart from the tier's first. In brackets: what a method does "
    "not train (a generic model on the clients' tests), or what no method may do (`centralized`); shown, never ranked. "
    "Every number in a table of methods leads to its settings and to the command that computes it again."
)
_FEW = 3
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
        step("comparing the methods")
        comparison = gains(store)
        sections = [_findings(store, comparison)]
        if defaults is not None:
            sections.append(answers(store, by_case(load(defaults)) if defaults else None))
        if method is not None:
            sections.append(method_section(store, method))
        for figure in (PM, GM):
            sections += [_standing(store, figure), _best_by_task(store, figure, method)]
        sections += [gain_section(store, comparison), *_clients(store), *_newcomers(store), _spread(store)]
        sections.append(cells_section(store, _recompute(store)))
        sections.append(Section("entries", "Who computed what", tables=(_entries(store),)))
        summary = (
            f"{len(store.rows)} methods, {len(store.tasks)} tasks, {len(store.cells)} cells; every method "
            f"{budget_text(entries_of(store))}."
        )
        step("writing the files")
        # What all entries share is the league's definition; the rest stands in the table of entries.
        shared = {name: x for name, x in store.runs[0].items() if all(run.get(name) == x for run in store.runs)}
        return write_page(replace(store, runs=(shared,)), out, title, summary, sections)


def _findings(store: Store, comparison: Gains | None) -> Section:
    """Section of the glossary and the findings."""
    points = [*_ranks(store, PM), *_ranks(store, GM)]
    if comparison is not None:
        points += _gains(comparison)
    return Section("short", "In short", _GLOSSARY, points=tuple(points))


def _ranks(store: Store, figure: Figure) -> Iterator[str]:
    compared, places = ranked(store, figure)
    if not places:
        return
    mean = family_mean(store, means(store, list(places), figure))
    first, highest = max(places, key=lambda row: places[row].mean), str(mean.idxmax())
    tier = [row for row in compared.scores if places[row].tier == 1]
    yield (
        f"{figure.name}: {len(compared.scores)} methods train it, {len(tier)} of them in the first tier. First by "
        f"log-odds is {first} (rank {rank_text(places[first])}), first by accuracy {highest} "
        f"({mean[highest]:.2f} %)."
    )


def _gains(comparison: Gains) -> Iterator[str]:
    summaries = comparison.gain.corrected
    above = [row for row in summaries if summaries[row].mean > 0]
    gaining = [row for row, summary in summaries.items() if summary.low > 0]
    losing = [row for row, summary in summaries.items() if summary.high < 0]
    yield (
        f"{len(above)} of {len(summaries)} methods gain, averaged over tasks, over the better of training alone and "
        f"fine-tuning; largest: {_first_few(summaries, '+.2f')} points (95 % intervals that hold for all methods at "
        f"once, as these are chosen from them). By these intervals {len(gaining)} surely gain and {len(losing)} "
        "surely lose."
    )
    if comparison.score is not None and comparison.score.by_task.notna().any(axis=None):
        scores = comparison.score.corrected
        tasks = int(comparison.score.by_task.notna().any().sum())
        yield (
            "On the way from there (0) to one model trained on everybody's data and then fine-tuned (1), on the "
            f"{tasks} tasks with room between them: {_first_few(scores, '.2f')} (intervals for all at once)."
        )


def _first_few(measured: dict[str, Summary], form: str) -> str:
    """Name the first few with their corrected intervals."""
    first = sorted(measured, key=lambda row: -measured[row].mean)[:_FEW]
    summaries = [(row, measured[row]) for row in first]
    return ", ".join(f"{row} {mean.mean:{form}} [{mean.low:.2f}, {mean.high:.2f}]" for row, mean in summaries)


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
    cells = {cell.view.id: cell.view for cell in store.cells}
    rows = []
    for run in store.runs:
        tests = sum(evaluations_on_tests(cells[entry["id"]]) for entry in run["cells"] if entry["id"] in cells)
        about = [run.get(name, "–") for name in ("created", "commit", "machine", "versions")]
        texts = [
            ", ".join(f"{name} {part}" for name, part in value.items()) if isinstance(value, dict) else str(value)
            for value in about
        ]
        rows.append((str(run.get("command", "–")), (number(tests, decimals=0), *map(words, texts))))
    caption = (
        "The commands behind the entries; `bench verify ENTRY` computes cells again. Test evaluations: rounds of all "
        "cells of an entry in which models were evaluated on test samples; of each cell one round is reported."
    )
    heads = tuple(map(Column, ("test evaluations", "created", "commit", "machine", "versions")))
    return Table("entries", "Entries", caption, "Command", heads, tuple(rows))


def _standing(store: Store, figure: Figure) -> Section:
    compared, places = ranked(store, figure)
    by_task = means(store, store.rows, figure)
    mean = {str(row): float(value) for row, value in family_mean(store, by_task).items()}

    def order(row: str) -> tuple[bool, bool, float, str]:
        """Sort key: by log-odds where a row has a rank, else by the mean; rows without a mean are last."""
        value = places[row].mean if row in places else mean[row]
        return row not in places, math.isnan(value), -value, row

    ordered, accuracies = sorted(store.rows, key=order), _accuracies(store, figure)
    rows = []
    for row in ordered:
        derived = compared.left_out.get(row) == "derived"
        average, *figures = (replace(entry, derived=derived) for entry in (number(mean[row]), *accuracies[row]))
        place = [words(compared.left_out.get(row, "–")), words("–"), average, words("–")]
        if row in places:
            note = f"= {compared.clones[row]}" if row in compared.clones else ""
            tier = TableEntry(places[row].tier, decimals=0, note=note)
            place = [tier, words(rank_text(places[row])), average, number(places[row].mean)]
        rows.append((row, (*place, *figures)))
    name, columns = figure.name.lower(), tuple(map(Column, ("tier", "rank", "mean", "log-odds", *store.tasks)))
    title = f"{figure.name} with standard deviations over {units_of(store)}"
    caption = (
        f"{figure.text}, percent; rows and ranks are in the order of the mean log-odds. Bold, ≈, †: the task's best, "
        "equivalent to it, undecided."
    )
    whole = Table(f"spread_{name}", title, caption, "Method", columns, tuple(rows), how=_how(store, figure))
    short = tuple((row, tuple(replace(entry, spread=None) for entry in entries)) for row, entries in rows)
    table = replace(whole, id=f"main_{name}", title=f"{figure.name}: tiers and ranks", rows=short)
    shown = [row for row in ordered if row in places] or ordered
    ranks = (rank_picture(places, figure),) if places else ()
    return Section(
        f"standing_{name}",
        f"{figure.name}: who stands where",
        tables=(table,),
        pictures=(*ranks, heat_map(by_task.loc[shown], figure)),
        more=(whole,),
    )


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


def _best_by_task(store: Store, figure: Figure, method: str | None) -> Section:
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
        ahead = compared.standings.get(order[0]) if order else None
        points = (ahead.difference, ahead.low, ahead.high) if ahead else (math.nan,) * 3
        entries += [number(x, signed=True) for x in points]
        best_derived = (TableEntry(mean[row], note=row, derived=True, link=anchor(row, task)) for row in derived[:1])
        entries += list(best_derived) or [words("–")]
        entries.append(number(sum(marks.get(row, "") in ("equal", "near") for row in order[1:]), decimals=0))
        rows.append((task, (*entries, number(len(order), decimals=0))))
    distance = tuple(Column(name, "first minus best other") for name in ("points", "95 % low", "95 % high"))
    leading, others = ("first", "second", "third"), ("best derived", "not worse than the first", "methods compared")
    columns = (*map(Column, leading), *distance, *map(Column, others))
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
    matrix = wins(store, figure, method)
    return Section(
        f"which_{name}", f"{figure.name}: who leads on which task", tables=(table,), more=(matrix,) if matrix else ()
    )


def _clients(store: Store) -> list[Section]:
    """Section of the share of clients that are worse off than alone."""
    clients = fairness.gains(fairness.with_diverged(fairness.client_accuracies(store), store), store)
    if clients.empty:
        return []
    share = clients.assign(worse=100.0 * (clients["gain"] < 0)).pivot_table(index="row", columns="task", values="worse")
    share = share.reindex(columns=store.tasks)
    worse = share.assign(mean=family_mean(store, share))
    derived = derived_rows(store, store.tasks, PM)
    rows = []
    for row in sorted(map(str, worse.index), key=lambda row: (row in derived, float(worse["mean"][row]), row)):
        entries = [number(float(worse["mean"][row]), decimals=1)]
        entries += [replace(number(float(share[t][row]), decimals=1), link=anchor(row, t)) for t in store.tasks]
        rows.append((row, tuple(replace(entry, derived=row in derived) for entry in entries)))
    caption = (
        "Percent of clients whose personalized model is less accurate on their own test data than `local`'s. [ ]: a "
        "generic model, or `centralized`."
    )
    how = "Mean: over the tasks of a data family, then over families; clients of a diverged cell are at chance level."
    title, columns = "Clients that are worse off than alone", tuple(map(Column, ("mean", *store.tasks)))
    table = Table("worse_off", title, caption, "Method", columns, tuple(rows), how=how)
    return [Section("worse_off", "Who loses", tables=(table,))]


def _newcomers(store: Store) -> list[Section]:
    """Section of the clients that no training saw, where a task has some: its column above is of those that trained."""
    accuracies = new_clients.newcomers(store)
    if not len(accuracies):
        return []
    return [Section("newcomers", "New clients", tables=(new_clients.newcomer_table(store, accuracies),))]


def _spread(store: Store) -> Section:
    """Section of how often a method is good, and of its costs: bytes, steps, trials."""
    pictures = (performance_profiles(store), tradeoff(store))
    trials = best_by_trials(store)
    return Section(
        "spread",
        "How often, and at what cost",
        pictures=tuple(picture for picture in pictures if picture is not None),
        more=() if trials.empty else (trials_table(store, trials),),
    )
