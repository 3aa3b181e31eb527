"""Scores of sites as means of values of single rows, and the intervals that follow."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.data import Floats, Indices
from bench.metrics.classification import accuracy, auroc, balanced_accuracy, nll
from reports.decision.scores import SCORES, held_out, row_values
from reports.statistics.crossed import crossed_mean

METRICS = {"accuracy": accuracy, "balanced_accuracy": balanced_accuracy, "auroc": auroc, "log_loss": nll}


@given(st.sampled_from(list(SCORES)), st.integers(2, 4), st.integers(3, 30), st.integers(0, 1000))
def test_the_mean_of_rows_is_the_score_of_the_site(score: str, classes: int, rows: int, seed: int) -> None:
    """As the metrics have it, ties too; a site of one class has none where classes are told from one another."""
    rng = np.random.default_rng(seed)
    labels, site = rng.integers(0, classes, 2 * rows), np.repeat([4, 7], rows)
    logits = rng.normal(size=(2 * rows, 2, classes)).round(1)
    found = held_out(score, labels, site)
    values = row_values(score, found, logits)
    for number in (4, 7):
        here = site == number
        if score in ("auroc", "balanced_accuracy") and len(set(labels[here].tolist())) < 2:
            assert number not in found.scored
            continue
        assert found.share[here].sum() == pytest.approx(1)
        sign = -100 if score == "log_loss" else 100
        expected = [sign * METRICS[score](labels[here], logits[here, seed]) for seed in range(2)]
        np.testing.assert_allclose(found.share[here] @ values[here], expected, atol=1e-9)


def test_the_spread_of_placement_values_is_that_of_delong() -> None:
    """Variance of the difference of two areas under curves of the same rows, by their equations 5 and 6."""
    rng = np.random.default_rng(0)
    labels = (np.arange(4000) < 400).astype(np.int64)
    scores = rng.normal(size=(4000, 2)) + labels[:, None] + 0.5 * rng.normal(size=(4000, 1))
    above = (scores[:400, None] > scores[None, 400:]).astype(float)  # [ill, well, models]
    v10, v01 = above.mean(axis=1), above.mean(axis=0)
    parts = np.cov(v10.T) / 400 + np.cov(v01.T) / 3600
    expected = 1e4 * (parts[0, 0] + parts[1, 1] - 2 * parts[0, 1])
    found = held_out("auroc", labels, np.zeros(4000, np.int64))
    values = row_values("auroc", found, np.stack([0 * scores, scores], axis=2))
    difference = np.repeat(values[:, :1] - values[:, 1:], 2, axis=1)
    mean = crossed_mean(difference, 0.05, weights=found.share, strata=found.stratum)
    assert mean.mean == pytest.approx(100 * float((v10[:, 0] - v10[:, 1]).mean()))
    assert expected < mean.by_samples < 1.1 * expected  # with the samples that are added


def rare(rng: np.random.Generator, sites: int, rows: int) -> tuple[Indices, Indices, Floats, Floats]:
    """Labels of which 6 % are ill, sites, and logits of two models by three seeds, of which the second is better."""
    site = np.repeat(np.arange(sites), rows)
    labels = (rng.random(len(site)) < 0.06).astype(np.int64)
    common = labels * 1.2 + rng.standard_t(4, len(site))
    models = [
        (common + labels * more)[:, None]
        + rng.normal(size=(len(site), 3))
        + 0.1 * rng.standard_t(3, (1, 3)) * labels[:, None]
        for more in (0.0, 0.6)
    ]
    first, second = (np.stack([0 * model, model], axis=2) for model in models)
    return labels, site, first, second


@pytest.mark.long
@pytest.mark.parametrize(("sites", "rows"), [(6, 60), (3, 300), (12, 20)])
def test_an_interval_of_areas_covers_what_it_claims(sites: int, rows: int) -> None:
    """With few ill rows at each site, and sites without any, which have no area."""
    rng = np.random.default_rng(rows)

    def drawn(sites: int, rows: int) -> tuple[Floats, Floats, Indices]:
        labels, site, first, second = rare(rng, sites, rows)
        found = held_out("auroc", labels, site)
        share = found.share / max(1, len(found.scored))
        return row_values("auroc", found, second) - row_values("auroc", found, first), share, found.stratum

    wholes = [drawn(1, 20_000) for _ in range(5)]
    truth = float(np.mean([share @ values for values, share, _ in wholes]))
    repeats, missed = 400, 0
    for _ in range(repeats):
        values, share, stratum = drawn(sites, rows)
        here = share > 0
        if here.any():
            mean = crossed_mean(values[here], 0.05, weights=share[here], strata=stratum[here])
            missed += not mean.low <= truth <= mean.high
    assert missed <= 0.05 * repeats + 3 * math.sqrt(0.05 * repeats)
