"""Rows of a table as a data set: their labels and sites, what is wrong with them, and what is to be known."""

import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.data import Array, Dataset, Indices
from bench.errors import LISTED_NAMES, UserError, did_you_mean
from bench.samples.normalising import fill, statistics
from bench.samples.subjects import subject_notes
from datasets.assemble import PARTS, assemble, held_out_order, numbering
from datasets.columns import (
    Columns,
    channels,
    column_names,
    described,
    encode,
    far_values,
    numbered,
    numbers,
    plain,
    present,
    read_feature,
    read_text,
    spellings,
    texts,
)
from datasets.copies import counted, equal_places, notes_on_copies
from datasets.doubts import TELLING, odd_numbers, repeated, telling

if TYPE_CHECKING:
    import pandas as pd

LEAST = 10
"""Rows of a site below which a note names it: its test has two or three samples."""
_MOST_CLASSES = 100
_ROLES = ("label", "site", "subject", "part", "text")  # of columns that are no features of a table
_SUBJECT = re.compile(
    r"id|mrn|(patient|subject|person|participant|proband|user|animal|individual)s?[ _.-]?"
    r"(id|code|key|nr|no|num|number|name)?",
    re.IGNORECASE,
)
"""Names of columns that say of whom a row is."""


Encode = Callable[[Columns, Indices], tuple[Array, dict[str, Any]]]
"""Makes samples `[rows, ...]` of features, given the rows to train on, and further arguments of `assemble`."""


def encoded(features: Columns, training: Indices) -> tuple[Array, dict[str, Any]]:
    """Numbers and categories as channels, fitted on the rows `training`: an `Encode`."""
    columns = described(features, training)
    x = encode(columns, features)
    listed = channels(columns)
    indicators = tuple(place for place, (_, indicator) in enumerate(listed) if indicator)
    mean, std = statistics(fill(x, training, training), indicators)
    return x, {
        "mean": mean.tolist(), "std": std.tolist(), "indicators": indicators,
        "features": tuple(name for name, _ in listed), "table": {"columns": columns},
    }  # fmt: skip


def dataset_of(
    frame: "pd.DataFrame",
    *,
    source: str,
    name: str,
    label: str,
    site: str = "",
    subject: str = "",
    part: str = "",
    text: str = "",
    sites: Sequence[str] | None = None,
    leave_out: Sequence[str] = (),
    categories: Sequence[str] = (),
    make: Encode = encoded,
) -> Dataset:
    """Make a data set of a table.

    Args:
        frame: one row for each sample.
        source: the file or name, for messages.
        name: of the data set.
        label, site, subject, part, leave_out, categories: as in `datasets.tables`.
        text: the column of texts, if they are the samples; then no other column is a feature.
        sites: `[rows]` the site of each row, if no column says it.
        make: what makes samples.

    Raises:
        UserError: a column cannot be read so. Where there are several problems, the first is told, and their number.
    """
    needed = label, site, subject, part, text
    columns = _named(frame, source, needed, leave_out, categories)
    problems: list[str] = []
    groups = np.array(sites, object) if sites is not None and not site else None
    if site:
        groups = _names(plain(columns[site]), f"the column of sites {site!r}", "site", groups, problems)
    y = _names(plain(columns[label]), f"the column of labels {label!r}", "label", groups, problems)
    _check_classes(y, label, problems)
    subjects = None
    if subject:
        where = f"the column of subjects {subject!r}"
        subjects = _names(plain(columns[subject]), where, "subject", groups, problems)
    parts = _parts(plain(columns[part]), part, problems) if part else None
    features: dict[str, Any] = {}
    for column in [text] if text else [column for column in columns if column not in {*needed, *leave_out}]:
        values = columns[column]
        read = read_text(values) if text else read_feature(plain(values), category=column in categories)
        if isinstance(read, str):
            problems.append(f"the column {column!r} {read}")
        else:
            features[column] = read
    if not features and not problems:
        problems.append("no column is left that could be a feature")
    if problems:
        raise TableError(source, problems)
    data = _assembled(name, source, features, y, groups, subjects, parts, make)
    hints = () if subject else _unnamed_subjects(columns, {label, site, part, text})
    doubts = {} if text else _doubts(features, y, groups, subjects)
    ignored = [column for column in (*needed, *leave_out) if column]
    return replace(
        data,
        notes=(*data.notes, *(f"{name}: {hint}" for hint in (*doubts.values(), *hints))),
        doubts=doubts,
        table=None if data.table is None else {**data.table, "ignored": ignored},
    )


class TableError(UserError):
    """Problems of a table, of which the message tells the first.

    Attributes:
        problems: all of them, a line each.
    """

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        more = len(problems) - 1
        rest = f" (and {more} more problem{'s' if more > 1 else ''}; `bench data` lists them)" if more else ""
        super().__init__(f"{source}: {problems[0]}{rest}")
        self.problems = [f"{source}: {problem}" for problem in problems]


def _named(
    frame: "pd.DataFrame", source: str, needed: Sequence[str], leave_out: Sequence[str], categories: Sequence[str]
) -> dict[str, Any]:
    """The columns by name, those that options name among them."""
    names = column_names(frame.columns, source)
    ids = {f"{what}_column": [column] for what, column in zip(_ROLES, needed, strict=True)}
    options = {**ids, "leave_out": leave_out, "categories": categories}
    for option, asked in options.items():
        if strange := [column for column in asked if column and column not in names]:
            listed = f" There are {', '.join(names)}." if len(names) <= LISTED_NAMES else ""
            hint = did_you_mean(strange[0], names) or listed
            raise UserError(f"{source}: there is no column {strange[0]!r}, which `{option}` names.{hint}")
    if not needed[0]:
        listed = ", ".join([*names[:LISTED_NAMES], *(["..."] if len(names) > LISTED_NAMES else [])])
        raise UserError(f"{source}: which column holds the classes (--label, or `label_column`)? There are {listed}")
    asked = [column for column in (*needed, *leave_out) if column]
    if twice := [column for column in needed if asked.count(column) > 1]:
        raise UserError(
            f"{source}: {twice[0]!r} has two uses: it can be the column of labels, of sites, of subjects, of parts or "
            "of texts, or in `leave_out`"
        )
    if len(frame) < 2:
        raise UserError(f"{source} has {len(frame)} rows below its header; it needs some to train and to test")
    return {name: frame.iloc[:, place] for place, name in enumerate(names)}


def _names(values: Array, where: str, what: str, groups: Array | None, problems: list[str]) -> Array:
    """Names `[rows]` of classes, sites or subjects, as they are written; what is wrong is added to the problems."""
    gaps = [row for row, value in enumerate(values) if value is None]
    if gaps:
        of = "" if groups is None else f", site {groups[gaps[0]]}"
        problems.append(
            f"{where} is empty in {counted(gaps, 'row')} (the first: row {gaps[0] + 1}{of}); fill it in, or remove "
            "these rows"
        )
    as_numbers = numbers(values) if what == "label" else None
    if as_numbers is not None:
        held = as_numbers[~np.isnan(as_numbers)]
        if len(broken := held[(held != np.rint(held)) | np.isinf(held)]):
            problems.append(
                f"{where} holds {broken[0]:g}, which is no class; make classes of it, for instance by limits"
            )
    written = texts(values)
    held_texts = present(written)
    for alike in spellings(held_texts):
        rows = [row for row, value in enumerate(written) if value == alike[-1]]
        of = f" (at site {', '.join(sorted({str(groups[row]) for row in rows})[:3])})" if groups is not None else ""
        problems.append(
            f"{where} spells a {what} in {len(alike)} ways, {' and '.join(map(repr, alike))}{of}; write it in one"
        )
    if what == "label" and as_numbers is None and len(held_texts):
        as_digits = [value for value in held_texts if value.lstrip("+-").isdigit()]
        if as_digits and len(as_digits) < len(held_texts):
            other = next(value for value in held_texts if value not in as_digits)
            problems.append(
                f"{where} holds numbers such as {as_digits[0]!r} and texts such as {other!r}; use one of both"
            )
    return np.array(["" if value is None else value for value in written], np.str_)


def _parts(values: Array, part: str, problems: list[str]) -> Array:
    """Number the part of each row, `[rows]`, as `notes_on_copies` does; what is wrong is added to the problems."""
    parts = [PARTS.get(str(value).strip().lower(), "") for value in values]
    if unknown := [row for row, name in enumerate(parts) if not name]:
        value = values[unknown[0]]
        problems.append(
            f"the column of parts {part!r} holds {'nothing' if value is None else repr(value)} in "
            f"{counted(unknown, 'row')} (the first: row {unknown[0] + 1}); it should hold train, validation or test"
        )
    elif lacking := {"train", "test"}.difference("train" if name == "val" else name for name in parts):
        problems.append(f"the column of parts {part!r} has no row to {lacking.pop()}")
    return np.array([("train", "val", "test").index(name or "train") for name in parts])


def _check_classes(y: Array, label: str, problems: list[str]) -> None:
    count = len(np.unique(y))
    if count == 1:
        problems.append(f"the column of labels {label!r} holds {y[0]!s} in every row; there is nothing to learn")
    elif count > _MOST_CLASSES or (count > LEAST and 2 * count > len(y)):
        problems.append(
            f"the column of labels {label!r} holds {count} different values in {len(y)} rows; these are no classes"
        )


def _assembled(
    name: str,
    source: str,
    features: Columns,
    y: Array,
    groups: Array | None,
    subjects: Array | None,
    parts: Array | None,
    make: Encode,
) -> Dataset:
    if parts is None:
        order, n_train = held_out_order(_strata(y, groups), subjects)
        parts = np.full(len(y), 2)
        parts[order[:n_train]] = 0
    else:
        order, n_train = np.argsort(parts == 2, kind="stable"), int((parts < 2).sum())
    if n_train == len(y):
        what = "rows" if subjects is None else "subjects"
        raise UserError(
            f"{source}: no class of a site has two {what}, so none can be held out for tests; there are {len(y)} rows"
        )
    x, arguments = make(features, order[:n_train])
    labels, classes = numbered(y)
    in_turn = classes == tuple(map(str, range(len(classes))))
    sites, group_names = (None, ()) if groups is None else numbered(groups)
    notes = [] if in_turn else [numbering(name, classes)]
    data = assemble(
        name,
        x[order],
        labels[order],
        n_train,
        classes=() if in_turn else classes,
        rows=order,
        groups=None if sites is None else sites[order],
        subjects=None if subjects is None else subjects[order],
        notes=[*(f"{name}: {note}" for note in _notes(features, y, groups, subjects, parts)), *notes],
        **arguments,
    )
    return replace(data, group_names=group_names)


def _strata(y: Array, groups: Array | None) -> Indices:
    """The number of each row's pair of class and site."""
    import pandas as pd

    return pd.factorize(y if groups is None else pd.MultiIndex.from_arrays([y, groups]))[0].astype(np.int64)


def _notes(features: Columns, y: Array, groups: Array | None, subjects: Array | None, parts: Array) -> list[str]:
    """List what a user should know of a table that can be read."""
    notes = []
    for column, (kind, values) in features.items():
        if odd := odd_numbers(column, values) if kind == "number" else "":
            notes.append(f"the column {column!r} {odd}")
        for value in far_values(values) if kind == "number" else ():
            rows = np.flatnonzero(values == value).tolist()
            notes.append(
                f"the column {column!r} holds {value:g} in {counted(rows, 'row')} (the first: row {rows[0] + 1}), over "
                "a thousand standard deviations from its other values; if it stands for a missing number, leave these "
                "cells empty"
            )
    gaps = {column: np.mean([v is None or v != v for v in values]) for column, (_, values) in features.items()}
    if lacking := {column: share for column, share in gaps.items() if share}:
        listed = ", ".join(f"{column} ({100 * share:.3g} %)" for column, share in lacking.items())
        notes.append(f"columns that lack values: {listed}")
    if groups is not None:
        notes += _site_notes(features, y, groups, parts < 2)
    if subjects is not None:
        notes += subject_notes(subjects, groups, "row")
    notes += _duplicates(features, y, groups, parts)
    return notes


def _doubts(features: Columns, y: Array, groups: Array | None, subjects: Array | None) -> dict[str, str]:
    """Reasons why a decision on a table means little, by the name that `--accept` takes."""
    doubts = {}
    for column, (kind, values) in features.items():
        if (share := telling(kind, values, y)) >= TELLING:
            doubts[column] = (
                f"the column {column!r} alone tells the label of {100 * share:.3g} % of rows (the mean over classes); "
                "if it is known only after the label, or is another form of it, add it to `leave_out` (--leave-out)"
            )
    if subjects is None and (repeats := repeated(features, y, groups)):
        near, looked = repeats
        doubts["repeats"] = (
            f"{near} of {looked} rows are nearly equal to another row of their site with the same label: if persons "
            "have several rows, name the column that says of whom a row is in `subject_column` (--subject)"
        )
    return doubts


def _site_notes(features: Columns, y: Array, groups: Array, trained: Array) -> list[str]:
    notes = []
    for site in np.unique(groups):
        at = groups == site
        if (for_training := int(trained[at].sum())) in (0, at.sum()):
            notes.append(f"site {site} has no row {'to train on' if not for_training else 'for tests'}")
        if (rows := int(at.sum())) < LEAST:
            notes.append(f"site {site} has {rows} row{'s' * (rows != 1)}, too few for a test that says much")
        if len(np.unique(y[at])) == 1:
            notes.append(f"site {site} has one class only, {y[at][0]}; any constant answer is right there")
        for column, (_, values) in features.items():
            if all(value is None or value != value for value in values[at]):
                notes.append(f"site {site} has no value in the column {column!r}")
    return notes


def _unnamed_subjects(columns: Mapping[str, Any], known: Set[str]) -> list[str]:
    """Hint at columns by whose names and repetitions several rows may be of one subject."""
    hints = []
    for column in [column for column in columns if column not in known and _SUBJECT.fullmatch(column)]:
        values = present(plain(columns[column]))
        if LEAST < (count := len(set(values.tolist()))) < len(values):
            hints.append(
                f"the column {column!r} has {count} values in {len(values)} rows: if it says of whom a row is, name it "
                "in `subject_column`; else rows of one are both trained on and tested on"
            )
    return hints


def _duplicates(features: Columns, y: Array, groups: Array | None, parts: Array) -> list[str]:
    """Notes on rows that are equal, their labels included, as they stand in the table."""
    rows = zip(*(values.tolist() for _, values in features.values()), y.tolist(), strict=True)
    equal = equal_places(tuple(None if value != value else value for value in row) for row in rows)
    return notes_on_copies(equal, parts, groups, "row", lambda row: f"row {row + 1}")
