"""A verdict in plain sentences, each with its interval."""

import math
from collections.abc import Sequence

from reports.decision.evidence import Evidence
from reports.decision.verdict import ALONE, ENOUGH_SEEDS, FINE_TUNED, GENERIC, ConsortiumVerdict, Question, SiteGain
from reports.statistics.crossed import CrossedMean

_LISTED = 8  # sites that a sentence names


def sentences(verdict: ConsortiumVerdict, evidence: Evidence) -> list[str]:
    """The verdict, the most important first."""
    if verdict.reason:
        return [f"Undecided: {verdict.reason}."]
    assert verdict.together is not None
    texts = [_recommended(verdict, evidence), _together(verdict, evidence), *_passed_over(verdict), *_sites(verdict)]
    if verdict.together.answer != "no":
        texts += [_personal(verdict), *([_beyond(verdict)] if verdict.beyond else []), _cost(verdict, evidence)]
    return [*texts, *_needed(verdict, evidence)]


def headline(verdict: ConsortiumVerdict) -> str:
    """The verdict in a few words."""
    if verdict.reason or verdict.together is None or verdict.together.answer == "undecided":
        return "Undecided"
    names = {
        ALONE: "Each site by itself",
        GENERIC: "Train together: a single model is enough",
        FINE_TUNED: "Train together, and fine-tune at each site",
    }
    if verdict.method:
        kind = "with one model" if verdict.single else "with personal models"
        return names.get(verdict.method, f"Train together {kind}: {verdict.method}")
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
        return f"Train alone: `{ALONE}` with {settings_text(evidence.candidates[ALONE].settings)}."
    if verdict.method:
        settings = settings_text(evidence.candidates[verdict.method].settings)
        assert verdict.together is not None
        assert verdict.average is not None
        another = verdict.method != verdict.together.better  # than that of the next sentence
        gain = f": {points(verdict.average)} above training alone on average" if another else ""
        return f"Use `{verdict.method}` with {settings}{gain}."
    together = evidence.candidates[verdict.judged]
    return (
        f"Which method is undecided. Of those that train together, `{together.name}` has the highest validation "
        f"accuracy, with {settings_text(together.settings)}."
    )


def _together(verdict: ConsortiumVerdict, evidence: Evidence) -> str:
    question = verdict.together
    assert question is not None
    basis = f"(`{question.better}` against `{ALONE}`, {len(evidence.site)} held-out rows, {len(evidence.seeds)} seeds)"
    if question.answer == "yes":
        return f"Training together gains {points(question.gain)} on average over training alone {basis}."
    if question.answer == "no":
        loses = question.gain.high < 0
        what = "loses against training alone" if loses else f"gains no more than the margin of {verdict.margin:g}"
        return f"Training together {what}: {points(question.gain)} on average {basis}."
    return f"Undecided whether training together helps: {points(question.gain)} on average {basis}."


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
    undecided = [site for site in verdict.sites if site.answer == "undecided"]
    if undecided:
        whom = "every site by itself" if len(undecided) == len(verdict.sites) else _named(undecided, numbers=False)
        texts.append(f"Undecided for {whom}: too few held-out rows there for gains of such a size.")
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
    return (
        f"`{judged.name}` costs {judged.megabytes:.2g} MB of messages and {judged.seconds:.2g} s of computing on this "
        f"machine for each site."
    )


def _needed(verdict: ConsortiumVerdict, evidence: Evidence) -> list[str]:
    """Say what would decide that which is undecided."""
    asked = {"whether training together helps": verdict.together}
    if verdict.together and verdict.together.answer != "no":
        asked["whether a single model is enough"] = verdict.personal
        asked["whether more than fine-tuning is needed"] = verdict.beyond
    return [
        f"To decide {what}, if the gain stays as it is: {_advice(question, evidence)}."
        for what, question in asked.items()
        if question is not None and question.answer == "undecided"
    ]


def _advice(question: Question, evidence: Evidence) -> str:
    ways = []
    if question.seeds:
        ways.append(f"about {question.seeds} seeds in place of {question.gain.seeds}, which takes more minutes")
    if question.samples:
        ways.append(_rows(question.samples, evidence))
    if ways:
        return "; or ".join(ways)
    if question.samples_beside is None:
        return "far more rows and seeds than there are"
    return f"{ENOUGH_SEEDS} seeds, which takes more minutes, and {_rows(question.samples_beside, evidence)}"


def _rows(samples: int, evidence: Evidence) -> str:
    """So many held-out rows, and with as large a part held out so many in all."""
    tests = len(evidence.site)
    wanted = max(samples, tests + 1)
    return (
        f"about {wanted:,} held-out rows in place of {tests:,} (in all {round(wanted * evidence.rows / tests):,} rows "
        f"in place of {evidence.rows:,})"
    )
