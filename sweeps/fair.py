"""What a study chose for each method, and whether the comparison is fair: budgets, ranges, settings at an edge."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.errors import UserError
from bench.settings import Settings
from reports.tables import Column, Entry, Table, number, words
from sweeps.study import Arm, Study, values_text

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial


@dataclass(frozen=True)
class Choice:
    """The setting chosen for one arm.

    Attributes:
        arm: the method and its task.
        trials: all that have ended, by number.
        best: the trial with the best validation accuracy; of a Pareto front, the one with the best mean of both. None:
            no trial came to its end.
        counts: trials by state.
    """

    arm: Arm
    trials: "tuple[FrozenTrial, ...]"
    best: "FrozenTrial | None"
    counts: dict[str, int]

    @property
    def at_edge(self) -> list[str]:
        """Searched settings whose chosen value lies at an end of its range."""
        if self.best is None:
            return []
        return [one.name for one in self.arm.dimensions if one.at_edge(self.best.params[one.key])]


def choose(study: Study, studies: "dict[str, optuna.Study]") -> list[Choice]:
    """The best trial of each arm; of equals, the first."""
    from optuna.trial import TrialState

    choices = []
    for arm in study.arms:
        trials = studies[arm.name].get_trials(deepcopy=False)
        ended = tuple(trial for trial in trials if trial.state.is_finished())
        complete = [trial for trial in ended if trial.state == TrialState.COMPLETE]
        best = max(complete, key=lambda trial: (sum(trial.values), -trial.number), default=None)
        counts = Counter(trial.state.name.lower() for trial in trials if trial.state != TrialState.WAITING)
        choices.append(Choice(arm, ended, best, dict(counts)))
    return choices


def reported_cells(study: Study, choices: Sequence[Choice]) -> list[Settings]:
    """The chosen settings on the reporting seeds.

    Raises:
        UserError: no trial of any method came to its end.
    """
    cells = [
        cell
        for choice in choices
        if choice.best
        for cell in choice.arm.reported(choice.best.params, study.file.report_seeds)
    ]
    if not cells:
        raise UserError(f"no trial of the study {study.name!r} came to its end: all were pruned, diverged or failed")
    return cells


def budget_table(study: Study, choices: Sequence[Choice]) -> Table:
    """Per method and task: trials, rounds, ranges, the setting chosen, and what lies at the edge of its range."""
    heads = ("task", "trials", "pruned", "rounds", "range", "chosen", "validation", "at the edge")
    rows = tuple((choice.arm.label, _entries(study, choice)) for choice in choices)
    budgets = {(sum(choice.counts.values()), choice.arm.cells[0].rounds) for choice in choices}
    equal = "Every method had the same number of trials and of rounds."
    unequal = "The budgets differ: the methods did not have the same number of trials and rounds."
    caption = (
        f"Tuned by validation accuracy ({' and '.join(name.upper() for name in study.metrics)}, the best round of the "
        f"mean over the seeds {_list(study.file.seeds)}); trials have no test split. The chosen settings were run anew "
        f"on the seeds {_list(study.file.report_seeds)}: all test figures are of those runs."
    )
    notes = (
        *([equal if len(budgets) == 1 else unequal] if len(choices) > 1 else []),
        f"Sampler {study.file.sampler}, pruner {study.file.pruner}. A value within 5 % of an end of its range, or the "
        "least or greatest of a list, is at the edge: a wider range may hold a better one.",
    )
    return Table(
        "tuning", "Tuning budgets and chosen settings", caption, "Method", tuple(map(Column, heads)), rows, notes
    )


def _entries(study: Study, choice: Choice) -> tuple[Entry, ...]:
    arm, best = choice.arm, choice.best
    ranges = "; ".join(f"{one.name}: {one.text}" for one in arm.dimensions)
    return (
        words(arm.task),
        number(sum(choice.counts.values()), decimals=0),
        number(choice.counts.get("pruned", 0), decimals=0),
        number(arm.cells[0].rounds, decimals=0),
        words(ranges),
        words(values_text(best.params) if best else "none: no trial came to its end"),
        words(" / ".join(f"{100 * value:.2f}" for value in best.values) if best else "–"),
        words(", ".join(choice.at_edge) or "–"),
    )


def trials_table(choice: Choice, name: str) -> Table:
    """Every trial of an arm that has ended."""
    dimensions = choice.arm.dimensions
    heads = [*(one.name for one in dimensions), "state", "GM", "PM", "remark"]
    rows = tuple(
        (str(trial.number), (*(_value(trial.params[one.key]) for one in dimensions), *_result(trial)))
        for trial in choice.trials
    )
    title = f"Trials of {choice.arm.label}, {choice.arm.task}"
    caption = "Validation accuracy in percent at the best round of the mean over the tuning seeds."
    return Table(name, title, caption, "Trial", tuple(map(Column, heads)), rows)


def _value(value: Any) -> Entry:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return Entry(value=value, decimals=6 if isinstance(value, float) else 0) if plain else words(str(value))


def _result(trial: "FrozenTrial") -> tuple[Entry, ...]:
    figures = [trial.user_attrs.get(metric) for metric in ("gm", "pm")]
    return (
        words(trial.state.name.lower()),
        *(words("–") if figure is None else number(100 * figure) for figure in figures),
        words(trial.user_attrs.get("reason", "")),
    )


def _list(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))
