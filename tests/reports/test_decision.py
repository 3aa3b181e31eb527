"""A verdict from which samples each method classifies correctly: arrays made by hand, whose answer is known."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from bench.data import Floats
from reports.decision.evidence import Candidate, Evidence
from reports.decision.sentences import headline, sentences
from reports.decision.verdict import ConsortiumVerdict, answer, decide
from reports.statistics.crossed import CrossedMean, crossed_mean

SITES = ("north", "south", "tiny")
ROWS = (900, 900, 60)
SEEDS = 4


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


def evidence(
    rates: Mapping[str, tuple[float, float, float]], validation: Mapping[str, float] | None = None
) -> Evidence:
    """Evidence in which each method is right on the given share of each site's samples."""
    candidates = {
        name: Candidate(
            name=name,
            settings={"lr": 0.1},
            personal=name not in ("fedavg", "fedprox"),
            validation=(validation or {}).get(name, 100 * sum(site_rates) / 3),
            correct=correct(site_rates),
            megabytes=0.0 if name == "local" else 1.5,
            seconds=2.0,
        )
        for name, site_rates in rates.items()
    }
    return Evidence(SITES, np.repeat(np.arange(3), ROWS), tuple(range(SEEDS)), candidates, {}, 4 * sum(ROWS))


ALIKE = (0.80, 0.80, 0.80)


@pytest.mark.parametrize(
    ("rates", "method", "words"),
    [
        ({"local": (0.7, 0.7, 0.7), "fedavg": ALIKE, "finetune": ALIKE, "ditto": ALIKE}, "fedavg", "a single model"),
        ({"local": ALIKE, "fedavg": (0.5, 0.5, 0.5), "finetune": ALIKE, "ditto": ALIKE}, "local", "by itself"),
        (
            {"local": (0.7, 0.7, 0.7), "fedavg": (0.5, 0.5, 0.5), "finetune": ALIKE, "ditto": ALIKE},
            "finetune",
            "fine-tune at each site",
        ),
        (
            {"local": (0.7, 0.7, 0.7), "fedavg": (0.5, 0.5, 0.5), "finetune": (0.71, 0.71, 0.71), "ditto": ALIKE},
            "ditto",
            "personal models: ditto",
        ),
    ],
)
def test_worlds_with_a_known_answer(rates: dict[str, tuple[float, float, float]], method: str, words: str) -> None:
    known = evidence(rates)
    verdict = decide(known, margin=1.0, level=0.05)
    assert verdict.method == method
    assert words in headline(verdict)


def test_what_is_recommended_beats_training_alone_itself() -> None:
    """Not only the method does that has the best validation accuracy: simpler ones are no worse than those with
    personal models, and yet may be worse than training alone."""
    rates = {"local": ALIKE, "fedavg": (0.78,) * 3, "finetune": ALIKE, "ditto": ALIKE, "fedprox": (0.84,) * 3}
    known = evidence(rates)
    verdict = decide(known, margin=3.0, level=0.05)
    assert verdict.personal is not None
    assert verdict.personal.answer == "no"
    assert (verdict.method, headline(verdict)) == ("fedprox", "Train together with one model: fedprox")
    texts = sentences(verdict, known)
    assert [name for name, _ in verdict.passed_over] == ["fedavg", "finetune"]
    assert any(text.startswith("`fedavg` is not recommended, as it is not shown to beat") for text in texts)
    assert not any("single model is enough" in text for text in texts)
    nothing = evidence({**dict.fromkeys(rates, (0.80,) * 3), "local": (0.84,) * 3, "fedprox": (0.841,) * 3})
    verdict = decide(nothing, margin=0.15, level=0.05)
    assert verdict.personal is not None
    assert (verdict.method, verdict.personal.answer) == ("", "no")
    assert not any("single model is enough" in text for text in sentences(verdict, nothing))
    rates["fedavg"] = (0.82,) * 3
    better = evidence(rates)
    verdict = decide(better, margin=3.0, level=0.05)
    assert (verdict.method, verdict.passed_over) == ("fedavg", ())
    first = sentences(verdict, better)[0]
    assert verdict.average is not None
    assert first.endswith(f": {verdict.average.mean:.1f} points [{verdict.average.low:.1f}, "
                          f"{verdict.average.high:.1f}] above training alone on average.")  # fmt: skip


def test_one_model_is_not_recommended_where_it_is_not_enough() -> None:
    """Not even one that beats training alone, where those with personal models that beat FedAvg's do not."""
    rates = {"local": ALIKE, "fedavg": (0.60,) * 3, "finetune": ALIKE, "ditto": ALIKE, "fedprox": (0.84,) * 3}
    for finetune in (ALIKE, (0.65,) * 3):
        known = evidence({**rates, "finetune": finetune})
        verdict = decide(known, margin=3.0, level=0.05)
        assert verdict.personal is not None
        assert (verdict.personal.answer, verdict.method) == ("yes", "")
        assert headline(verdict) == "Train together with personal models; by which method is undecided"


def test_nobody_gains_more_than_others_without_a_gain() -> None:
    rates = {"local": ALIKE, "fedavg": (0.80, 0.70, 0.70), "finetune": ALIKE, "ditto": (0.80, 0.70, 0.70)}
    assert decide(evidence(rates), margin=1.0, level=0.05).most == ""
    untested = evidence({**rates, "fedavg": (0.9, 0.8, 0.8), "finetune": (0.9, 0.8, 0.8), "ditto": (0.9, 0.8, 0.8)})
    more = Evidence((*SITES, "empty"), untested.site, untested.seeds, untested.candidates, {}, 0)
    verdict = decide(more, margin=1.0, level=0.05)
    assert "north gains more than every other site with held-out rows." in sentences(verdict, more)


def test_the_advice_is_more_seeds_than_there_are() -> None:
    rng = np.random.default_rng(5)
    advised = 0
    for _ in range(300):
        rows = int(rng.integers(20, 80))
        candidates = {}
        for name in ("local", "fedavg", "finetune", "ditto"):
            values = 100.0 * (rng.random((rows, 1)) + 0.3 * rng.normal(size=(rows, 3)) < rng.uniform(0.5, 0.9))
            candidates[name] = Candidate(name, {}, name != "fedavg", float(rng.random()), values, 0.0, 1.0)
        known = Evidence(("all",), np.zeros(rows, np.int64), (0, 1, 2), candidates, {}, rows)
        verdict = decide(known, margin=1.0, level=0.05)
        for question in (verdict.together, verdict.personal, verdict.beyond):
            if question is not None and question.seeds is not None:
                advised += 1
                assert question.seeds > 3
    assert advised > 20


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
    assert any(text.startswith("south (-5.0 points [") and "loses" in text for text in texts)
    assert any("Undecided for tiny" in text for text in texts)
    by_itself = crossed_mean(known.candidates["fedavg"].correct[:900] - known.candidates["local"].correct[:900], 0.05)
    assert verdict.sites[0].gain.low < by_itself.low < by_itself.high < verdict.sites[0].gain.high


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
    assert f"about {verdict.together.samples:,} held-out rows in place of 1,860" in advice
    assert f"in all {4 * verdict.together.samples:,} rows in place of 7,440" in advice


def test_a_gain_within_the_margin_is_none_that_counts() -> None:
    def gain(low: float, high: float) -> CrossedMean:
        return CrossedMean((low + high) / 2, low, high, 10, 3, 1.0, 1.0, 2.0)

    assert answer(gain(0.1, 0.9), 1.0) == "no"
    assert answer(gain(0.1, 1.1), 1.0) == "yes"
    assert answer(gain(-0.1, 1.1), 1.0) == "undecided"
    assert answer(gain(-3.0, -1.0), 1.0) == "no"
    assert answer(gain(math.nan, math.nan), 1.0) == "undecided"


def test_without_a_basic_method_or_with_one_seed_nothing_is_said() -> None:
    rates = {"local": ALIKE, "fedavg": ALIKE}
    lacking = Evidence(*list(vars(evidence(rates)).values())[:4], {"finetune": "seed 0: diverged"}, 0)
    verdict = decide(lacking, margin=1.0, level=0.05)
    assert sentences(verdict, lacking) == ["Undecided: finetune has no result (seed 0: diverged)."]
    assert headline(verdict) == "Undecided"


@pytest.mark.parametrize("truth", [0.0, 1.5])
def test_equal_methods_are_seldom_told_apart(truth: float) -> None:
    """Of eight methods whose true gain is `truth`, the one that validation chose is called wrongly as rarely as stated:
    `yes` where the gain is 0, `no` where it is above the margin."""
    rng = np.random.default_rng(7)
    wrong = 0
    for _ in range(400):
        alone = 100.0 * (rng.random((300, 1)) < 0.8) * np.ones((1, 3))
        names = ["fedavg", "finetune", *(f"other{k}" for k in range(5))]
        candidates = {"local": Candidate("local", {}, True, 80.0, alone, 0.0, 1.0)}
        for name in names:
            flipped = rng.random((300, 3))
            share = (0.05 + truth / 100) / 0.2, 0.05 / 0.8
            values = np.where(alone > 0, 100.0 * (flipped >= share[1]), 100.0 * (flipped < share[0]))
            candidates[name] = Candidate(name, {}, name != "fedavg", float(rng.random()), values, 0.0, 1.0)
        judged = decide(
            Evidence(("all",), np.zeros(300, np.int64), (0, 1, 2), candidates, {}, 300), margin=1.0, level=0.1
        )
        assert judged.together is not None
        wrong += judged.together.answer == ("yes" if truth == 0 else "no")
    assert wrong <= 0.05 * 400 + 3 * math.sqrt(0.05 * 400)


def test_a_verdict_is_plain_values() -> None:
    """`decision.json` has no number that JSON has not."""
    from reports.decision.page import Course, as_json

    known = evidence({"local": ALIKE, "fedavg": ALIKE, "finetune": ALIKE, "ditto": ALIKE})
    empty = Evidence((*SITES, "empty"), known.site, known.seeds, known.candidates, {}, 0)
    verdict = decide(empty, margin=1.0, level=0.05)
    text = json.dumps(as_json(verdict, empty, Course({"data": "x"}, {}, [])), allow_nan=False)
    assert json.loads(text)["verdict"]["sites"][3]["gain"]["low"] is None
    assert isinstance(verdict, ConsortiumVerdict)


def test_copies_of_a_subject_s_rows_make_nothing_surer() -> None:
    """All intervals, of sites too, are those of one row for each subject; as rows by themselves they would shrink."""
    single = evidence({"local": (0.7, 0.7, 0.7), "fedavg": ALIKE, "finetune": ALIKE, "ditto": (0.82, 0.8, 0.9)})
    copied = {
        name: replace(candidate, correct=np.repeat(candidate.correct, 3, axis=0))
        for name, candidate in single.candidates.items()
    }
    rows = replace(single, candidates=copied, site=np.repeat(single.site, 3))
    subjects = replace(rows, subject=np.repeat(np.arange(len(single.site)), 3))
    alone, by_row, by_subject = (gains(decide(each, 1.0, 0.05)) for each in (single, rows, subjects))
    np.testing.assert_allclose(by_subject, alone, atol=1e-9)
    widths = [high - low for low, high in by_row]
    assert all(width < high - low for width, (low, high) in zip(widths, alone, strict=True))


def gains(verdict: ConsortiumVerdict) -> list[tuple[float, float]]:
    """The ends of all intervals of a verdict."""
    questions = [question for question in (verdict.together, verdict.personal, verdict.beyond) if question]
    means = [*(question.gain for question in questions), *(site.gain for site in verdict.sites)]
    return [(mean.low, mean.high) for mean in [*means, *([verdict.average] if verdict.average else [])]]
