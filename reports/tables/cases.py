"""Effects of a grid's cases: what each costs a method, and what it gives back of a case that it builds on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from reports.reading.load import BENIGN, HEADLINE, Figure, Store
from reports.statistics import inference
from reports.tables.table import Column, Table, TableEntry, number, words


@dataclass(frozen=True)
class Effect:
    """Paired difference of a method between two cases, mean over the tasks that have both."""

    row: str
    case: str
    against: str
    difference: inference.Summary


def pairs_of_cases(store: Store) -> list[tuple[str, str]]:
    """Each case with the reference case, and with the largest case that it extends, if there is one."""
    reference = store.reference_case
    settings = {
        case: {text for cell in part.cells for text in cell.case_settings} for case, part in store.cases.items()
    }
    changed = {case: texts ^ settings[reference] for case, texts in settings.items() if case != reference}
    pairs = []
    for case, changes in changed.items():
        inner = [other for other, others in changed.items() if others and others < changes]
        pairs += [(case, other) for other in (reference, *sorted(inner, key=lambda other: -len(changed[other]))[:1])]
    return pairs


def effects(store: Store, figure: Figure) -> list[Effect]:
    """Compare every method with itself between the cases, unit by unit; without units that both cases have, it is not.

    Args:
        store: cells of one protocol, with cases.
    """
    tasks = {(cell.case, cell.base): cell.task for cell in store.cells}
    changes = []
    for row in store.rows:
        for pair in pairs_of_cases(store):
            bases = [base for case, base in tasks if case == pair[0] and (pair[1], base) in tasks]
            of_case, against = ([tasks[case, base] for base in bases] for case in pair)
            if (of_pair := difference(store, (row, of_case), (row, against), figure)).n:
                changes.append(Effect(row, *pair, of_pair))
    return changes


def difference(
    store: Store, first: tuple[str, list[str]], other: tuple[str, list[str]], figure: Figure
) -> inference.Summary:
    """Difference of two rows in percentage points, each on as many tasks: means over tasks, paired by unit."""
    scores, reference = (mean_scores(store, *entry, figure) for entry in (first, other))
    paired = [scores[unit] - reference[unit] for unit in scores if unit in reference]
    least = math.sqrt(sum(store.least(task, figure.on) ** 2 for task in first[1])) / max(1, len(first[1]))
    return inference.summarise(paired, least=least)


def mean_scores(store: Store, row: str, tasks: Sequence[str], figure: Figure) -> dict[str, float]:
    """Accuracy in percent by unit, mean over tasks; of the units that the row has on all of them."""
    means = store.units(row, figure, tasks).dropna().mean(axis=1)
    return {str(unit): float(mean) for unit, mean in means.items()}


def effect_table(store: Store) -> Table:
    """Differences between cases, method by method."""
    by_figure = {figure: effects(store, figure) for figure in (*HEADLINE, *BENIGN)}
    shown = [figure for figure, of_figure in by_figure.items() if of_figure]
    rows: dict[tuple[str, str, str], dict[Figure, TableEntry]] = {}
    for figure in shown:
        for effect in by_figure[figure]:
            entry = number(effect.difference.mean, signed=True)
            interval = interval_text(effect.difference)
            rows.setdefault((effect.row, effect.case, effect.against), {})[figure] = replace(entry, note=interval)
    caption = (
        "Difference of a method between two cases in percentage points, paired by seed, with Student's 95 % interval. "
        f"Each case is compared with {store.reference_case}, and with the largest case that it extends."
    )
    how = f"Not corrected for the number of intervals. {'; '.join(figure.text for figure in shown)}."
    heads = (Column("case"), Column("against"), *(Column(figure.name) for figure in shown))
    body = [
        (row, (words(case), words(against), *(by_figure.get(figure, words("–")) for figure in shown)))
        for (row, case, against), by_figure in sorted(rows.items(), key=lambda item: store.rows.index(item[0][0]))
    ]
    return Table("cases", "What cases change", caption, "Method", heads, tuple(body), how=how)


def interval_text(difference: inference.Summary) -> str:
    """`[-4.00, -2.20]`; empty where there is no interval."""
    low, high = (number(end, signed=True).number for end in (difference.low, difference.high))
    return f"[{low}, {high}]" if low else ""
