"""Plans of rounds, trials and seeds that fit in the minutes of `bench decide`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

TUNING_SEEDS = (100, 101)
"""Seeds of the trials; those that are reported are below."""
SHORT, LONG = 2, 8
"""Rounds of the cells that are timed."""
SEEDS, MOST_SEEDS = 5, 20
"""Reported seeds that are planned, and how many more the time that is left may add."""
_LADDER = ((60, 16), (60, 10), (40, 10), (40, 6), (25, 6), (25, 4), (15, 4), (15, 2), (8, 2), (8, 1))
"""Rounds and trials, the most wanted first."""
FEW_SEEDS = 3
"""Seeds that are reported first."""
_FIXED = (60, 5)
"""Rounds and trials where the number of seeds is given. No more trials than Optuna draws at random: what it draws later
depends on which of them ended first."""
_FEWER = 5  # methods, where there is little time
_SHARE = 0.7  # of the time that a plan may take: timings of few rounds are rough
_HANDLING = 0.3  # seconds of a cell that its own clock does not count


@dataclass(frozen=True)
class MethodTime:
    """Seconds of a cell of a method: of its start, or of all of it where it has run, and of each round."""

    start: float
    round: float

    def seconds(self, rounds: int) -> float:
        """Seconds of a cell of so many rounds."""
        return _HANDLING + self.start + rounds * self.round


@dataclass(frozen=True)
class Timing:
    """Seconds that cells take on this machine.

    Attributes:
        methods: of each method, the most needed first, in a process that has recorded its steps.
        first: seconds that a process takes longer until it has recorded the steps of all methods.
    """

    methods: dict[str, MethodTime]
    first: float

    @classmethod
    def of(cls, seconds: Mapping[str, Sequence[float]], short: float) -> "Timing":
        """Derive it from the seconds of cells of `LONG` rounds by method, and of a cell of `SHORT` rounds of the first.

        The first cell of a method is the one that records.
        """
        best = {name: min(values) for name, values in seconds.items()}
        long = next(iter(best.values()))
        start = min(short, max(0.0, short - SHORT * (long - short) / (LONG - SHORT)))
        methods = {name: MethodTime(min(start, value), max(0.0, value - start) / LONG) for name, value in best.items()}
        return cls(methods, sum(values[0] - best[name] for name, values in seconds.items()))


@dataclass(frozen=True)
class DecisionPlan:
    """Methods, rounds of each cell, trials of each method, and how many seeds are reported."""

    methods: tuple[str, ...]
    rounds: int
    trials: int
    seeds: int


def seconds_of(plan: DecisionPlan, timing: Timing, jobs: int) -> float:
    """Seconds that a plan takes, about: trials and reported cells are two rounds of processes."""
    cells = plan.trials * len(TUNING_SEEDS) + plan.seeds
    return 2 * timing.first + cells * seed_seconds(plan, timing.methods, jobs)


def seed_seconds(plan: DecisionPlan, times: Mapping[str, MethodTime], jobs: int) -> float:
    """Seconds of a cell of each method, side by side."""
    return sum(times[name].seconds(plan.rounds) for name in plan.methods) / jobs


def fitting(timing: Timing, jobs: int, seconds: float, most_rounds: int) -> DecisionPlan | None:
    """The most wanted plan that fits in so many seconds; None if none does.

    Args:
        timing: of this machine.
        jobs: cells side by side.
        seconds: that there are.
        most_rounds: that a cell may have.
    """
    for plan in _plans(tuple(timing.methods), most_rounds):
        if seconds_of(plan, timing, jobs) <= _SHARE * seconds:
            return plan
    return None


def fixed(timing: Timing, seeds: int, most_rounds: int) -> DecisionPlan:
    """The plan for a given number of seeds, which depends on no time."""
    rounds, trials = _FIXED
    return DecisionPlan(tuple(timing.methods), min(rounds, most_rounds), trials, seeds)


def least_seconds(timing: Timing, jobs: int, most_rounds: int) -> float:
    """Seconds that are needed for the smallest plan."""
    return seconds_of(_plans(tuple(timing.methods), most_rounds)[-1], timing, jobs) / _SHARE


def _plans(methods: tuple[str, ...], most_rounds: int) -> list[DecisionPlan]:
    """The plans, the most wanted first; the last ones do with fewer methods and seeds."""
    plans = [DecisionPlan(methods, min(rounds, most_rounds), trials, SEEDS) for rounds, trials in _LADDER]
    last = plans[-1]
    return [*plans, replace(last, methods=methods[:_FEWER]), replace(last, methods=methods[:_FEWER], seeds=FEW_SEEDS)]
