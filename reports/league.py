"""The league's page: ranks with intervals, and which method under which heterogeneity (docs/league.md)."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from reports import cost, fairness, newcomers
from reports.accuracy import GM, PM, selection
from reports.canvas import Picture, drawing, finish
from reports.figure import Figure, scores
from reports.load import Store, load
from reports.page import cells_section, write_page
from reports.profiles import performance_profiles
from reports.ranking import Ranked, rank
from reports.sections import Section
from reports.standings import Family, column_marks, family
from reports.tables import Column, Entry, Mark, Table, number, words
from reports.tradeoff import tradeoff

_HERE = Path(__file__).parent
_ALONE = ("local", "finetune")
"""What a personalized method has to beat: training alone, and FedAvg with fine-tuning."""
_SHOWN = 15.0  # points below the best of a task at which the heat map's colour ends


def write_league(runs: Sequence[Path], out: Path, title: str) -> Path:
    """Write the page of unpacked entries and return the path of its `index.html`.

    Raises:
        UserError: a folder is not a run, or entries contradict each other.
    """
    store = by_case(load(list(runs)))
    chosen = selection(store)
    sections = [
        *(_standing(store, figure, chosen) for figure in (PM, GM)),
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
    rows = tuple(
        (str(run.get("command", "–")), tuple(words(_text(run.get(name, "–"))) for name in columns))
        for run in store.runs
    )
    caption = "The commands behind the entries; `bench verify ENTRY` computes cells again."
    return Table("entries", "Entries", caption, "Command", tuple(map(Column, columns)), rows)


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
        entries = (_entry(store, row, task, figure, chosen, marks[task].get(row, "")) for task in store.tasks)
        rows.append((row, (tier, interval, *entries)))
    caption = (
        f"{figure.text}, percent. Rank: an interval that holds the true rank of every method at once with 95 % "
        "probability over seeds (tasks averaged within a data family, then over families). Tier: methods whose "
        "intervals overlap that of the tier's first. Bold, ≈, †: the task's best, equivalent to it, undecided. "
        "A method without a cell, or that does not train this model, has no rank."
    )
    name = figure.name.lower()
    whole = Table(
        f"spread_{name}", f"{figure.name} with standard deviations over seeds", caption, "Method", columns, tuple(rows)
    )
    means = tuple((row, tuple(replace(entry, spread=None) for entry in entries)) for row, entries in rows)
    table = replace(whole, id=f"main_{name}", title=f"{figure.name}: tiers and ranks", rows=means)
    shown = [row for row in order if row in places] or order
    return Section(
        f"standing_{name}",
        f"{figure.name}: who stands where",
        tables=(table,),
        pictures=(_heat_map(store, shown, figure, chosen),),
        more=(whole,),
    )


def _place(row: str, compared: Family, place: Ranked | None) -> tuple[Entry, Entry]:
    """Tier and rank interval, or why there is none."""
    if place is None:
        return words(compared.left_out.get(row, "–")), words("–")
    note = f"= {compared.clones[row]}" if row in compared.clones else ""
    ranks = f"{place.first}" if place.first == place.last else f"{place.first}–{place.last}"
    return Entry(place.tier, decimals=0, note=note), words(ranks)


def _entry(store: Store, row: str, task: str, figure: Figure, chosen: str, mark: Mark) -> Entry:
    found = list(scores(store, row, task, figure, chosen).values())
    if not found:
        return words("–")
    spread = float(np.std(found, ddof=1)) if len(found) > 1 else None
    return Entry(float(np.mean(found)), spread, mark=mark, n=len(found))


def _means(store: Store, rows: Sequence[str], figure: Figure, chosen: str) -> pd.DataFrame:
    """Mean accuracy in percent, rows x tasks; nan where there is none."""
    found = {
        task: [
            np.mean(list(got.values())) if (got := scores(store, row, task, figure, chosen)) else np.nan for row in rows
        ]
        for task in store.tasks
    }
    return pd.DataFrame(found, index=list(rows))


def _heat_map(store: Store, rows: Sequence[str], figure: Figure, chosen: str) -> Picture:
    """Points below the best of each task, methods in the order of their ranks."""
    means = _means(store, rows, figure, chosen)
    below = means.max() - means
    size = (2.2 + 0.55 * len(store.tasks), 1.6 + 0.19 * len(rows))
    with drawing([""], 1, size, share=False) as (canvas, axes):
        image = axes[0].imshow(below, aspect="auto", cmap="viridis_r", vmin=0, vmax=_SHOWN)
        axes[0].set_xticks(range(len(store.tasks)), store.tasks, rotation=40, ha="right", rotation_mode="anchor")
        axes[0].set_yticks(range(len(rows)), rows, fontsize=7)
        axes[0].grid(visible=False)
        canvas.colorbar(image, ax=axes[0], shrink=0.6, label="points below the task's best", extend="max")
        caption = (
            f"{figure.text}: percentage points below the best method of each task; the ranking's order from above."
        )
        return finish(canvas, f"heat_{figure.name.lower()}", f"{figure.name}: method x task", caption)


def _against_simple(store: Store, chosen: str) -> Section:
    """Personalized models against the better of what needs no method."""
    methods = {cell.row: cell.view.settings.method for cell in store.cells}
    simple = [row for row in store.rows if methods[row] in _ALONE]
    others = [row for row in store.rows if row not in simple]
    means = _means(store, store.rows, PM, chosen)
    best = means.loc[simple].max()
    gains = (
        (means.loc[others] - best).assign(mean=lambda frame: frame.mean(axis=1)).sort_values("mean", ascending=False)
    )
    columns = tuple(Column(name) for name in ("mean", *store.tasks))
    rows = tuple(
        (str(row), tuple(words("–") if np.isnan(gain[c.name]) else number(gain[c.name], signed=True) for c in columns))
        for row, gain in gains.iterrows()
    )
    caption = (
        "Percentage points of PM accuracy above the better of training alone (`local`) and FedAvg with fine-tuning "
        "(`finetune`), each tuned with the same budget. Below 0, a method is not worth its trouble on that task."
    )
    table = Table("gain", "Gain over what needs no method", caption, "Method", columns, rows)
    return Section("gain", "Is it worth it?", tables=(table,) if simple else ())


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


def write_export(entry: Path, page: Path, out: Path, study: str, installed: Sequence[str]) -> Path:
    """Gather what a publication needs of an entry; returns the folder."""
    out.mkdir(parents=True, exist_ok=True)
    shutil.copy(entry, out)
    for table in sorted(page.glob("main_*.tex")):
        shutil.copy(table, out)
    (out / "environment.txt").write_text("\n".join(installed) + "\n", encoding="utf-8")
    for template in sorted((_HERE / "templates" / "league").iterdir()):
        text = template.read_text(encoding="utf-8").replace("STUDY", study).replace("ENTRY", entry.name)
        (out / template.name).write_text(text, encoding="utf-8")
    return out
