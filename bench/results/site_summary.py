"""A summary of a site's table that may be shared before anything else: counts, shares, means, deviations, with noise.

The noise makes the file differentially private (Dwork et al. 2006, "Calibrating noise to sensitivity in private data
analysis"): with or without any one row, or subject, each file is as likely but for a factor of exp(epsilon). What rows
may add is bounded by ranges and categories that are agreed before anybody looks at data; everything is counted in whole
numbers, and the noise is drawn exactly (Canonne, Kamath and Steinke 2020, "The discrete Gaussian for differential
privacy", algorithm 2). How long the command takes is not protected, and every further file adds its epsilon.
"""

import json
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bench.errors import UserError
from bench.places import check_file, check_output_file
from bench.plugin import DATASETS

STEPS = 1000
"""Parts of half a range in which numbers are counted."""
PURPOSE = "a site's table before anything is shared, by bench data --summary"
ABSENT = [
    "rows, names and texts of the table, and categories that the bounds do not list",
    "a learning curve: of a site with few rows none can be given that says much and protects single rows",
    "how columns go together with each other or with the label",
]
Noise = Callable[[Fraction], int]


def read_bounds(file: Path) -> dict[str, list[str] | tuple[float, float]]:
    """Read the bounds that all sites have agreed on: of each column its categories, or the ends of its range.

    Raises:
        UserError: the file is missing, or an entry is neither a list of texts nor `LOW to HIGH`.
    """
    check_file(file, "file of bounds", "give one")
    content = yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    if not isinstance(content, dict) or not content:
        raise UserError(f"{file}: should name columns, such as `age: 18 to 100` and `smoker: [yes, no]`")
    bounds: dict[str, list[str] | tuple[float, float]] = {}
    for column, entry in content.items():
        if isinstance(entry, list) and len(set(entry)) == len(entry) > 1 and all(isinstance(v, str) for v in entry):
            bounds[column] = entry
            continue
        try:
            low, high = map(float, str(entry).split(" to "))
        except ValueError:
            low = high = 0.0
        if not low < high or not math.isfinite(high - low):
            raise UserError(
                f"{file}: {column}: {entry}: should be a range such as `18 to 100`, or a list of categories"
            )
        bounds[column] = low, high
    return bounds


def discrete_laplace(scale: Fraction) -> int:
    """Draw a whole number with probabilities in proportion to exp(-|number| / scale), exactly."""
    while True:
        part = secrets.randbelow(scale.numerator)
        if not _happens(Fraction(part, scale.numerator)):
            continue
        whole = 0
        while _happens(Fraction(1)):
            whole += 1
        size = (part + scale.numerator * whole) // scale.denominator
        negative = secrets.randbelow(2) == 1
        if size or not negative:
            return -size if negative else size


def _happens(exponent: Fraction) -> bool:
    """Say yes with the probability exp(-exponent), of an exponent from 0 to 1."""
    count = 1
    while secrets.randbelow(exponent.denominator * count) < exponent.numerator:
        count += 1
    return count % 2 == 1


def totals(
    columns: Mapping[str, Sequence[Any]], bounds: Mapping[str, list[str] | tuple[float, float]]
) -> dict[str, dict[str, int]]:
    """Whole numbers of which a summary is made; any one row changes those of a column by `sensitivity` in sum at most.

    Args:
        columns: values as texts or numbers, None where there is none.
        bounds: of all of them.
    """
    counted: dict[str, dict[str, int]] = {}
    for column, bound in bounds.items():
        values = columns[column]
        if isinstance(bound, list):
            counts = {name: sum(value == name for value in values) for name in bound}
            counted[column] = {**counts, "": len(values) - sum(counts.values())}
            continue
        half, middle = (bound[1] - bound[0]) / 2, (bound[0] + bound[1]) / 2
        held = np.array([float(value) for value in values if value is not None])
        units = np.rint(STEPS * np.clip((held - middle) / half, -1, 1)).astype(np.int64)
        squares = np.rint(units**2 / STEPS).astype(np.int64)
        counted[column] = {
            "present": STEPS * len(held), "missing": STEPS * (len(values) - len(held)),
            "sum": int(units.sum()), "squares": int(squares.sum()),
        }  # fmt: skip
    return counted


def sensitivity(bound: list[str] | tuple[float, float]) -> int:
    """The sum of a row's changes to a column's totals: a count by 1; or count, sum and squares by `STEPS` each."""
    return 1 if isinstance(bound, list) else 3 * STEPS


def summarise(
    columns: Mapping[str, Sequence[Any]], label: str, bounds: Mapping[str, list[str] | tuple[float, float]],
    epsilon: Fraction, unit: str = "row", noise: Noise = discrete_laplace,
) -> dict[str, Any]:  # fmt: skip
    """Make the summary, as values that JSON can hold; the label and each column have equal parts of epsilon.

    Args:
        columns: values of the table's columns, one for each row, or each subject.
        label: the column of labels, whose bounds are categories.
        bounds: of the columns that are told.
        epsilon: of the whole file.
        unit: what is protected.
        noise: draws a whole number for a scale.
    """
    share = epsilon / len(bounds)
    entries: dict[str, Any] = {}
    for column, of in totals(columns, bounds).items():
        bound, scale = bounds[column], sensitivity(bounds[column]) / share
        noisy = {name: value + noise(scale) for name, value in of.items()}
        entries[column] = _categories(noisy, scale) if isinstance(bound, list) else _number(noisy, bound, scale)
    about = {
        "purpose": PURPOSE,
        "private": f"epsilon {float(epsilon):g} for each {unit}, added or removed; of a column {float(share):.3g}",
        "noise": "Laplace, of the scales below; the time that the command took is not protected",
        "again": "with a second file of the same table the epsilons add up",
        "not in it": ABSENT,
    }
    rows = {column: entry.pop("rows") for column, entry in entries.items() if "rows" in entry}
    of_label = {label: entries.pop(label)}
    return {"about": about, "rows": rows[label], "label": of_label, "columns": entries}


def _categories(noisy: dict[str, int], scale: Fraction) -> dict[str, Any]:
    counts = {name or "others or missing": max(0, count) for name, count in noisy.items()}
    total = sum(counts.values())
    shares = {name: round(count / total, 3) if total else None for name, count in counts.items()}
    return {"rows": total, "shares": shares, "noise of a count": round(float(scale), 2)}


def _number(noisy: dict[str, int], bound: tuple[float, float], scale: Fraction) -> dict[str, Any]:
    half, middle = (bound[1] - bound[0]) / 2, (bound[0] + bound[1]) / 2
    present, missing = max(0, noisy["present"]), max(0, noisy["missing"])
    rows = present / STEPS
    known = rows >= 2
    mean = min(1.0, max(-1.0, noisy["sum"] / present)) if known else 0.0
    variance = min(1.0, noisy["squares"] / present - mean**2) if known else 0.0
    return {
        "range": f"{bound[0]:g} to {bound[1]:g}",
        "mean": float(f"{middle + half * mean:.4g}") if known else None,
        "deviation": float(f"{half * math.sqrt(variance):.3g}") if known and variance > scale / present else None,
        "missing": round(missing / (present + missing), 3) if present + missing else None,
        "noise of the mean": float(f"{half * float(scale) / present:.2g}") if known else None,
    }


def summarise_table(
    source: Path, out: Path, label: str, subject: str, bounds: Path | None, epsilon: float | None
) -> str:
    """Write the summary of a table; returns a sentence on it for the site itself, which is not in the file.

    Args:
        source: the table.
        out: the file.
        label: the column of labels.
        subject: the column that says of whom a row is: the first row of each counts; empty if each stands for itself.
        bounds: the file of bounds; columns that it does not name are left out.
        epsilon: of the whole file.

    Raises:
        UserError: an option lacks, a column is not there, or one with a range holds what is no number.
    """
    if bounds is None or epsilon is None or not 0 < epsilon < math.inf:
        raise UserError(
            "--summary: needs --epsilon above 0 and --bounds FILE, ranges and categories that sites agreed on"
        )
    if check_output_file(out, "--summary").suffix.lower() != ".json":
        raise UserError(f"--summary {out}: the name of a summary ends in .json")
    bound = read_bounds(bounds)
    if not isinstance(bound.get(label), list):
        raise UserError(f"{bounds}: should list the classes of the column of labels (--label), here {label!r}")
    numeric = {column: not isinstance(entry, list) for column, entry in bound.items()}
    columns, left_out = DATASETS.offered("csv", "values")(source, numeric, subject)
    unit = "subject" if subject else "row"
    summary = summarise(columns, label, bound, Fraction(epsilon), unit)
    out.write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    told = f"{out}: of {len(bound)} columns, epsilon {epsilon:g} for each {unit}"
    return f"{told}; left out: {', '.join(left_out) or 'none'}"
