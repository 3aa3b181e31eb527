"""Scores of sites as means of values of single rows; models from outside, fitted on training rows only."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.data import Dataset, Floats, Partition
from bench.metrics.classification import accuracy, auroc, balanced_accuracy, nll
from datasets.tables import table
from reports.decision.baselines import ALONE, POOLED, baselines
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


RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 3)) * [1, 1000, 0.001]
OPPOSITE = np.repeat([0, 1, 2], 100) == 2
FRAME = pd.DataFrame(X, columns=list("abc")).assign(
    site=np.repeat(["A", "B", "C"], 100), ill=np.where(((X[:, 0] > 0) ^ OPPOSITE), "ill", "well")
)


def cell(frame: pd.DataFrame) -> tuple[Dataset, Partition]:
    """Each site trains on its training part, but for ten rows, and is tested on its held-out rows."""
    data = table(frame, label="ill", site="site")
    assert data.groups is not None
    places = [np.flatnonzero(data.groups == number) for number in range(len(data.group_names))]
    train, test = (
        [part[part < data.n_train][:-10] for part in places],
        [part[part >= data.n_train] for part in places],
    )
    none = [np.empty(0, np.int64)] * len(places)
    return data, Partition(tuple(train), tuple(none), tuple(test), np.concatenate(test), names=data.group_names)


def told(data: Dataset, partition: Partition) -> dict[tuple[str, str], Floats]:
    """Shares of right answers by site, of each model."""
    site = np.repeat(np.arange(len(partition)), [len(at) for at in partition.test])
    sample = np.concatenate(partition.test)
    order = RNG.permutation(len(site))  # as rows may come in any order
    shares = {}
    for name, fitted, logits in baselines(data, partition, site[order], sample[order]):
        assert logits.shape == (len(site), 1, data.num_classes)
        right = logits[:, 0].argmax(1) == data.y[sample[order]]
        shares[name, fitted] = np.array([right[site[order] == number].mean() for number in range(len(partition))])
    return shares


def test_each_site_by_itself_and_all_in_one_place() -> None:
    shares = told(*cell(FRAME))
    assert [key[1] for key in shares] == [ALONE, POOLED, ALONE, POOLED]
    for (name, fitted), of_sites in shares.items():
        if fitted == ALONE:
            assert of_sites.min() > 0.9, name
        else:
            assert of_sites[2] < 0.5 < 0.7 < of_sites[:2].min(), name  # two sites outvote the third


def test_only_training_rows_are_fitted() -> None:
    """Other labels of the rows that are not trained on change no probability."""
    data, partition = cell(FRAME)
    y = data.y.copy()
    out = np.setdiff1d(np.arange(len(y)), np.concatenate(partition.train))
    y[out] = 1 - y[out]
    x = data.x.copy()
    x[np.setdiff1d(out, np.concatenate(partition.test))] = 1e6  # neither means nor deviations see them
    site = np.repeat(np.arange(3), [len(at) for at in partition.test])
    sample = np.concatenate(partition.test)
    first, second = (
        list(baselines(d, partition, site, sample)) for d in (data, replace(data, y=y, x=x, checksum="another"))
    )
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one[2], other[2])


@pytest.mark.parametrize("gap", [False, True])
def test_a_site_with_one_class_has_a_constant_answer(gap: bool) -> None:
    frame = FRAME.assign(ill=np.where(FRAME["site"] == "B", "ill", FRAME["ill"]))
    if gap:
        frame.loc[::7, "a"] = np.nan
    data, partition = cell(frame)
    if gap:
        empty = [at if number != 2 else at[:0] for number, at in enumerate(partition.train)]
        partition = replace(partition, train=tuple(empty))
    shares = told(data, partition)
    assert shares["logistic regression", ALONE][1] == shares["gradient-boosted trees", ALONE][1] == 1.0
