"""Models from outside: fitted on training rows only, of one site or of all."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from bench.data import Dataset, Floats, Partition
from datasets.tables import table
from reports.decision.baselines import ALONE, POOLED, baselines

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
