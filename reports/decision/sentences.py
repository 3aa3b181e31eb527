"""A verdict in plain sentences, each with its interval."""

import math
from collections.abc import Sequence

from reports.decision.evidence import Candidate, Evidence
from reports.decision.verdict import (
    ALONE,
    ENOUGH_SEEDS,
    FINE_TUNED,
    GENERIC,
    ConsortiumVerdict,
    GroupGain,
    Question,
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


def points(gain: CrossedMean) -> str:
    """A gain and its interval, such as `2.1 points [0.8, 3.4]`."""
    mean, low, high = (f"{round(x, 1) + 0.0:.1f}" for x in (gain.mean, gain.low, gain.high))  # no "-0.0"
    return f"{mean} points [{low}, {high}]"


def settings_text(settings: dict[str, object]) -> str:
    """Settings such as `lr=0.05, lam=0.3`, without the method's name before its own."""
    texts = (f"{value:.3g}" if isinstance(value, float) else f"{value}" for value in settings.values())
    return ", ".join(f"{key.rpartition('.')[2]}={text}" for key, text in zip(settings, texts, strict=True))


def headline(verdict: ConsortiumVerdict) -> str:
    """The verdict in a few words; where groups of sites differ, what each should do."""
    if verdict.reason:
        return "Undecided"
    if not verdict.learned:
        return "Undecided: no model has learned anything yet"
    by_which = plain(verdict.method) if verdict.method else "(by which method is undecided)"
    advised = {
        "together": f"train together{',' if verdict.method else ''} {by_which}",
        "alone": "each by itself",
        "undecided": "undecided",
    }
    text = "; ".join(f"{group.name}: {advised[group.advice]}" for group in verdict.groups)
    text = text[0].upper() + text[1:] if len(verdict.advice) > 1 else _for_all(verdict)
    for verb, sites in verdict.exceptions.items():
        if sites:
            names = _first([site.name for site in sites])
            text += f"; but not {names}, which {verb if len(sites) == 1 else verb[:-1]}"
    return text


def _for_all(verdict: ConsortiumVerdict) -> str:
    (advice,) = verdict.advice
    assert verdict.average
    assert verdict.personal
    if advice == "alone":
        return "Each site by itself"
    if advice == "undecided":
        helps = verdict.average.low > 0
        return "Training together helps on average; for which sites is undecided" if helps else "Undecided"
    if verdict.method:
        names = {GENERIC: ": a single model is enough", FINE_TUNED: ", and fine-tune at each site"}
        return f"Train together{names.get(verdict.method, f': {plain(verdict.method)}')}"
    if verdict.personal.answer == "yes":
        return "Train together with personal models; by which method is undecided"
    return "Train together; whether a single model is enough is undecided"


def sentences(verdict: ConsortiumVerdict, evidence: Evidence) -> list[str]:
    """The verdict, the most important first."""
    if verdict.reason:
        return [f"Undecided: {verdict.reason}."]
    assert verdict.together
    assert verdict.personal
    questions = {"whether training together helps": verdict.together}
    if verdict.together.answer != "no":
        questions["whether personal models beat a single one"] = verdict.personal
        if verdict.beyond:
            questions["whether more than fine-tuning is needed"] = verdict.beyond
    needed = [
        f"To decide {what}, if the gain stays as it is: {_wanted(question, evidence)}."
        for what, question in questions.items()
        if question.answer == "undecided"
    ]
    if not verdict.learned:
        said = [_nothing_learned(verdict, evidence), *_no_network(verdict, evidence)]
        return [*said, _meanwhile(verdict, evidence), *needed]
    texts = [_recommended(verdict, evidence), _together(verdict, evidence), *_no_network(verdict, evidence)]
    if len(verdict.groups) > 1:
        groups = "; ".join(f"{group.name} {points(group.gain)} ({group.advice})" for group in verdict.groups)
        texts.append(f"By size of the sites, with `{verdict.judged}`: {groups}.")
    if "undecided" in verdict.advice:
        texts.append(_meanwhile(verdict, evidence))
    for name, gain in verdict.passed_over:
        texts.append(f"`{name}` is not recommended, as it is not shown to beat training alone: {points(gain)}.")
    texts += _sites(verdict)
    said_of = {"yes": "yes", "no": f"by no more than the margin of {verdict.margin:g}", "undecided": "undecided"}
    for what, question in list(questions.items())[1:]:
        basis = f"`{question.better}` gains {points(question.gain)} over `{question.than}`"
        texts.append(f"{what.capitalize()}: {said_of[question.answer]}; {basis}.")
    if verdict.together.answer != "no":
        texts.append(f"`{verdict.judged}` costs {_cost(evidence.candidates[verdict.judged])}.")
    waiting = [group for group in verdict.groups if group.advice == "undecided" and len(verdict.groups) > 1]
    return [*texts, *needed, *(_of_more_rows(group, verdict.margin) for group in waiting)]


def _recommended(verdict: ConsortiumVerdict, evidence: Evidence) -> str:
    name = verdict.method or verdict.judged
    settings = settings_text(evidence.candidates[name].settings)
    if verdict.method:
        mixed = verdict.method != ALONE and verdict.advice != {"together"}
        return f"Use {plain(name)}{' where sites train together' if mixed else ''}, with {settings}."
    shown = f" The simplest that is shown to gain is {plain(verdict.helpful)}." if verdict.helpful else ""
    return (
        f"Which method is undecided. Of those that train together, {plain(name)} has the highest score on validation "
        f"rows, with {settings}.{shown}"
    )


def _together(verdict: ConsortiumVerdict, evidence: Evidence) -> str:
    """The mean over sites, and beside it the mean over rows."""
    assert verdict.together
    assert verdict.average
    assert verdict.by_rows
    gain = verdict.average
    if gain.low > 0 and verdict.together.answer != "no":
        said = "gains"
    elif gain.high < 0:
        said = "loses against training alone"
    else:
        within = gain.high <= verdict.margin
        said = f"gains no more than the margin of {verdict.margin:g}" if within else "may gain or lose"
    basis = f"{len(evidence.rows.site)} held-out rows, {len(evidence.seeds)} seeds"
    return (
        f"Training together {said}: {points(gain)} on average over {len(evidence.rows.scored)} sites, each counting "
        f"the same (`{verdict.judged}` against `{ALONE}`, {basis}). Weighted by rows it is {points(verdict.by_rows)}."
    )


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
            f"margin, and costs {_cost(judged)}."
        )
    waiting = [group for group in verdict.groups if group.advice == "undecided"]
    whom = "each site" if len(waiting) == len(verdict.groups) else " and ".join(group.name for group in waiting)
    most = max(0.0, *(group.gain.high for group in waiting))
    return (
        f"Meanwhile, train alone (`{ALONE}`): {whom}. It sends nothing, costs {_cost(evidence.candidates[ALONE])}, and "
        f"misses at most {most:.1f} points on average."
    )


def _sites(verdict: ConsortiumVerdict) -> list[str]:
    texts = []
    for said in ("loses", "gains", "no difference"):
        if sites := [f"{site.name} ({points(site.gain)})" for site in verdict.sites if site.answer == said]:
            texts.append(
                f"{said.capitalize()} with `{verdict.judged}`: {_first(sites)}, with intervals that hold for all sites "
                "together."
            )
    if verdict.most:
        texts.append(f"{verdict.most} gains more than every other site that has a score.")
    for short in ("held-out rows", "seeds"):
        if undecided := [site.name for site in verdict.sites if site.short == short]:
            texts.append(f"Undecided for {_first(undecided)}: too few {short} for a gain of such a size.")
    if without := [site.name for site in verdict.sites if math.isnan(site.gain.low)]:
        texts.append(
            f"Not judged: {_first(without)}. Their held-out rows are none, or of one class, which defines no score."
        )
    return texts


def _first(sites: Sequence[str]) -> str:
    more = len(sites) - _LISTED
    return ", ".join(sites[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def _cost(candidate: Candidate) -> str:
    return (
        f"{candidate.megabytes:.2g} MB of messages and {candidate.seconds:.2g} s of computing on this machine for each "
        "site"
    )


def _wanted(question: Question, evidence: Evidence) -> str:
    """Say what would decide a question: more seeds, or more rows, or else both."""
    now, tests, rows = len(evidence.seeds), len(evidence.rows.site), sum(evidence.sizes)
    a_seed = sum(candidate.seconds for candidate in evidence.candidates.values()) * len(evidence.sites)

    def seeds_text(seeds: int) -> str:
        minutes = max(1, math.ceil((seeds - now) * a_seed / 60))
        return f"about {seeds} seeds in place of {now} (about {minutes} minutes more of one core)"

    def rows_text(samples: int) -> str:
        wanted = max(samples, tests + 1)
        return (
            f"about {wanted:,} held-out rows in place of {tests:,} (in all {round(wanted * rows / tests):,} rows in "
            f"place of {rows:,})"
        )

    ways = [seeds_text(question.seeds)] if question.seeds else []
    ways += [rows_text(question.samples)] if question.samples else []
    if ways:
        return "; or ".join(ways)
    if question.samples_beside is None:
        return "far more rows and seeds than there are"
    return f"{seeds_text(ENOUGH_SEEDS)} and {rows_text(question.samples_beside)}"


def _of_more_rows(group: GroupGain, margin: float) -> str:
    gain = group.gain
    samples = more_samples(gain, max(gain.mean, margin - gain.mean), max(ENOUGH_SEEDS, gain.seeds))
    wanted = f"{ENOUGH_SEEDS} seeds"
    if samples is None:
        wanted += f" and far more held-out rows there than {gain.samples:,}"
    elif samples > gain.samples:
        wanted += f" and about {samples:,} held-out rows there, in place of {gain.samples:,}"
    return f"To decide it for {group.name}, if the gain stays as it is: {wanted}."
