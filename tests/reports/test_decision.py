"""A verdict from which samples each method classifies correctly: arrays made by hand, whose answer is known."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from bench.data import Floats, Indices
from reports.decision.baselines import POOLED
from reports.decision.evidence import Baseline, Candidate, Evidence
from reports.decision.page import Course, as_json
from reports.decision.scores import SCORES, held_out, row_values
from reports.decision.sentences import headline, plain, sentences
from reports.decision.verdict import ConsortiumVerdict, answer, decide, mean_gain
from reports.statistics.crossed import CrossedMean, crossed_mean

SITES = ("north", "south", "tiny")
ROWS = (900, 900, 120)
SEEDS = 4
BASIC = ("local", "fedavg", "finetune", "ditto")
EQUAL = dict.fromkeys(BASIC, 80.0)
"""Validation accuracies."""
NO_CHANGE: Mapping[str, float] = {}


def correct(rates: tuple[float, float, float]) -> Floats:
    """Samples of each site, of which the first ones are right, with a few that change from seed to seed."""
    columns = []
    for seed in range(SEEDS):
        parts = []
        for rows, rate in zip(ROWS, rates, strict=True):
            right = np.zeros(rows)
            right[: round(rows * rate)] = 100
            parts.append(np.roll(right, seed % 2))  # a sample at either end differs between seeds
        columns.append(np.concatenate(parts))
    return np.array(columns).T


def of(values: Mapping[str, Floats], validation: Mapping[str, float]) -> dict[str, Candidate]:
    """Candidates with these values of samples; FedAvg and FedProx have one common model."""
    return {
        name: Candidate(
            name=name,
            settings={"lr": 0.1},
            personal=name not in ("fedavg", "fedprox"),
            validation=validation[name],
            values=values[name],
            megabytes=0.0 if name == "local" else 1.5,
            seconds=2.0,
        )
        for name in values
    }


def seen(candidates: Mapping[str, Candidate], site: Indices, names: tuple[str, ...]) -> Evidence:
    """Evidence by accuracy, at sites all of whose rows are held out; saying what is frequent is never right."""
    rows = held_out("accuracy", np.zeros(len(site), np.int64), site)
    sizes = tuple(np.bincount(site, minlength=len(names)).tolist())
    seeds = tuple(range(next(iter(candidates.values())).values.shape[1]))
    return Evidence(names, sizes, rows, "accuracy", ("a", "b"), seeds, dict(candidates), {}, np.zeros((len(site), 1)))


def evidence(rates: Mapping[str, tuple[float, float, float]], validation: Mapping[str, float] = NO_CHANGE) -> Evidence:
    """Evidence in which each method is right on the given share of each site's samples."""
    means = {name: 100 * sum(of_sites) / 3 for name, of_sites in rates.items()}
    values = {name: correct(of_sites) for name, of_sites in rates.items()}
    return seen(of(values, means | dict(validation)), np.repeat(np.arange(3), ROWS), SITES)


def everywhere(**rates: float) -> dict[str, tuple[float, float, float]]:
    """The same shares at each site."""
    return {name: (rate, rate, rate) for name, rate in rates.items()}


ALIKE = (0.80, 0.80, 0.80)


UNSURE = "Train together with personal models; by which method is undecided"
STAYING = "Train together: one common model, near which every site stays (fedprox)"
OWN = "together: an own model that is pulled towards a common one (ditto)"


@pytest.mark.parametrize(
    ("rates", "margin", "method", "words"),
    [
        (everywhere(local=0.7, fedavg=0.8, finetune=0.8, ditto=0.8), 1.0, "fedavg", "a single model"),
        (everywhere(local=0.8, fedavg=0.5, finetune=0.8, ditto=0.8), 1.0, "local", "by itself"),
        (everywhere(local=0.7, fedavg=0.5, finetune=0.8, ditto=0.8), 1.0, "finetune", "fine-tune at each site"),
        (everywhere(local=0.7, fedavg=0.5, finetune=0.71, ditto=0.8), 1.0, "ditto", OWN),
        # One model is not recommended where it is not enough, though it beats training alone.
        (everywhere(local=0.8, fedavg=0.6, finetune=0.8, ditto=0.8, fedprox=0.84), 3.0, "", UNSURE),
        (everywhere(local=0.8, fedavg=0.6, finetune=0.65, ditto=0.8, fedprox=0.84), 3.0, "", UNSURE),
        # What is recommended beats training alone itself: simpler methods than the one that does may not.
        (everywhere(local=0.8, fedavg=0.78, finetune=0.8, ditto=0.8, fedprox=0.84), 3.0, "fedprox", STAYING),
        (everywhere(local=0.84, fedavg=0.8, finetune=0.8, ditto=0.8, fedprox=0.846), 1.2, "", ""),
        (everywhere(local=0.8, fedavg=0.82, finetune=0.8, ditto=0.8, fedprox=0.84), 3.0, "fedavg", "a single model"),
    ],
)
def test_worlds_with_a_known_answer(
    rates: dict[str, tuple[float, float, float]], margin: float, method: str, words: str
) -> None:
    known = evidence(rates)
    verdict = decide(known, margin=margin, level=0.05)
    assert verdict.method == method
    assert words in headline(verdict)
    enough = "single model is enough" in headline(verdict)
    assert not enough or method == "fedavg"
    assert sentences(verdict, known)[0].startswith(f"Use {plain(method)}" if method else "Which method is undecided")


def test_whoever_is_passed_over_is_named() -> None:
    known = evidence(everywhere(local=0.8, fedavg=0.78, finetune=0.8, ditto=0.8, fedprox=0.84))
    verdict = decide(known, margin=3.0, level=0.05)
    assert [name for name, _ in verdict.passed_over] == ["fedavg", "finetune"]
    start = "`fedavg` is not recommended, as it is not shown to beat"
    assert any(text.startswith(start) for text in sentences(verdict, known))


def test_nobody_gains_more_than_others_without_a_gain() -> None:
    rates = {"local": ALIKE, "fedavg": (0.80, 0.70, 0.70), "finetune": ALIKE, "ditto": (0.80, 0.70, 0.70)}
    assert decide(evidence(rates), margin=1.0, level=0.05).most == ""
    untested = evidence({**rates, "fedavg": (0.9, 0.8, 0.8), "finetune": (0.9, 0.8, 0.8), "ditto": (0.9, 0.8, 0.8)})
    more = replace(untested, sites=(*SITES, "empty"), sizes=(*untested.sizes, 0))
    verdict = decide(more, margin=1.0, level=0.05)
    assert "north gains more than every other site that has a score." in sentences(verdict, more)


def test_a_choice_is_made_on_validation_and_judged_on_tests() -> None:
    """A method that is lucky on tests is not chosen for that."""
    rates = {"local": ALIKE, "fedavg": (0.5, 0.5, 0.5), "finetune": ALIKE, "ditto": ALIKE, "apfl": (0.9, 0.9, 0.9)}
    lucky = evidence(rates, validation={"apfl": 10.0, "ditto": 85.0})
    verdict = decide(lucky, margin=1.0, level=0.05)
    assert verdict.together is not None
    assert verdict.together.better == "ditto"
    assert verdict.method == "local"


def test_sites_that_lose_are_named() -> None:
    """Each with an interval that holds for all sites at once, wider than of a site by itself."""
    rates = dict.fromkeys(("fedavg", "finetune", "ditto"), (0.9, 0.7, 0.8)) | {"local": (0.7, 0.75, 0.8)}
    known = evidence(rates)
    verdict = decide(known, margin=1.0, level=0.05)
    answers = {site.name: site.answer for site in verdict.sites}
    assert answers == {"north": "gains", "south": "loses", "tiny": "undecided"}
    assert verdict.most == "north"
    texts = sentences(verdict, known)
    assert any(text.startswith("Loses with `fedavg`: south (-5.0 points [") for text in texts)
    assert any("Undecided for tiny" in text for text in texts)
    by_itself = crossed_mean(known.candidates["fedavg"].values[:900] - known.candidates["local"].values[:900], 0.05)
    assert verdict.sites[0].gain.low < by_itself.low < by_itself.high < verdict.sites[0].gain.high
    rates = dict.fromkeys(("fedavg", "finetune", "ditto"), (0.95, 0.6, 0.95)) | {"local": (0.7, 0.75, 0.7)}
    verdict = decide(evidence(rates), margin=1.0, level=0.05)
    assert headline(verdict) == "Train together: a single model is enough; but not south, which loses"
    assert verdict.site_advice == {"north": "together", "south": "alone", "tiny": "together"}


def test_what_is_undecided_is_said_with_what_would_decide_it() -> None:
    rates = dict.fromkeys(("fedavg", "finetune", "ditto"), (0.805, 0.805, 0.85)) | {"local": ALIKE}
    known = evidence(rates)
    verdict = decide(known, margin=1.0, level=0.001)
    assert verdict.together is not None
    assert verdict.together.answer == "undecided"
    assert (verdict.method, headline(verdict)) == ("", "Undecided")
    (advice,) = [text for text in sentences(verdict, known) if text.startswith("To decide whether training together")]
    assert verdict.together.samples is not None
    assert verdict.together.samples > sum(ROWS)
    assert f"about {verdict.together.samples:,} held-out rows in place of 1,920" in advice
    assert f"in all {verdict.together.samples:,} rows in place of 1,920" in advice


@pytest.mark.parametrize(
    ("interval", "groups", "said"),
    [
        ((0.1, 0.9), [(0.1, 0.9)], "no"), ((0.1, 1.1), [(0.1, 1.1)], "yes"), ((-0.1, 1.1), [(-0.1, 1.1)], "undecided"),
        ((-3.0, -1.0), [(-3.0, -1.0)], "no"), ((math.nan, math.nan), [(math.nan, math.nan)], "undecided"),
        ((-0.9, 0.9), [(-2.0, 9.0), (-0.5, 0.5)], "undecided"),  # the mean leaves no room, a group does
        ((-0.9, 0.9), [(2.0, 9.0), (-0.5, 0.5)], "yes"),
    ],
)  # fmt: skip
def test_a_gain_within_the_margin_of_every_group_is_none_that_counts(
    interval: tuple[float, float], groups: list[tuple[float, float]], said: str
) -> None:
    def gain(low: float, high: float) -> CrossedMean:
        return CrossedMean((low + high) / 2, low, high, 10, 3, 1.0, 1.0, 9.0, 0.05)

    assert answer(gain(*interval), [gain(*group) for group in groups], 1.0) == said


def test_without_a_basic_method_or_with_one_seed_nothing_is_said() -> None:
    rates = {"local": ALIKE, "fedavg": ALIKE}
    lacking = replace(evidence(rates), missing={"finetune": "seed 0: diverged"})
    verdict = decide(lacking, margin=1.0, level=0.05)
    assert sentences(verdict, lacking) == ["Undecided: finetune has no result (seed 0: diverged)."]
    assert headline(verdict) == "Undecided"


@pytest.mark.long
@pytest.mark.parametrize("truth", [0.0, 1.5])
def test_equal_methods_are_seldom_told_apart(truth: float) -> None:
    """Of eight methods whose true gain is `truth`, the one that validation chose is called wrongly as rarely as stated:
    `yes` where the gain is 0, `no` where it is above the margin."""
    rng = np.random.default_rng(7)
    wrong = 0
    for _ in range(400):
        alone = 100.0 * (rng.random((300, 1)) < 0.8) * np.ones((1, 3))
        values, validation = {"local": alone}, {"local": 80.0}
        for name in ("fedavg", "finetune", *(f"other{k}" for k in range(5))):
            flipped = rng.random((300, 3))
            share = (0.05 + truth / 100) / 0.2, 0.05 / 0.8
            values[name] = np.where(alone > 0, 100.0 * (flipped >= share[1]), 100.0 * (flipped < share[0]))
            validation[name] = float(rng.random())
        judged = decide(seen(of(values, validation), np.zeros(300, np.int64), ("all",)), margin=1.0, level=0.1)
        assert judged.together is not None
        wrong += judged.together.answer == ("yes" if truth == 0 else "no")
    assert wrong <= 0.05 * 400 + 3 * math.sqrt(0.05 * 400)


def test_a_verdict_is_plain_values() -> None:
    """`decision.json` has no number that JSON has not."""
    known = evidence({"local": ALIKE, "fedavg": ALIKE, "finetune": ALIKE, "ditto": ALIKE})
    empty = replace(known, sites=(*SITES, "empty"), sizes=(*known.sizes, 0))
    verdict = decide(empty, margin=1.0, level=0.05)
    text = json.dumps(as_json(verdict, empty, Course({"data": "x"}, {}, [])), allow_nan=False)
    assert json.loads(text)["verdict"]["sites"][3]["gain"]["low"] is None
    assert isinstance(verdict, ConsortiumVerdict)


def test_copies_of_a_subject_s_rows_make_nothing_surer() -> None:
    """All intervals, of sites too, are those of one row for each subject; as rows by themselves they would shrink."""
    single = evidence({"local": (0.7, 0.7, 0.7), "fedavg": ALIKE, "finetune": ALIKE, "ditto": (0.82, 0.8, 0.9)})
    copied = {
        name: replace(candidate, values=np.repeat(candidate.values, 3, axis=0))
        for name, candidate in single.candidates.items()
    }
    rows = replace(seen(copied, np.repeat(single.rows.site, 3), SITES), sizes=single.sizes)
    subjects = replace(rows, rows=replace(rows.rows, subject=np.repeat(np.arange(len(single.rows.site)), 3)))
    alone, by_row, by_subject = (gains(decide(each, 1.0, 0.05)) for each in (single, rows, subjects))
    np.testing.assert_allclose(by_subject, alone, atol=1e-9)
    widths = [high - low for low, high in by_row]
    assert all(width < high - low for width, (low, high) in zip(widths, alone, strict=True))


def gains(verdict: ConsortiumVerdict) -> list[tuple[float, float]]:
    """The ends of all intervals of a verdict."""
    questions = [question for question in (verdict.together, verdict.personal, verdict.beyond) if question]
    means = [*(question.gain for question in questions), *(site.gain for site in verdict.sites)]
    return [(mean.low, mean.high) for mean in [*means, *([verdict.average] if verdict.average else [])]]


LARGE, SMALL = 600, 10
UNEQUAL = np.repeat(np.arange(6), [LARGE, *[SMALL] * 5])


def at_unequal_sites(values: Mapping[str, Floats], validation: Mapping[str, float]) -> Evidence:
    """A site of many rows and five of few."""
    found = seen(of(values, validation), UNEQUAL, ("big", *(f"small {k}" for k in range(1, 6))))
    return replace(found, sizes=(2400, *[40] * 5))


def unequal(rng: np.random.Generator, small: float, large: float, seeds: int = 3) -> Evidence:
    """The small sites and the large one gain so many points: rows differ in difficulty, seeds have heavy tails."""
    gain = np.where(UNEQUAL == 0, large, small)[:, None] / 100
    hard = rng.beta(0.4, 0.1, len(UNEQUAL))[:, None] * 0.8
    values: dict[str, Floats] = {}
    validation: dict[str, float] = {}
    for name in BASIC:
        chance = hard + (gain if name != "local" else 0) + 0.01 * rng.standard_t(3, (1, seeds))
        right = 0.7 * rng.random((len(UNEQUAL), 1)) + 0.3 * rng.random((len(UNEQUAL), seeds)) < chance
        values[name], validation[name] = 100.0 * right, 80 + rng.random()
    return at_unequal_sites(values, validation)


@pytest.mark.long
@pytest.mark.parametrize(("small", "large"), [(15.0, 0.0), (0.0, 8.0), (0.0, 0.0), (-8.0, 0.0)])
def test_small_sites_are_never_told_what_is_wrong_for_them(small: float, large: float) -> None:
    """Of what groups of sites are told, as little is wrong as is stated."""
    rng = np.random.default_rng(3)
    wrong = {"small": 0, "large": 0}
    repeats = 150
    for _ in range(repeats):
        verdict = decide(unequal(rng, small, large), margin=1.0, level=0.05)
        for name, gain, group in zip(wrong, (small, large), verdict.groups, strict=True):
            wrong[name] += group.advice == ("alone" if gain > 1 else "together")
    assert max(wrong.values()) <= 0.05 * repeats + 3 * math.sqrt(0.05 * repeats)


def test_where_groups_of_sites_differ_there_is_no_answer_for_all() -> None:
    """Five small sites gain 40 points, and the large one nothing: weighted by rows that is nothing either."""
    row = np.arange(len(UNEQUAL)) % 10
    values = {
        name: np.repeat(100.0 * np.where(UNEQUAL == 0, row < 9, (name != "local") | (row < 4))[:, None], 3, axis=1)
        for name in BASIC
    }
    found = at_unequal_sites(values, EQUAL)
    verdict = decide(found, margin=1.0, level=0.05)
    assert [group.advice for group in verdict.groups] == ["together", "alone"]
    assert verdict.helpful == "fedavg"
    said = (
        "The 5 sites of 10 to 99 rows: train together (by which method is undecided); big (2,400 rows): each by itself"
    )
    assert headline(verdict) == said
    assert verdict.average is not None
    assert verdict.by_rows is not None
    assert (verdict.average.mean, verdict.by_rows.mean) == pytest.approx((50.0, 60 * 50 / 650))
    texts = sentences(verdict, found)
    assert any("each counting the same" in text and "Weighted by rows" in text for text in texts)
    start = "By size of the sites, with `fedavg`: the 5 sites of 10 to 99 rows 60.0"
    assert any(text.startswith(start) for text in texts)


def test_what_a_site_has_too_little_of_is_said() -> None:
    """Rows on which seeds agree are short of rows; many rows on which seeds differ are short of seeds."""
    rng = np.random.default_rng(1)
    site = np.repeat([0, 1], [900, 120])
    together = np.zeros((len(site), 3))
    together[site == 0] = 100.0 * (rng.random((900, 3)) < 0.5 + np.array([0.01, 0.06, 0.11]))
    together[site == 1] = 100.0 * (rng.random((120, 1)) < 0.5)
    local = np.where(site == 0, 100.0 * (rng.random(len(site)) < 0.5), 50.0)[:, None] * np.ones((1, 3))
    values = {name: local if name == "local" else together for name in BASIC}
    verdict = decide(seen(of(values, EQUAL), site, ("noisy", "small")), margin=1.0, level=0.05)
    assert [one.short for one in verdict.sites] == ["seeds", "held-out rows"]


def test_an_interval_ends_where_no_score_goes() -> None:
    """A row may count more than 100 points in an area under the curve, which is at most 1. Log loss has no end."""
    rows = np.array([[200.0, 0.0], [0.0, 200.0], [-100.0, -100.0]])
    candidates = of({"local": np.zeros((3, 2)), "ditto": rows}, EQUAL)
    by_area = replace(seen(candidates, np.zeros(3, np.int64), ("tiny",)), score="auroc")
    gain = mean_gain(by_area, rows, "local", 0.001, [0])
    assert (gain.low, gain.high) == (-100, 100)
    assert mean_gain(replace(by_area, score="log_loss"), rows, "local", 0.001, [0]).high > 100


def test_models_that_say_the_same_of_everybody_decide_nothing() -> None:
    """Of 3 % ill rows all are called well: equal scores, from which nobody can tell that sites should train alone."""
    rng = np.random.default_rng(0)
    site = np.repeat(np.arange(6), 125)
    labels = (rng.random(len(site)) < 0.03).astype(np.int64)
    logits = np.tile(np.array([3.0, -3.0]), (len(site), 3, 1)) + 0.01 * rng.normal(size=(len(site), 3, 2))
    for score in SCORES:
        rows = held_out(score, labels, site)
        values = row_values(score, rows, logits)
        candidates = of(dict.fromkeys(BASIC, values), EQUAL)
        guess = row_values(score, rows, np.tile(np.log([0.97, 0.03]), (len(site), 1, 1)))
        found = Evidence(tuple("abcdef"), (500,) * 6, rows, score, ("well", "ill"), (0, 1, 2), candidates, {}, guess)
        verdict = decide(found, margin=1.0, level=0.05)
        assert headline(verdict) == "Undecided: no model has learned anything yet", score
        assert (verdict.method, verdict.advice) == ("", {"undecided"})
        texts = sentences(verdict, found)
        assert texts[0].startswith("No model is shown to score higher than always saying what is most frequent")
        assert any(text.startswith("Meanwhile, train alone (`local`): each site. It sends nothing") for text in texts)


@pytest.mark.parametrize(("rate", "better"), [(0.95, True), (0.72, False), (0.6, False)])
def test_models_from_outside_that_beat_every_network_are_named_and_never_recommended(rate: float, better: bool) -> None:
    rates = {"local": (0.7, 0.7, 0.7), "fedavg": (0.5, 0.5, 0.5), "finetune": ALIKE, "ditto": (0.71, 0.71, 0.71)}
    trees = Baseline("gradient-boosted trees", POOLED, correct((rate, rate, rate))[:, :1])
    without, found = evidence(rates), replace(evidence(rates), baselines=(trees,))
    verdict = decide(found, 1.0, 0.05)
    assert verdict == decide(without, 1.0, 0.05)
    said = [text for text in sentences(verdict, found) if text.startswith("A network is not what these data need")]
    assert len(said) == better
    assert not better or f"gradient-boosted trees of scikit-learn, fitted on {POOLED}, beats every network" in said[0]


@pytest.mark.parametrize(
    ("by_rows", "by_seeds", "asked"),
    [
        (0.001, 9.0, "20 seeds."),  # the rows that there are would do
        (30.0, 1.0, "20 seeds and about "),
    ],
)
def test_more_rows_are_asked_for_only_where_they_are_needed(by_rows: float, by_seeds: float, asked: str) -> None:
    known = evidence({"local": (0.7, 0.7, 0.7), "fedavg": ALIKE, "finetune": ALIKE})
    verdict = decide(known, margin=1.0, level=0.05)
    gain = CrossedMean(10.0, -5.0, 25.0, 50, 3, by_rows, by_seeds, 49.0, 0.05)
    (group,) = verdict.groups
    undecided = replace(group, name="the small sites", gain=gain, advice="undecided")
    texts = sentences(replace(verdict, groups=(undecided, group)), known)
    (text,) = [text for text in texts if text.startswith("To decide it for the small sites")]
    assert f"if the gain stays as it is: {asked}" in text
    assert ("in place of 50" in text) == (by_rows > by_seeds)
