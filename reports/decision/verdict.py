"""Answers to a consortium's questions from the evidence, each with its interval.

Methods are chosen by validation accuracy and judged on test samples, of which no choice of a round, a setting or a
method has seen any: so the best of many is not flattered. Test samples are a random part of each site's samples, or of
the subjects that these are of; given the models, their results are independent of what chose them.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from bench.data import Floats
from reports.decision.evidence import Candidate, Evidence
from reports.statistics.crossed import CrossedMean, crossed_mean, more_samples, more_seeds

ALONE, GENERIC, FINE_TUNED = "local", "fedavg", "finetune"
"""The methods that every decision is about: training alone, a single model for all, and that model fine-tuned."""

Answer = Literal["yes", "no", "undecided"]
SiteAnswer = Literal["gains", "loses", "no difference", "undecided"]
ENOUGH_SEEDS = 20
"""More of them are no advice."""


@dataclass(frozen=True)
class Question:
    """Is a method better than a simpler one by more than the margin, or at all?

    Attributes:
        better, than: the methods.
        gain: of `better` over `than`, on all test samples.
        answer: `no` if all of the interval is at most the margin; else `yes` if all of it is above 0.
        samples, seeds: about how many would decide it if the gain stays as it is, the other number being the same;
            None where it is decided, or where no such number would.
        samples_beside: about how many would beside `ENOUGH_SEEDS` seeds.
    """

    better: str
    than: str
    gain: CrossedMean
    answer: Answer
    samples: int | None = None
    seeds: int | None = None
    samples_beside: int | None = None


@dataclass(frozen=True)
class SiteGain:
    """The gain of a site over training alone; the intervals of all sites hold together."""

    name: str
    gain: CrossedMean
    answer: SiteAnswer


@dataclass(frozen=True)
class ConsortiumVerdict:
    """Verdict on the evidence.

    Attributes:
        margin: of equivalence, in points.
        level: probability that an interval misses.
        together: does any method of training together beat training alone?
        personal: does any method with personal models beat a single model?
        beyond: does any other of them beat fine-tuning?
        method: what is recommended; empty where that is undecided.
        passed_over: methods that are not recommended, though the answers would have it, as they are not shown to beat
            training alone, with their gains over it.
        single: whether the recommended method has one model for all.
        judged: the method whose gains by site are shown: the recommended, or the best by validation.
        average: its gain over training alone on all test samples.
        sites: in the data's order.
        most: the site that gains, and more than every other that has test samples, if that is shown.
        reason: why nothing can be said, where the runs of one of the three basic methods lack.
    """

    margin: float
    level: float
    together: Question | None = None
    personal: Question | None = None
    beyond: Question | None = None
    method: str = ""
    passed_over: tuple[tuple[str, CrossedMean], ...] = ()
    single: bool = False
    judged: str = ""
    average: CrossedMean | None = None
    sites: tuple[SiteGain, ...] = ()
    most: str = ""
    reason: str = ""


def decide(evidence: Evidence, margin: float, level: float) -> ConsortiumVerdict:
    """Answer the questions.

    Args:
        evidence: of all methods.
        margin: of equivalence, in points.
        level: probability that an interval misses.
    """
    for name in (ALONE, GENERIC, FINE_TUNED):
        if name not in evidence.candidates:
            return ConsortiumVerdict(
                margin, level, reason=f"{name} has no result ({evidence.missing.get(name, 'not run')})"
            )
    if len(evidence.seeds) < 2:
        return ConsortiumVerdict(margin, level, reason="there is a single seed, which shows no spread")
    federated = [candidate for candidate in evidence.candidates.values() if candidate.name != ALONE]
    personal = [candidate for candidate in federated if candidate.personal]
    others = [candidate for candidate in personal if candidate.name != FINE_TUNED]
    together = _ask(evidence, _best(federated), ALONE, margin, level)
    single = _ask(evidence, _best(personal), GENERIC, margin, level)
    beyond = _ask(evidence, _best(others), FINE_TUNED, margin, level) if others else None
    gains = {
        name: crossed_mean(candidate.correct - evidence.candidates[ALONE].correct, level, evidence.subject)
        for name, candidate in evidence.candidates.items()
    }
    simplest = _simplest(together, single, beyond)
    if single.answer == "yes":
        simplest = [name for name in simplest if evidence.candidates[name].personal]
    method = next((name for name in simplest if name == ALONE or gains[name].low > 0), "")
    passed_over = tuple((name, gains[name]) for name in simplest[: simplest.index(method)]) if method else ()
    one_model = method not in ("", ALONE) and not evidence.candidates[method].personal
    judged = method if method not in ("", ALONE) else together.better
    sites = _by_site(evidence, evidence.candidates[judged], margin, level)
    return ConsortiumVerdict(
        margin, level, together, single, beyond, method, passed_over, one_model, judged, gains[judged], sites,
        _most(sites),
    )  # fmt: skip


def answer(gain: CrossedMean, margin: float) -> Answer:
    """Answer whether there is a gain; one that is shown to be within the margin is none that counts."""
    if math.isnan(gain.low):
        return "undecided"
    if gain.high <= margin:
        return "no"
    return "yes" if gain.low > 0 else "undecided"


def _ask(evidence: Evidence, better: Candidate, than: str, margin: float, level: float) -> Question:
    gain = crossed_mean(better.correct - evidence.candidates[than].correct, level, evidence.subject)
    said = answer(gain, margin)
    if said != "undecided" or math.isnan(gain.low):
        return Question(better.name, than, gain, said)
    half = max(gain.mean, margin - gain.mean)  # then one end of the interval leaves what is undecided
    seeds = more_seeds(gain, half)
    beside = more_samples(replace(gain, by_seeds=gain.by_seeds * gain.seeds / ENOUGH_SEEDS), half)
    enough = max(seeds, gain.seeds + 1) if seeds and seeds <= ENOUGH_SEEDS > gain.seeds else None
    return Question(better.name, than, gain, said, more_samples(gain, half), enough, beside)


def _best(candidates: list[Candidate]) -> Candidate:
    return max(candidates, key=lambda candidate: candidate.validation)


def _simplest(together: Question, single: Question, beyond: Question | None) -> list[str]:
    """The methods that the answers leave, the simplest first; none while that is undecided.

    The last one is that which beats training alone: those before it are no worse than others, and yet may not do so.
    """
    if together.answer != "yes":
        return [ALONE] if together.answer == "no" else []
    if single.answer != "yes":
        return [GENERIC, FINE_TUNED, together.better] if single.answer == "no" else []
    if beyond is None or beyond.answer == "no":
        return [FINE_TUNED, together.better]
    return [beyond.better, together.better] if beyond.answer == "yes" else []


def _by_site(evidence: Evidence, judged: Candidate, margin: float, level: float) -> tuple[SiteGain, ...]:
    """Gains over training alone with intervals that hold for all sites at once (Bonferroni)."""
    differences: Floats = judged.correct - evidence.candidates[ALONE].correct
    tested = len(np.unique(evidence.site))
    gains = []
    for number, name in enumerate(evidence.sites):
        here = evidence.site == number
        subject = None if evidence.subject is None else evidence.subject[here]
        gain = crossed_mean(differences[here], level / max(1, tested), subject)
        gains.append(SiteGain(name, gain, _of_site(gain, margin)))
    return tuple(gains)


def _of_site(gain: CrossedMean, margin: float) -> SiteAnswer:
    if math.isnan(gain.low):
        return "undecided"
    if gain.low > 0 or gain.high < 0:
        return "gains" if gain.low > 0 else "loses"
    return "no difference" if -margin <= gain.low and gain.high <= margin else "undecided"


def _most(sites: tuple[SiteGain, ...]) -> str:
    """The site that gains and whose interval lies above those of all others that have tests."""
    tested = [site for site in sites if not math.isnan(site.gain.low)]
    for site in (site for site in tested if site.answer == "gains"):
        if len(tested) > 1 and all(site.gain.low > other.gain.high for other in tested if other is not site):
            return site.name
    return ""
