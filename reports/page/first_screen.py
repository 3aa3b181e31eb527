"""The first answers of a page: who is best where, how sure that is, by how much over what is simple, at what cost, and
what the run cannot say. One sentence each."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from reports.pictures.tradeoff import mean_costs
from reports.reading.load import GM, PM, Figure, Store
from reports.statistics import inference
from reports.tables.cases import difference, effects, interval_text
from reports.tables.standings import by_unit, derived_rows, family
from reports.tables.table import listed, number

_SIMPLE = {"fedavg": "FedAvg", "finetune": "fine-tuning", "local": "training alone"}
"""What a method should beat to be worth its trouble."""
_NAMED = 3
"""So many names stand in a sentence; of more, their number."""


def answers(store: Store, tuned: Sequence[str]) -> tuple[str, ...]:
    """Answer the questions; figures that a method derives count too, since somebody may deploy them.

    Args:
        tuned: what a study tuned for; empty: nothing was tuned.
    """
    figure = PM if store.whole(PM) else GM
    rows = store.whole(figure)
    if not rows:
        return ("No method has a figure on every task, so that none can be called best.",)
    places = {case: part.tasks for case, part in store.cases.items()} or {task: [task] for task in store.tasks}
    winners = _winners(store, figure, places)
    whole = {row: np.mean([units.mean() for units in by_unit(store, row, store.tasks, figure)]) for row in rows}
    wins = list(winners.values())
    leader = max(rows, key=lambda row: (wins.count(row) if store.cases else 0, whole[row]))
    sentences = [
        *(
            [_who(store, places), _how_sure(store, figure, leader)]
            if len(store.rows) > 1
            else [f"There is one method, `{leader}`, and none to compare it with."]
        ),
        _gains(store, figure, leader),
        *([_of_cases(store, figure, leader)] if store.cases else []),
        _cost(store.cases.get(store.reference_case, store), leader),
        f"The run cannot say {listed(list(_limits(store, figure, leader, tuned)), last='or')}.",
    ]
    return tuple(sentence for sentence in sentences if sentence)


def _winners(store: Store, figure: Figure, places: dict[str, list[str]]) -> dict[str, str]:
    """The row with the highest mean in each place; places are cases, or tasks where there are none."""
    winners = {}
    for place, tasks in places.items():
        by_row = {row: by_unit(store, row, tasks, figure) for row in store.whole(figure, tasks)}
        means = {row: sum(units.mean() for units in of_row) for row, of_row in by_row.items()}
        if means:
            winners[place] = max(means, key=lambda row: means[row])
    return winners


def _who(store: Store, places: dict[str, list[str]]) -> str:
    parts = []
    for figure, models in ((PM, "personalized models"), (GM, "generic model")):
        winners = _winners(store, figure, places)
        derived = derived_rows(store, store.tasks, figure)
        of_row: dict[str, list[str]] = {}
        for place, row in winners.items():
            of_row.setdefault(row, []).append(place)
        names = [
            f"`{row}`{' (derived)' if row in derived else ''} {_where(won, len(places), bool(store.cases))}"
            for row, won in sorted(of_row.items(), key=lambda entry: -len(entry[1]))
        ]
        parts += [f"{models}: {', '.join(names)}"] if names else []
    return f"Best {'; best '.join(parts)}."


def _where(places: Sequence[str], of: int, cases: bool) -> str:
    preposition, kind = ("in", "cases") if cases else ("on", "tasks")
    if len(places) == of > 1:
        return f"{preposition} {'both' if of == 2 else f'all {of}'} {kind}"
    if len(places) <= _NAMED:
        return f"{preposition} {_quoted(places)}"
    return f"{preposition} {len(places)} of {of} {kind}"


def _how_sure(store: Store, figure: Figure, leader: str) -> str:
    """Whether the leader is shown to be better than every other method; with cases, in which."""
    parts = store.cases or {"": store}
    standings = {
        case: family(part, part.tasks, figure, deployed=True).standings.get(leader) for case, part in parts.items()
    }
    known = {case: standing for case, standing in standings.items() if standing is not None}
    if not known:
        return "How sure that is cannot be said: it takes two seeds and two methods with models of their own."
    better = [case for case, standing in known.items() if standing.verdict == "better"]
    if store.cases:
        where = _where(better, len(parts), cases=True) if better else "in no case"
        return f"`{leader}` is shown to be better than every other method {where}."
    over = f"over {len(store.tasks)} tasks" if len(store.tasks) > 1 else f"on {store.tasks[0]}"
    first = known[""]
    if better:
        ends = f"{first.difference:+.2f} [{first.low:+.2f}, {first.high:+.2f}]"
        return f"`{leader}` is shown to be better than every other method {over}, than the next best by {ends} points."
    group = family(store, store.tasks, figure, deployed=True).standings
    counts = Counter(standing.verdict for row, standing in group.items() if row != leader)
    said = (
        f"{counts['worse']} are shown to be worse, {counts['undecided']} undecided, {counts['equivalent']} equivalent"
    )
    return f"`{leader}` has the highest {figure.name} {over}; of {counts.total()} others {said}."


def _gains(store: Store, figure: Figure, leader: str) -> str:
    """The leader's gains over simple methods, as means over tasks, or case by case."""
    rows = {cell.view.settings.method: cell.row for cell in reversed(store.cells)}
    texts, lacking = [], []
    for method, name in _SIMPLE.items():
        if (row := rows.get(method)) is None:
            lacking.append(name)
        elif row != leader:
            blocks = store.cases or {"": store}
            gains = {
                case: difference(store, (leader, part.tasks), (row, part.tasks), figure)
                for case, part in blocks.items()
            }
            shown = [f"{_points(gain)}{case and f' in {_quoted([case])}'}" for case, gain in gains.items() if gain.n]
            texts += [f"against {name} {', '.join(shown)}"] if shown else []
    missing = f" ({' and '.join(lacking)}: not in the grid)" if lacking else ""
    return f"`{leader}`, in points: {'; '.join(texts)}{missing}." if texts else ""


def _of_cases(store: Store, figure: Figure, leader: str) -> str:
    """The changes that each case makes to the leader."""
    against: dict[str, list[str]] = {}
    for effect in effects(store, figure):
        if effect.row == leader:
            against.setdefault(effect.against, []).append(f'"{effect.case}" {_points(effect.difference)}')
    texts = [f'against "{other}": {", ".join(changes)}' for other, changes in against.items()]
    return f"What cases change for `{leader}`, in points: {'; '.join(texts)}." if texts else ""


def _cost(store: Store, leader: str) -> str:
    means = mean_costs(store)
    base = next((cell.row for cell in store.cells if cell.view.settings.method == "fedavg"), "")
    taken, beside = [], []
    for name, unit in (("steps", "steps"), ("megabytes", "MB")):
        cost = float(means[name].get(leader, math.nan))
        factor = cost / float(means[name].get(base, math.nan) or math.nan)
        taken += [] if math.isnan(cost) else [f"{_amount(cost)} {unit}"]
        times = _amount(factor)
        if base != leader and not math.isnan(factor):
            beside.append(f"as many {name}" if times == "1" else f"{times} times its {name}")
    against = f"; against FedAvg, {listed(beside)}" if beside else ""
    return f"In a round of `{leader}` all clients together take {listed(taken)}{against}." if taken else ""


def _amount(number: float) -> str:
    """A number with three digits, and all of them before the point."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _limits(store: Store, figure: Figure, leader: str, tuned: Sequence[str]) -> Iterator[str]:
    seeds = len({cell.seed for cell in store.cells})
    part = store.cases.get(store.reference_case, store)
    standing = family(part, part.tasks, figure, deployed=True).standings.get(leader)
    if seeds == 1:
        yield "how much of a difference is the luck of its one seed"
    elif standing is not None and not 0 < standing.seeds <= seeds:
        needed = f"about {standing.seeds}" if standing.seeds else "more than 10,000"
        yield f"which of two methods one point apart is ahead ({seeds} seeds; {needed} would show it)"
    if not tuned and not any(run.get("draws") for run in store.runs):
        yield "what tuning would change (no setting was tuned)"
    if undone := sum(cell.state != "done" for cell in store.cells):
        yield f"what the {undone} of {len(store.cells)} cells that are not done would show"
    data = listed(list(dict.fromkeys(cell.flat["dataset"] for cell in store.cells)))
    yield f"how the methods do on data other than {data}"


def _points(summary: inference.Summary) -> str:
    return f"{number(summary.mean, signed=True).number} {interval_text(summary)}".strip()


def _quoted(cases: Sequence[str]) -> str:
    return listed([f'"{case}"' for case in cases])
