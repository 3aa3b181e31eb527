"""Answers to a consortium's questions from the evidence, each with its interval.

Methods are chosen by validation rows and judged on held-out rows, of which no choice of a round, a setting or a method
has seen any: so the best of many is not flattered. Held-out rows are a random part of each site's rows, or of the
subjects that these are of; given the models, their results are independent of what chose them.

An answer is for sites, so that sites count alike however many rows they have. Small sites gain most from others and
single ones are seldom decided. So they are also taken together by their size, in groups that are fixed before any
outcome is looked at, and what holds for one group need not hold for another.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from bench.data import Floats, Indices
from reports.decision.evidence import Candidate, Evidence
from reports.statistics.crossed import CrossedMean, crossed_mean, more_samples, more_seeds

ALONE, GENERIC, FINE_TUNED = "local", "fedavg", "finetune"
"""The methods that every decision is about: training alone, a single model for all, and that model fine-tuned."""

Answer = Literal["yes", "no", "undecided"]
SiteAnswer = Literal["gains", "loses", "no difference", "undecided"]
Advice = Literal["together", "alone", "undecided"]
ENOUGH_SEEDS = 20
"""More of them are no advice."""


@dataclass(frozen=True)
class Question:
    """Is a method better than a simpler one by more than the margin, or at all, for any group of sites?

    Attributes:
        better, than: the methods.
        gain: of `better` over `than`, the mean over sites.
        groups: the same of each group of sites; these intervals and that of `gain` hold together.
        answer: `no` if all of every group's interval is at most the margin; else `yes` if all of one is above 0, or all
            of that of the mean.
        samples, seeds: about how many would decide it if the mean over sites stays as it is, the other number being the
            same; None where it is decided, or where no such number would.
        samples_beside: about how many would beside `ENOUGH_SEEDS` seeds.
    """

    better: str
    than: str
    gain: CrossedMean
    groups: tuple[CrossedMean, ...]
    answer: Answer
    samples: int | None = None
    seeds: int | None = None
    samples_beside: int | None = None


@dataclass(frozen=True)
class GroupGain:
    """The gain of sites of similar size over training alone, and what they should do; intervals hold together.

    Attributes:
        name: in words.
        sites: their numbers.
        gain: the mean over them.
        advice: `alone` if the gain is shown to be at most the margin, else `together` if it is shown to be above 0.
    """

    name: str
    sites: tuple[int, ...]
    gain: CrossedMean
    advice: Advice


@dataclass(frozen=True)
class SiteGain:
    """The gain of a site over training alone; the intervals of all sites hold together.

    Attributes:
        name: of the site.
        gain: over training alone.
        answer: in words.
        short: what an undecided site has too little of, `seeds` or `held-out rows`; empty where it has no score.
    """

    name: str
    gain: CrossedMean
    answer: SiteAnswer
    short: str = ""


@dataclass(frozen=True)
class ConsortiumVerdict:
    """Verdict on the evidence.

    Attributes:
        margin: of equivalence, in points.
        level: probability that an interval misses.
        together: does any method of training together beat training alone?
        personal: does any method with personal models beat a single model?
        beyond: does any other of them beat fine-tuning?
        learned: whether any model is shown to beat saying what is most frequent.
        method: what is recommended; empty where that is undecided.
        passed_over: methods that are not recommended, though the answers would have it, as they are not shown to beat
            training alone, with their gains over it.
        single: whether the recommended method has one model for all.
        judged: the method whose gains by site are shown: the recommended, or the best by validation.
        average: its gain over training alone, the mean over sites.
        by_rows: the same, the mean over rows.
        groups: its gains by size of the sites.
        sites: its gains by site, in the data's order.
        most: the site that gains, and more than every other that has a score, if that is shown.
        helpful: the simplest method that is shown to beat training alone, whether or not others are better still.
        reason: why nothing can be said, where the runs of one of the three basic methods lack.
    """

    margin: float
    level: float
    together: Question | None = None
    personal: Question | None = None
    beyond: Question | None = None
    learned: bool = False
    method: str = ""
    passed_over: tuple[tuple[str, CrossedMean], ...] = ()
    single: bool = False
    judged: str = ""
    average: CrossedMean | None = None
    by_rows: CrossedMean | None = None
    groups: tuple[GroupGain, ...] = ()
    sites: tuple[SiteGain, ...] = ()
    most: str = ""
    helpful: str = ""
    reason: str = ""

    @property
    def advice(self) -> set[Advice]:
        """The advice to groups of sites."""
        return {group.advice for group in self.groups}

    @property
    def exceptions(self) -> dict[str, list[SiteGain]]:
        """The sites that lose where their group should train together, and those that gain where it should not."""
        advice = {number: group.advice for group in self.groups for number in group.sites}
        counts = {n: site for n, site in enumerate(self.sites) if n in advice and abs(site.gain.mean) > self.margin}
        return {
            said: [site for n, site in counts.items() if (advice[n], site.answer) == (told, said)]
            for told, said in (("together", "loses"), ("alone", "gains"))
        }

    @property
    def site_advice(self) -> dict[str, Advice]:
        """The advice to each site, by its name: that to its group, unless it is shown to be wrong for the site."""
        turned: dict[Advice, Advice] = {"together": "alone", "alone": "together"}
        exceptions = {site.name for sites in self.exceptions.values() for site in sites}
        return {
            self.sites[number].name: turned[group.advice] if self.sites[number].name in exceptions else group.advice
            for group in self.groups
            for number in group.sites
        }


def decide(evidence: Evidence, margin: float, level: float) -> ConsortiumVerdict:
    """Answer the questions.

    Args:
        evidence: of all methods.
        margin: of equivalence, in points.
        level: probability that an interval misses.
    """
    if reason := _unanswerable(evidence):
        return ConsortiumVerdict(margin, level, reason=reason)
    federated = [candidate for candidate in evidence.candidates.values() if candidate.name != ALONE]
    personal = [candidate for candidate in federated if candidate.personal]
    others = [candidate for candidate in personal if candidate.name != FINE_TUNED]
    together = _ask(evidence, _best(federated), ALONE, margin, level)
    single = _ask(evidence, _best(personal), GENERIC, margin, level)
    beyond = _ask(evidence, _best(others), FINE_TUNED, margin, level) if others else None
    learned = _has_learned(evidence, level)
    simplest = _simplest(together, single, beyond) if learned else []
    if single.answer == "yes":
        simplest = [name for name in simplest if evidence.candidates[name].personal]
    shown = [GENERIC, FINE_TUNED, together.better]
    gains = {name: _gains(evidence, evidence.candidates[name], ALONE, level) for name in {*simplest, *shown} - {ALONE}}
    method = next((name for name in simplest if name == ALONE or _helps(*gains[name], margin)), "")
    passed_over = tuple((name, gains[name][0]) for name in simplest[: simplest.index(method)]) if method else ()
    one_model = method not in ("", ALONE) and not evidence.candidates[method].personal
    judged = method if method not in ("", ALONE) else together.better
    helpful = next((name for name in shown if learned and _helps(*gains[name], margin)), "")
    average, by_group = gains[judged]
    groups = tuple(
        GroupGain(name, sites, gain, _advice(gain, best, margin) if learned else "undecided")
        for (name, sites), gain, best in zip(size_groups(evidence), by_group, together.groups, strict=True)
    )
    sites = _by_site(evidence, evidence.candidates[judged], margin, level)
    everyone = evidence.rows.scored
    by_rows = mean_gain(evidence, evidence.candidates[judged].values, ALONE, level, everyone, by_rows=True)
    return ConsortiumVerdict(
        margin, level, together, single, beyond, learned, method, passed_over, one_model, judged, average, by_rows,
        groups, sites, _most(sites), helpful,
    )  # fmt: skip


def _unanswerable(evidence: Evidence) -> str:
    """The reason why nothing can be said; empty where something can."""
    for name in (ALONE, GENERIC, FINE_TUNED):
        if name not in evidence.candidates:
            return f"{name} has no result ({evidence.missing.get(name, 'not run')})"
    if len(evidence.seeds) < 2:
        return "there is a single seed, which shows no spread"
    return "" if len(evidence.rows.scored) else "no site has held-out rows of two classes, which the score needs"


def size_groups(evidence: Evidence) -> list[tuple[str, tuple[int, ...]]]:
    """The sites that have a score, by the power of ten of their rows, the smallest first: names and numbers."""
    groups: dict[int, list[int]] = {}
    for site in sorted(evidence.rows.scored.tolist(), key=lambda site: evidence.sizes[site]):
        groups.setdefault(len(str(evidence.sizes[site])), []).append(site)
    if len(groups) == 1:
        return [("all sites", tuple(*groups.values()))]
    named = []
    for digits, sites in groups.items():
        name = f"the {len(sites)} sites of {10 ** (digits - 1):,} to {10**digits - 1:,} rows"
        if len(sites) == 1:
            name = f"{evidence.sites[sites[0]]} ({evidence.sizes[sites[0]]:,} rows)"
        named.append((name, tuple(sites)))
    return named


def mean_gain(
    evidence: Evidence,
    values: Floats,
    than: str | Floats,
    level: float,
    sites: Sequence[int] | Indices,
    *,
    by_rows: bool = False,
) -> CrossedMean:
    """The gain of row values over a candidate's, or over others: the mean over sites that count alike.

    Its interval ends at 100 points, more than which only log loss can gain: a row's part in an area under the curve
    may be larger.

    Args:
        evidence: whose rows they are of.
        values, than: `[held-out rows, seeds]`, and a candidate's name or such values.
        level: probability that the interval misses.
        sites: over which the mean is; those without a score are left out.
        by_rows: whether a site counts by its held-out rows instead.
    """
    rows = evidence.rows
    here = np.isin(rows.site, sites) & (rows.share > 0)
    other = evidence.candidates[than].values if isinstance(than, str) else than
    _, of, counts = np.unique(rows.site[here], return_inverse=True, return_counts=True)
    weights = rows.share[here] * (counts[of] if by_rows else 1)
    subject = None if rows.subject is None else rows.subject[here]
    weights = weights / max(weights.sum(), 1e-300)
    gain = crossed_mean(values[here] - other[here], level, subject, weights=weights, strata=rows.stratum[here])
    most = math.inf if evidence.score == "log_loss" else 100.0
    return replace(gain, low=max(gain.low, -most), high=min(gain.high, most))


def answer(gain: CrossedMean, groups: Sequence[CrossedMean], margin: float) -> Answer:
    """Answer whether there is a gain; one that is shown to be within the margin for all groups is none that counts."""
    if all(group.high <= margin for group in groups):
        return "no"
    return "yes" if any(mean.low > 0 for mean in (gain, *groups)) else "undecided"


def _has_learned(evidence: Evidence, level: float) -> bool:
    """Whether a model is shown to beat saying what is most frequent at its site, on average over sites."""
    models = evidence.candidates.values()
    guess, everyone = evidence.guess, evidence.rows.scored
    means = (mean_gain(evidence, model.values, guess, level / len(models), everyone) for model in models)
    return any(mean.low > 0 for mean in means)


def _gains(
    evidence: Evidence, candidate: Candidate, than: str, level: float
) -> tuple[CrossedMean, tuple[CrossedMean, ...]]:
    """The mean gain over sites and those of the groups, with intervals that hold together (Bonferroni)."""
    groups = size_groups(evidence)
    each = level / (len(groups) + 1) if len(groups) > 1 else level
    whole = mean_gain(evidence, candidate.values, than, each, evidence.rows.scored)
    return whole, tuple(mean_gain(evidence, candidate.values, than, each, sites) for _, sites in groups)


def _helps(gain: CrossedMean, groups: Sequence[CrossedMean], margin: float) -> bool:
    return gain.low > 0 or any(group.low > 0 and group.high > margin for group in groups)


def _ask(evidence: Evidence, better: Candidate, than: str, margin: float, level: float) -> Question:
    gain, groups = _gains(evidence, better, than, level)
    said = answer(gain, groups, margin)
    if said != "undecided":
        return Question(better.name, than, gain, groups, said)
    half = max(gain.mean, margin - gain.mean)  # then one end of the interval leaves what is undecided
    return Question(
        better.name, than, gain, groups, said, more_samples(gain, half, gain.seeds),
        more_seeds(gain, half, ENOUGH_SEEDS), more_samples(gain, half, max(ENOUGH_SEEDS, gain.seeds)),
    )  # fmt: skip


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


def _advice(gain: CrossedMean, best: CrossedMean, margin: float) -> Advice:
    """The advice to a group, by its gain with the judged method and with the best by validation."""
    if max(gain.high, best.high) <= margin:
        return "alone"
    return "together" if gain.low > 0 else "undecided"


def _by_site(evidence: Evidence, judged: Candidate, margin: float, level: float) -> tuple[SiteGain, ...]:
    """Gains over training alone with intervals that hold for all sites at once (Bonferroni)."""
    each = level / max(1, len(evidence.rows.scored))
    gains = []
    for number, name in enumerate(evidence.sites):
        gain = mean_gain(evidence, judged.values, ALONE, each, [number])
        said, short = _of_site(gain, margin), ""
        if said == "undecided" and not math.isnan(gain.low):
            half = max(abs(gain.mean), margin - abs(gain.mean))
            short = "held-out rows" if more_seeds(gain, half, ENOUGH_SEEDS) is None else "seeds"
        gains.append(SiteGain(name, gain, said, short))
    return tuple(gains)


def _of_site(gain: CrossedMean, margin: float) -> SiteAnswer:
    if math.isnan(gain.low):
        return "undecided"
    if gain.low > 0 or gain.high < 0:
        return "gains" if gain.low > 0 else "loses"
    return "no difference" if -margin <= gain.low and gain.high <= margin else "undecided"


def _most(sites: tuple[SiteGain, ...]) -> str:
    """The site that gains and whose interval lies above those of all others that have a score."""
    tested = [site for site in sites if not math.isnan(site.gain.low)]
    for site in (site for site in tested if site.answer == "gains"):
        if len(tested) > 1 and all(site.gain.low > other.gain.high for other in tested if other is not site):
            return site.name
    return ""
