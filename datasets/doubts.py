"""Columns and rows of a table that make a comparison mean little: what tells the label, names a row, is a date, or
comes again."""

import re

import numpy as np
import numpy.typing as npt

from bench.data import Array, Floats
from datasets.columns import MOST_CATEGORIES, ColumnKind, Columns, numbered

FEW = 20  # rows, up to which nothing is said
TELLING = 0.94
"""Balanced accuracy from which a single column tells the label."""
_APART = 0.5  # of one class from all others by a single limit, below which no tree of several is tried
_FEWEST = 5  # rows of a class, below which it is left out
_ID = re.compile(
    r"(.*[ _.-])?(id|mrn|nr|no|key|uuid|identifier|record|accession|case ?(no|nr|number)|(pat|patient)nr)", re.I
)
_DIGITS = 5  # whole numbers with as many digits, all different, look like identifiers
_NEARER = 4.0  # times
_SITES, _QUERIES, _LEAST_ROWS = 20, 200, 10
_REPEATED = 0.3  # share of rows


def telling(kind: ColumnKind, values: Array, y: Array) -> float:
    """Find how well a column alone tells the label, as balanced accuracy; 0 where there is too little to say.

    By its categories, or a number's values where each occurs often, a row's label is told from all other rows; by
    as many intervals of its numbers as there are classes; and by where the column has no value.
    """
    names, counts = np.unique(y, return_counts=True)
    enough = np.isin(y, names[counts >= _FEWEST])
    labels, y = np.unique(y[enough], return_inverse=True)
    values = values[enough]
    if len(y) <= FEW or len(labels) < 2:
        return 0.0
    if kind == "category":
        return _by_values(numbered(np.array([str(value) for value in values]))[0], y)
    gaps = np.isnan(values)
    distinct, codes = np.unique(values, return_inverse=True)
    by_code = _by_values(codes, y) if len(distinct) <= MOST_CATEGORIES else 0.0
    if gaps.all() or len(distinct) < 2:
        return by_code
    by_number = _by_intervals(values, y, len(labels))
    return max(by_code, by_number, _by_values(gaps.astype(np.int64), y))


def _by_intervals(values: Floats, y: Array, classes: int) -> float:
    """Balanced accuracy of as many intervals of a number as there are classes, gaps being at either end."""
    filled = np.where(np.isnan(values), np.nanmin(values) - 1, values)
    order = np.argsort(filled, kind="stable")
    ends = np.flatnonzero(np.diff(filled[order], append=np.inf))
    below = np.cumsum(np.eye(classes)[y[order]], axis=0)[ends]  # rows of each class up to each value
    others = below.sum(axis=1, keepdims=True) - below
    apart = float(np.abs(below / below[-1] - others / others[-1]).max())
    if classes == 2 or apart < _APART:
        return (1 + apart) / classes
    from sklearn.metrics import recall_score
    from sklearn.tree import DecisionTreeClassifier

    tree = DecisionTreeClassifier(max_leaf_nodes=classes, class_weight="balanced", random_state=0)
    told = tree.fit(filled[:, None], y).predict(filled[:, None])
    return float(recall_score(y, told, average="macro", zero_division=0))


def _by_values(codes: npt.NDArray[np.int64], y: Array) -> float:
    """Balanced accuracy with which the most likely class of a value, by all other rows, is a row's."""
    if 5 * len(np.unique(codes)) > len(y):
        return 0.0
    sizes = np.bincount(y)
    counts = np.zeros((codes.max() + 1, len(sizes)))
    np.add.at(counts, (codes, y), 1.0)
    others = counts[codes]
    others[np.arange(len(y)), y] -= 1
    chances = others / sizes
    right = (chances.argmax(axis=1) == y) & (chances.max(axis=1) > 0)
    return float(np.mean(np.bincount(y, weights=right) / sizes))


def odd_numbers(name: str, values: Floats) -> str:
    """Say what a column of numbers rather is, dates or identifiers, and the remedy; empty for a measurement."""
    held = values[~np.isnan(values)]
    if len(held) <= FEW or (held != np.rint(held)).any():
        return ""
    shown = f"such as {held[0]:.0f}"
    if _dates(held) or _epoch(held):
        return (
            f"holds dates as numbers, {shown}: make days since a date of them or add it to `leave_out` (--leave-out); "
            "if models are for later rows, mark these for tests in a column of parts (--part)"
        )
    if len(np.unique(held)) == len(held):
        digits = np.floor(np.log10(np.maximum(np.abs(held), 1)))
        if _ID.fullmatch(name.strip()) or (digits[0] >= _DIGITS and np.ptp(digits) == 0):
            return (
                f"holds another whole number in each row, {shown}: if it names the rows, add it to `leave_out` "
                "(--leave-out)"
            )
    return ""


def _dates(held: Floats) -> bool:
    """Whether these are dates as year, month and day, or as year and month, in one number."""
    if held.min() >= 19000101 and held.max() <= 21001231:
        months, days = held // 100 % 100, held % 100
        return bool(((months >= 1) & (months <= 12) & (days >= 1) & (days <= 31)).all())
    months = held % 100
    spread = len(np.unique(held)) > 2
    return bool(spread and held.min() >= 190001 and held.max() <= 210012 and ((months >= 1) & (months <= 12)).all())


def _epoch(held: Floats) -> bool:
    """Whether these are seconds since 1970, or thousandths or less of them, of the years 2001 to 2039."""
    return any(
        1e9 * unit <= held.min() and held.max() < 2.2e9 * unit and bool((held % (1e4 * unit)).any())
        for unit in (1.0, 1e3, 1e6, 1e9)
    )


def repeated(features: Columns, y: Array, groups: Array | None) -> tuple[int, int] | None:
    """Look for several rows of one person: rows nearly equal to another of their site, as rows of other sites are not.

    The distance to the nearest row of the site is compared with that to the nearest of as many rows of other sites: how
    near independent rows are depends on the table, and the other sites show it. It is measured in the standard
    deviations of each site, as units may differ, and in those of the table, as rounded numbers are then on one lattice.

    Returns:
        Numbers of rows that are `_NEARER` times as near to one with the same label, and of rows looked at; None if
        these are not many.
    """
    if groups is None:
        return None
    from scipy.spatial.distance import cdist

    x = _as_numbers(features)
    names, site, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    by_site = np.zeros_like(x)
    for number in range(len(names)):
        by_site[site == number] = _standardised(x[site == number])
    scales, rng = (by_site, _standardised(x)), np.random.default_rng(0)
    near = looked = 0
    for number in np.flatnonzero((sizes >= _LEAST_ROWS) & (sizes <= len(y) / 2))[:_SITES]:
        here = np.flatnonzero(site == number)
        asked = rng.choice(len(here), min(_QUERIES, len(here)), replace=False)
        there = rng.choice(np.flatnonzero(site != number), len(here) - 1, replace=False)
        repeats = np.ones(len(asked), bool)
        for rows in scales:
            inside = cdist(rows[here[asked]], rows[here])
            inside[np.arange(len(asked)), asked] = np.inf
            outside = cdist(rows[here[asked]], rows[there]).min(axis=1)
            same = y[here[asked]] == y[here[inside.argmin(axis=1)]]
            repeats &= same & (_NEARER * inside.min(axis=1) < outside)
        near += int(repeats.sum())
        looked += len(asked)
    return (near, looked) if looked > FEW and near >= _REPEATED * looked else None


def _as_numbers(features: Columns) -> Floats:
    """Rows `[rows, columns]`, with a number for each category and the mean in gaps."""
    columns = []
    for kind, values in features.values():
        if kind == "category":
            known = {text: place for place, text in enumerate(dict.fromkeys(values))}
            values = np.array([known[text] for text in values], float)
        columns.append(np.where(np.isnan(values), np.nanmean(values), values))
    return np.stack(columns, axis=1)


def _standardised(rows: Floats) -> Floats:
    spread = rows.std(axis=0)
    scaled: Floats = (rows - rows.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return scaled
