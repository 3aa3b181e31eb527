"""The papers' printed tables (`reports/published/*.yaml`), and our numbers beside theirs."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bench.errors import UserError, did_you_mean
from bench.plugin import PUBLISHED
from reports.published.measures import AMBIGUOUS, MEASURES, Place, measured
from reports.published.protocol import differences, frozen_cells
from reports.reading.load import Cell, Store
from reports.reading.names import TASK_FIELDS, setting_text
from reports.statistics import inference
from reports.tables.accuracy import SELECTION_TEXT
from reports.tables.table import Column, Table, TableEntry, words

UNITS = {"comcost": ("10⁷", 1e7)}
"""Metrics whose numbers are too long: the unit in which both theirs and ours are shown."""

SETTINGS = {
    "K": "clients",
    "N": "clients",
    "C": "participation",
    "dir_alpha": "alpha",
    "T": "rounds",
    "B": "batch_size",
    "batch": "batch_size",
    "E": "epochs",
    "local_epochs": "epochs",
    "dist": "partition",
    "Gamma": "gamma",
}
"""The papers' names of settings, where they are not ours."""

WITHIN = (
    "Within: whether the difference is no larger than the printed spread and ours together. Not comparable: ours has "
    "other settings than the protocol (`bench protocol check`), which are named in place of a number."
)
_NAMED = 3  # settings that an entry lists

NO_SETTINGS = ("eval", "client_id", "run", "C_actual")
"""Axes that name what was measured, a run by its number, or what a method does whatever the setting says."""


class PublishedRow(BaseModel):
    """One printed cell; what the fields do not name are its positions on the table's axes.

    Attributes:
        mean: None only with `na` (the paper prints a dash); infinite: never reached.
        std: None: none printed.
        paren: printed in parentheses; merged: from a cell that spans several rows; garbled: unreadable part.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    method: str
    label: str
    metric: str
    mean: float | None
    std: float | None
    na: bool = False
    paren: bool = False
    merged: bool = False
    garbled: str = ""

    @property
    def axes(self) -> dict[str, Any]:
        """Positions on the axes."""
        return self.model_extra or {}

    @model_validator(mode="after")
    def _dash_or_number(self) -> "PublishedRow":
        if (self.mean is None) != self.na:
            raise ValueError("`mean: null` goes with `na: true`, and only with it")
        return self


class PublishedTable(BaseModel):
    """One printed table; `dataset` and `setting` hold for all of it, `printed` counts the paper's rows and cells."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    number: str
    title: str
    dataset: str
    setting: dict[str, Any]
    axes: dict[str, list[Any]]
    metrics: list[str]
    unit: str
    printed: dict[str, int]
    notes: list[str] = Field(default_factory=list)
    rows: list[PublishedRow]
    paper: str = ""

    @property
    def runs(self) -> int:
        """Runs behind each mean (`trials` or `seeds` of the setting); 0 where the paper does not say."""
        return int(self.setting.get("trials", self.setting.get("seeds", 0)))


def published_tables() -> dict[str, PublishedTable]:
    """All printed tables, by id."""
    return {table.id: table for path in dict.fromkeys(PUBLISHED.values()) for table in _read(path)}


def published_table(name: str) -> PublishedTable:
    """The printed table of that id.

    Raises:
        UserError: there is none.
    """
    known = published_tables()
    if name not in known:
        raise UserError(f"unknown published table {name!r}.{did_you_mean(name, list(known))} Known: {', '.join(known)}")
    return known[name]


def comparison(store: Store, printed: PublishedTable) -> Table:
    """The printed table with our figures and the differences beside its numbers, all in the paper's unit.

    Args:
        store: cells of one protocol; labels (or else methods) are the table's method ids.
    """
    by_row: dict[str, dict[str, PublishedRow]] = {}
    for row in printed.rows:
        by_row.setdefault(_row_name(row, printed), {})[_column_name(row)] = row
    groups = list(dict.fromkeys(group for rows in by_row.values() for group in rows))
    frozen = frozen_cells(printed.id)
    names = ("paper", "ours", "Δ", "within") if frozen else ("paper", "ours", "Δ")
    columns = tuple(Column(name, group) for group in groups for name in names)
    table_rows = tuple(
        (label, tuple(entry for group in groups for entry in _entries(store, printed, rows.get(group), frozen)))
        for label, rows in by_row.items()
    )
    interval = (
        f"with a 95 % interval (Cochran and Cox; the paper's ± read as a standard deviation of {printed.runs} runs; "
        "the intervals are not corrected for their number)"
        if printed.runs
        else "without an interval: the table gives no number of runs"
    )
    caption = (
        f"{printed.paper}; {printed.unit}. Ours: protocol {store.protocols[0]}, {SELECTION_TEXT[store.chosen]}; Δ is "
        f"ours minus the paper's, {interval}. [ ]: the paper prints it in parentheses, or ours is derived."
    )
    if frozen:
        caption += f" {WITHIN}"
    notes = (*setting_differences(store, printed), *(f"The paper's table: {note}." for note in printed.notes))
    if any(entry.note == AMBIGUOUS for _, entries in table_rows for entry in entries):
        notes = (f"{AMBIGUOUS.capitalize()}: several of our cells match, and no axis tells them apart.", *notes)
    title = f"{printed.number}: {printed.title}"
    return Table(f"published_{printed.id}", title, caption, "Method", columns, table_rows, notes)


@cache
def _read(path: Path) -> tuple[PublishedTable, ...]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # six times as fast, where PyYAML has it
    document = yaml.load(path.read_text(encoding="utf-8"), loader)
    try:
        return tuple(PublishedTable(**table, paper=document["paper"]) for table in document["tables"])
    except ValidationError as error:
        raise UserError(f"{path}: not a file of published tables: {error}") from None


def _row_name(row: PublishedRow, printed: PublishedTable) -> str:
    """The printed label, with the method's own axes where the label alone does not tell the rows apart."""
    rivals = [other.axes for other in printed.rows if other.label == row.label]
    names = [
        name
        for name in row.axes
        if not _is_task(name) and name != "run" and len({str(axes.get(name)) for axes in rivals}) > 1
    ]
    return ", ".join([row.label, *(setting_text(_setting(name), row.axes[name]) for name in names)])


def _column_name(row: PublishedRow) -> str:
    """The task, as our tables name it, and the metric."""
    tasks = [setting_text(_setting(name), value) for name, value in row.axes.items() if _is_task(name)]
    return ", ".join([*tasks, f"{row.metric} ({UNITS[row.metric][0]})" if row.metric in UNITS else row.metric])


def _is_task(axis: str) -> bool:
    return _setting(axis).partition(".")[0] in TASK_FIELDS


def _setting(axis: str) -> str:
    return SETTINGS.get(axis, axis)


def _entries(
    store: Store, printed: PublishedTable, row: PublishedRow | None, frozen: list[dict[str, Any]]
) -> tuple[TableEntry, ...]:
    """Make the entries of one printed number: the paper's value, ours, the difference; of a protocol also `within`."""
    entries = [words("–")] * (4 if frozen else 3)
    if row is None:
        return tuple(entries)
    _, unit = UNITS.get(row.metric, ("", 1.0))
    entries[0] = paper = replace(_scaled(unit, _printed_entry(row)), n=printed.runs)
    if row.metric in MEASURES:
        place = _place(store, printed, row)
        if other := _not_comparable(printed, row, place, frozen):
            entries[1] = words(other)
        else:
            entries[1] = value = _scaled(unit, measured(store, row.metric, place))
            entries[2:] = [_difference(value, paper), _within(value, paper)][: len(entries) - 2]
    return tuple(entries)


def _not_comparable(printed: PublishedTable, row: PublishedRow, place: Place, frozen: list[dict[str, Any]]) -> str:
    """Name the settings in which our cells are not the protocol's; empty if there are none, or no protocol."""
    position = {**_position(printed, row), "label": row.method}
    same = [cell for cell in frozen if all(agrees(cell, axis, value) for axis, value in position.items())]
    texts = (text for cell in place.cells for text in differences(cell.flat, same[0])) if same else ()
    listed = list(dict.fromkeys(texts))
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return f"not comparable: {', '.join(listed[:_NAMED])}{more}" if listed else ""


def _within(ours: TableEntry, paper: TableEntry) -> TableEntry:
    """Say whether the difference is no larger than both spreads together."""
    if ours.value is None or paper.value is None or ours.spread is None or paper.spread is None:
        return words("–")
    return words("yes" if abs(ours.value - paper.value) <= ours.spread + paper.spread else "no")


def _difference(ours: TableEntry, paper: TableEntry) -> TableEntry:
    """Subtract the paper's value from ours; with an interval where both are means of so many runs with a spread."""
    if ours.value is None or paper.value is None:
        return words("–")
    difference = TableEntry(ours.value - paper.value, signed=True)
    if ours.spread is None or paper.spread is None:
        return difference
    low, high = inference.unpaired(
        (ours.value, max(ours.spread, ours.least), ours.n), (paper.value, paper.spread, paper.n)
    )
    if math.isnan(low):
        return difference
    ends = (replace(difference, value=end).number for end in (low, high))
    return replace(difference, note=f"({', '.join(ends)})")


def _scaled(unit: float, entry: TableEntry) -> TableEntry:
    value, spread = (None if x is None else x / unit for x in (entry.value, entry.spread))
    return replace(entry, value=value, spread=spread)


def _printed_entry(row: PublishedRow) -> TableEntry:
    if row.mean is None:
        return words("–")
    if math.isinf(row.mean):
        return words("never")
    return TableEntry(row.mean, row.std, derived=row.paren)


def _place(store: Store, printed: PublishedTable, row: PublishedRow) -> Place:
    """Find our cells of a printed number: same method and same position on every axis."""
    position = _position(printed, row)
    cells = [cell for cell in store.cells if all(agrees(cell.flat, axis, value) for axis, value in position.items())]
    labelled = any(cell.view.label == row.method for cell in store.cells)
    by_method: dict[str, list[Cell]] = {
        method: [] for method in dict.fromkeys(printed_row.method for printed_row in printed.rows)
    }
    for cell in cells:
        by_method.get(cell.view.label if labelled else cell.view.settings.method, []).append(cell)
    return Place(row.axes, by_method[row.method], by_method[printed.rows[0].method], list(by_method.values()))


def _position(printed: PublishedTable, row: PublishedRow) -> dict[str, Any]:
    """Settings of a printed number; where a row varies one (`param`) of several, the others are the table's."""
    position = {**({"alpha": printed.setting["alpha"]} if "alpha" in printed.setting else {}), **row.axes}
    if "param" in position:
        position |= {name: printed.setting[name] for name in printed.axes["param"] if name in printed.setting}
        position[position.pop("param")] = position.pop("value")
    if position.get("classes") == "k2":  # never defined; its row repeats the default rows (published/spfl.yaml)
        del position["classes"]
    return {axis: value for axis, value in position.items() if axis not in NO_SETTINGS}


def agrees(settings: dict[str, Any], axis: str, value: Any) -> bool:
    """Whether a cell's settings have the value that a printed table has on an axis."""
    name, _, option = _setting(axis).partition(".")
    ours = settings.get(name, settings.get(f"hp.{name}"))
    if option:  # such as `partition_options.k`
        ours = ours.get(option) if isinstance(ours, dict) else None
    if axis == "dataset":
        return str(ours) == value or str(ours).startswith(f"{value}-")  # cifar10-jpeg stands in for cifar10
    if axis == "dist":
        same = bool(ours == "iid" or settings["partition_options"].get("same_classes"))
        return same is (str(value) == "iid")
    return bool(ours == value)


def setting_differences(store: Store, printed: PublishedTable) -> Iterator[str]:
    """One sentence on the settings in which our cells are not the paper's; a table of numbers hides them."""
    texts, flat = [], [cell.flat for cell in store.cells]
    published = {"dataset": set(printed.dataset.split(","))}
    varied = {*printed.axes, *printed.axes.get("param", [])}
    published |= {_setting(name): {value} for name, value in printed.setting.items() if name not in varied}
    for name, values in published.items():
        ours = {settings[name] for settings in flat if isinstance(settings.get(name), str | int | float)}
        if other := ours - values:
            shown, paper = (" and ".join(sorted(f"{value}" for value in group)) for group in (other, values))
            texts.append(f"{name} {shown} (paper: {paper})")
    if texts:
        yield f"Ours is not the paper's setting: {'; '.join(texts)}."
