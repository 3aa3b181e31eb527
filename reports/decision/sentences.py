"""A verdict in plain sentences, each with its interval."""

import math
from collections.abc import Sequence

from reports.decision.evidence import Evidence
from reports.decision.verdict import (
    ALONE,
    ENOUGH_SEEDS,
    FINE_TUNED,
    GENERIC,
    Advice,
    ConsortiumVerdict,
    GroupGain,
    Question,
    SiteGain,
    mean_gain,
)
from reports.statistics.crossed import CrossedMean, more_samples

_LISTED = 8  # sites that a sentence names

PLAIN = {
    "local": "training alone",
    "fedavg": "one common model",
    "fedprox": "one common model, near which every site stays",
    "finetune": "a common model, trained further at each site",
    "ditto": "an own model that is pulled towards a common one",
    "ifca": "a model for each cluster of sites",
    "apfl": "a mixture of an own and a common model",
    "fedper": "a common body with an own head",
    "fedrep": "a common body and an own head, trained in turn",
    "fedrod": "an own head beside a common one, for classes that are balanced",
    "lgfedavg": "an own body with a common head",
}
"""The methods that a decision may compare, in plain words."""


def plain(name: str) -> str:
    """A method in plain words, with its name: `one common model (fedavg)`."""
    return f"{PLAIN[name]} ({name})" if name in PLAIN else name


def sentences(verdict: ConsortiumVerdict, evidence: Evidence) -> list[str]:
    """The verdict, the most important first."""
    if verdict.reason:
        return [f"Undecided: {verdict.reason}."]
    assert verdict.together is not None
    if not verdict.learned:
        said = [_nothing_learned(verdict, evidence), *_no_network(verdict, evidence)]
        return [*said, _meanwhile(verdict, evidence), *_needed(verdict, evidence)]
    undecided = "undecided" in verdict.advice
    texts = [
        _recommended(verdict, evidence),
        _together(verdict, evidence),
        *_no_network(verdict, evidence),
        *_groups(verdict),
        *([_meanwhile(verdict, evidence)] if undecided else []),
        *_passed_over(verdict),
        *_sites(verdict),
    ]
    if verdict.together.answer != "no":
        texts += [_personal(verdict), *([_beyond(verdict)] if verdict.beyond else []), _cost(verdict, evidence)]
    return [*texts, *_needed(verdict, evidence)]


def _no_network(verdict: ConsortiumVerdict, evidence: Evidence) -> list[str]:
    """Say which model from outside beats every network by more than the margin, if one does: the simplest such."""
    for model in evidence.baselines:
        gains = [
            mean_gain(evidence, model.values, name, verdict.level, evidence.rows.scored) for name in evidence.candidates
        ]
        least = min(gains, key=lambda gain: gain.low)
        if least.low > verdict.margin:
            return [
                f"A network is not what these data need: {model.name} of scikit-learn, fitted on {model.fitted}, beats "
                f"every network, by {points(least)} at least."
            ]
    return []


def headline(verdict: ConsortiumVerdict) -> str:
    """The verdict in a few words; where groups of sites differ, what each should do."""
    if verdict.reason or verdict.together is None:
        return "Undecided"
    if not verdict.learned:
        return "Undecided: no model has learned anything yet"
    if len(verdict.advice) > 1:
        said = "; ".join(f"{group.name}: {_advised(verdict, group.advice)}" for group in verdict.groups)
        text = said[0].upper() + said[1:]
    else:
        text = _for_all(verdict)
    for verb, sites in verdict.exceptions.items():
        if sites:
            names = _named(sites, numbers=False)
            text += f"; but not {names}, which {verb if len(sites) == 1 else verb[:-1]}"
    return text


def _advised(verdict: ConsortiumVerdict, advice: Advice) -> str:
    if advice == "together":
        return (
            f"train together, {plain(verdict.method)}"
            if verdict.method
            else "train together (by which method is undecided)"
        )
    return "each by itself" if advice == "alone" else "undecided"


def _for_all(verdict: ConsortiumVerdict) -> str:
    (advice,) = verdict.advice
    if advice == "alone":
        return "Each site by itself"
    if advice == "undecided":
        assert verdict.average is not None
        helps = verdict.average.low > 0
        return "Training together helps on average; for which sites is undecided" if helps else "Undecided"
    names = {
        GENERIC: "Train together: a single model is enough",
        FINE_TUNED: "Train together, and fine-tune at each site",
    }
    if verdict.method:
        return names.get(verdict.method, f"Train together: {plain(verdict.method)}")
    assert verdict.personal
    if verdict.personal.answer == "yes":
        return "Train together with personal models; by which method is undecided"
    return "Train together; whether a single model is enough is undecided"


def points(gain: CrossedMean) -> str:
    """A gain and its interval, such as `2.1 points [0.8, 3.4]`."""
    mean, low, high = (f"{round(x, 1) + 0.0:.1f}" for x in (gain.mean, gain.low, gain.high))  # no "-0.0"
    return f"{mean} points [{low}, {high}]"


def settings_text(settings: dict[str, object]) -> str:
    """Settings such as `lr=0.05, lam=0.3`, without the method's name before its own."""
    texts = (f"{value:.3g}" if isinstance(value, float) else f"{value}" for value in settings.values())
    return ", ".join(f"{key.rpartition('.')[2]}={text}" for key, text in zip(settings, texts, strict=True))


def _recommended(verdict: ConsortiumVerdict, evidence: Evidence) -> str:
    if verdict.method == ALONE:
        return f"Train alone (`{ALONE}`) with {settings_text(evidence.candidates[ALONE].settings)}."
    name = verdict.method or verdict.judged
    settings = settings_text(evidence.candidates[name].settings)
    if verdict.method:
        whom = "" if verdict.advice == {"together"} else " where sites train together"
        return f"Use {plain(name)}{whom}, with {settings}."
    shown = f" The simplest that is shown to gain is {plain(verdict.helpful)}." if verdict.helpful else ""
    return (
        f"Which method is undecided. Of those that train together, {plain(name)} has the highest score on validation "
        f"rows, with {settings}.{shown}"
    )


def _together(verdict: ConsortiumVerdict, evidence: Evidence) -> str:
    """The mean over sites, and beside it the mean over rows."""
    assert verdict.together is not None
    assert verdict.average is not None
    assert verdict.by_rows is not None
    gain, seeds = verdict.average, len(evidence.seeds)
    sites = len(evidence.rows.scored)
    basis = f"`{verdict.judged}` against `{ALONE}`, {len(evidence.rows.site)} held-out rows, {seeds} seeds"
    rows = f"Weighted by rows it is {points(verdict.by_rows)}."
    of = f"{points(gain)} on average over {sites} sites, each counting the same ({basis}). {rows}"
    if gain.low > 0 and verdict.together.answer != "no":
        return f"Training together gains {of}"
    if gain.high < 0:
        return f"Training together loses against training alone: {of}"
    if gain.high <= verdict.margin:
        return f"Training together gains no more than the margin of {verdict.margin:g}: {of}"
    return f"Undecided whether training together helps on average: {of}"


def _groups(verdict: ConsortiumVerdict) -> list[str]:
    """The gains of sites of each size, where sizes differ."""
    if len(verdict.groups) < 2:
        return []
    said = [f"{group.name} {points(group.gain)}{_of_group(group)}" for group in verdict.groups]
    return [f"By size of the sites, with `{verdict.judged}`: {'; '.join(said)}."]


def _of_group(group: GroupGain) -> str:
    return {"together": "", "alone": ", which is no gain that counts", "undecided": ", which is undecided"}[
        group.advice
    ]


def _nothing_learned(verdict: ConsortiumVerdict, evidence: Evidence) -> str:
    best = max(evidence.candidates.values(), key=lambda candidate: candidate.validation)
    gain = mean_gain(evidence, best.values, evidence.guess, verdict.level, evidence.rows.scored)
    return (
        "No model is shown to score higher than always saying what is most frequent at a site. The best by "
        f"validation, {plain(best.name)}, differs from that by {points(gain)}."
    )


def _meanwhile(verdict: ConsortiumVerdict, evidence: Evidence) -> str:
    """The cheapest choice of those who are undecided that harms nobody, as far as is known, with its cost."""
    judged, margin = evidence.candidates[verdict.judged], verdict.margin
    if verdict.learned and all(group.gain.low >= -margin and group.gain.mean > 0 for group in verdict.groups):
        return (
            f"Meanwhile: train together, {plain(judged.name)}. It is shown to cost no group of sites more than the "
            f"margin, and costs {_cost_of(judged.megabytes, judged.seconds)}."
        )
    waiting = [group for group in verdict.groups if group.advice == "undecided"]
    most = max(group.gain.high for group in waiting)
    whom = "each site" if len(waiting) == len(verdict.groups) else " and ".join(group.name for group in waiting)
    missed = f" That misses at most {most:.1f} points on average." if most > 0 else ""
    return (
        f"Meanwhile, train alone (`{ALONE}`): {whom}. It sends nothing and costs "
        f"{evidence.candidates[ALONE].seconds:.2g} s of computing for each site.{missed}"
    )


def _passed_over(verdict: ConsortiumVerdict) -> list[str]:
    return [
        f"`{name}` is not recommended, as it is not shown to beat training alone: {points(gain)}."
        for name, gain in verdict.passed_over
    ]


def _sites(verdict: ConsortiumVerdict) -> list[str]:
    texts = []
    of = f"with `{verdict.judged}`"
    verbs: dict[str, tuple[str, str]] = {
        "loses": ("loses", "lose"), "gains": ("gains", "gain"), "no difference": ("is as before", "are as before"),
    }  # fmt: skip
    for said, (of_a_site, of_several) in verbs.items():
        if sites := [site for site in verdict.sites if site.answer == said]:
            verb = of_a_site if len(sites) == 1 else of_several
            texts.append(f"{_named(sites)} {verb} {of} (intervals that hold for all sites together).")
    if verdict.most:
        tested = all(not math.isnan(site.gain.low) for site in verdict.sites)
        texts.append(f"{verdict.most} gains more than every other site{'' if tested else ' with held-out rows'}.")
    for short in ("held-out rows", "seeds"):
        if undecided := [site for site in verdict.sites if site.short == short]:
            whom = "every site by itself" if len(undecided) == len(verdict.sites) else _named(undecided, numbers=False)
            texts.append(f"Undecided for {whom}: too few {short} for a gain of such a size.")
    if without := [site for site in verdict.sites if math.isnan(site.gain.low)]:
        names = _named(without, numbers=False)
        texts.append(
            f"Not judged: {names}. Their held-out rows are none, or of one class, which defines no such score."
        )
    return texts


def _named(sites: Sequence[SiteGain], *, numbers: bool = True) -> str:
    texts = [f"{site.name} ({points(site.gain)})" if numbers else site.name for site in sites[:_LISTED]]
    more = len(sites) - len(texts)
    return ", ".join(texts) + (f" and {more} more" if more else "")


def _personal(verdict: ConsortiumVerdict) -> str:
    question = verdict.personal
    assert question is not None
    basis = f"(`{question.better}` against the single model of `{GENERIC}`)"
    match question.answer:
        case "yes":
            return f"A single model is not enough: personal models gain {points(question.gain)} over it {basis}."
        case "no":
            gain = f"gain no more than the margin of {verdict.margin:g} over it, {points(question.gain)} {basis}."
            if not verdict.method or GENERIC in dict(verdict.passed_over):
                return f"Beside a single model, personal models {gain}"
            return f"A single model is enough: personal models {gain}"
    return f"Undecided whether a single model is enough: personal models gain {points(question.gain)} over it {basis}."


def _beyond(verdict: ConsortiumVerdict) -> str:
    question = verdict.beyond
    assert question is not None
    basis = f"(`{question.better}` against `{FINE_TUNED}`)"
    match question.answer:
        case "yes":
            return f"Personal models gain {points(question.gain)} beyond fine-tuning {basis}."
        case "no":
            return (
                f"No other personal method gains more than the margin of {verdict.margin:g} beyond fine-tuning: "
                f"{points(question.gain)} {basis}."
            )
    return f"Undecided whether more than fine-tuning is needed: {points(question.gain)} {basis}."


def _cost(verdict: ConsortiumVerdict, evidence: Evidence) -> str:
    judged = evidence.candidates[verdict.judged]
    return f"`{judged.name}` costs {_cost_of(judged.megabytes, judged.seconds)}."


def _cost_of(megabytes: float, seconds: float) -> str:
    return f"{megabytes:.2g} MB of messages and {seconds:.2g} s of computing on this machine for each site"


def _needed(verdict: ConsortiumVerdict, evidence: Evidence) -> list[str]:
    """Say what would decide that which is undecided."""
    asked = {"whether training together helps": verdict.together}
    if verdict.together and verdict.together.answer != "no":
        asked["whether a single model is enough"] = verdict.personal
        asked["whether more than fine-tuning is needed"] = verdict.beyond
    texts = [
        f"To decide {what}, if the gain stays as it is: {_advice(question, evidence)}."
        for what, question in asked.items()
        if question is not None and question.answer == "undecided"
    ]
    undecided = [group for group in verdict.groups if group.advice == "undecided"]
    if len(verdict.groups) > 1 and verdict.learned:
        texts += [_of_more_rows(group, verdict.margin) for group in undecided]
    return texts


def _of_more_rows(group: GroupGain, margin: float) -> str:
    gain = group.gain
    samples = more_samples(gain, max(gain.mean, margin - gain.mean), max(ENOUGH_SEEDS, gain.seeds))
    wanted = f"{ENOUGH_SEEDS} seeds"
    if samples is None:
        wanted += f" and far more held-out rows there than {gain.samples:,}"
    elif samples > gain.samples:
        wanted += f" and about {samples:,} held-out rows there, in place of {gain.samples:,}"
    return f"To decide it for {group.name}, if the gain stays as it is: {wanted}."


def _advice(question: Question, evidence: Evidence) -> str:
    ways = []
    now = len(evidence.seeds)
    if question.seeds:
        ways.append(f"about {question.seeds} seeds in place of {now} ({_minutes(question.seeds - now, evidence)})")
    if question.samples:
        ways.append(_rows(question.samples, evidence))
    if ways:
        return "; or ".join(ways)
    if question.samples_beside is None:
        return "far more rows and seeds than there are"
    more = _minutes(ENOUGH_SEEDS - now, evidence)
    return f"{ENOUGH_SEEDS} seeds ({more}) and {_rows(question.samples_beside, evidence)}"


def _minutes(seeds: int, evidence: Evidence) -> str:
    """The time of further seeds of all methods."""
    a_seed = sum(candidate.seconds for candidate in evidence.candidates.values()) * len(evidence.sites)
    return f"about {max(1, math.ceil(seeds * a_seed / 60))} minutes more of one core"


def _rows(samples: int, evidence: Evidence) -> str:
    """So many held-out rows, and with as large a part held out so many in all."""
    tests, rows = len(evidence.rows.site), sum(evidence.sizes)
    wanted = max(samples, tests + 1)
    return (
        f"about {wanted:,} held-out rows in place of {tests:,} (in all {round(wanted * rows / tests):,} rows in place "
        f"of {rows:,})"
    )
