"""The worth of noise, and all that it does not cover, as finished cells say it in their `privacy.json`."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

PROTECTED = ("client", "sample")
"""What a statement may be about; tables have a column for each."""

Statement = dict[str, Any]


def epsilons(statements: Iterable[Statement]) -> dict[str, float]:
    """The epsilon of each kind of protection; nan where the cell has no noise for it, infinite where the noise is 0."""
    known = {statement["protects"]: statement["epsilon"] for statement in statements}
    return {kind: math.inf if known.get(kind, 0) is None else known.get(kind, math.nan) for kind in PROTECTED}


def epsilon_text(values: Iterable[float]) -> str:
    """The largest epsilon of several cells as text, rounded up, as it is a bound; empty where they have no noise."""
    known = [value for value in values if not math.isnan(value)]
    return "" if not known else "∞" if math.isinf(max(known)) else f"{math.ceil(round(100 * max(known), 6)) / 100:.2f}"


def privacy_notes(cells: Iterable[tuple[str, Sequence[Statement]]]) -> list[str]:
    """Say in one line for all rows alike what epsilon means, what is not protected, and what more is not in some rows.

    Args:
        cells: name of a row, and the statements of one of its cells.
    """
    rows: dict[str, dict[str, dict[str, None]]] = {}
    for name, statements in cells:
        for statement in statements:
            rows.setdefault(_meaning(statement), {}).setdefault(name, {}).update(
                dict.fromkeys(statement["unprotected"])
            )
    return [_note(text, gaps) for text, gaps in rows.items()]


def _meaning(statement: Statement) -> str:
    sampling = f"; sampling {statement['sampling']}" if statement["sampling"] != "none" else ""
    return (
        f"ε protects a {statement['protects']} ({statement['adjacency']}, δ = {statement['delta']:g}, "
        f"{statement['accountant']}{sampling})"
    )


def _note(text: str, gaps: dict[str, dict[str, None]]) -> str:
    common = [gap for gap in next(iter(gaps.values())) if all(gap in of_row for of_row in gaps.values())]
    more: dict[str, list[str]] = {}
    for name, of_row in gaps.items():
        if further := "; ".join(gap for gap in of_row if gap not in common):
            more.setdefault(further, []).append(name)
    also = [f"Nor, in {', '.join(names)}: {further}" for further, names in more.items()]
    return ". ".join([f"{', '.join(gaps)}: {text}", f"Not protected: {'; '.join(common)}", *also])
