"""`bench data --summary`: from a site's own table to a file that it may share."""

import math
from fractions import Fraction
from pathlib import Path

from bench.errors import UserError
from bench.places import check_output_file
from bench.plugin import DATASETS
from bench.results.site_summary import read_bounds, summarise, write_summary


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
    write_summary(out, summarise(columns, label, bound, Fraction(epsilon), unit))
    told = f"{out}: of {len(bound)} columns, epsilon {epsilon:g} for each {unit}"
    return f"{told}; left out: {', '.join(left_out) or 'none'}"
