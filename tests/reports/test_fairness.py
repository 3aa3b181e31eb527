"""Figures over clients against their definitions."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.results.results import tidy
from reports.tables import fairness


@pytest.fixture(scope="module")
def clients(store):
    return fairness.client_accuracies(store)


def test_clients_are_those_of_the_chosen_round(run, clients):
    """Their mean is the figure that the tables report."""
    f = tidy(run)
    chosen = f[(f.metric == "pm") & (f["mean"] == "equal") & (f.selection == "validation")]
    for (row, seed, task), group in clients.groupby(["row", "seed", "task"]):
        alpha = float(task.split("=")[1])
        one = chosen[(chosen.label == row) & (chosen.seed == int(seed)) & (chosen.alpha == alpha)]
        assert group["accuracy"].mean() == pytest.approx(100 * one["value"].item())


def test_share_of_clients_worse_than_local(store, clients):
    """A gain is paired by client and seed; without training alone nothing is said of gains."""
    table = fairness.fairness_table(store, clients)
    gains = fairness.gains(clients, store)
    keys = ["row", "task", "seed", "client"]
    by_key = clients.set_index(keys)["accuracy"]
    for row, *place, gain in gains[[*keys, "gain"]].sample(20, random_state=0).itertuples(index=False):
        assert row != "local"
        assert gain == by_key[(row, *place)] - by_key[("local", *place)]
    assert fairness.gains(clients[clients["row"] != "local"], store).empty
    chosen = gains[(gains["row"] == "fedavg") & (gains["task"] == "digits, α=1")]
    share = 100 * (chosen["gain"] < 0).groupby(chosen["seed"]).mean()
    at = [column.name for column in table.columns].index("worse than local")
    entry = next(entries for label, entries in table.rows if label == "fedavg")[at]
    assert (entry.value, entry.spread) == pytest.approx((share.mean(), share.std()))
    local = next(entries for label, entries in table.rows if label == "local")
    assert local[at].note == "–"


def test_clients_of_a_diverged_cell_are_at_chance_level(store, clients):
    """Ditto's, once, of ten classes: the same clients as in any other row of the seed; all others are as they were."""
    whole = fairness.with_diverged(clients, store)
    pd.testing.assert_frame_equal(whole.iloc[: len(clients)], clients, check_dtype=False)
    diverged = whole.iloc[len(clients) :]
    assert set(zip(diverged["row"], diverged["task"], diverged["seed"], strict=True)) == {("ditto", "digits, α=1", "1")}
    assert set(diverged["accuracy"]) == {10}
    assert (diverged["correct"] == diverged["samples"] / 10).all()
    other = clients[(clients["row"] == "local") & (clients["task"] == "digits, α=1") & (clients["seed"] == "1")]
    for name in ("client", "samples", "n_train"):
        assert list(diverged[name]) == list(other[name])
    finished = clients[clients["row"] != "ditto"]
    assert fairness.with_diverged(finished.iloc[:0], store).empty


def test_equal_clients_spread_as_the_binomial_says():
    """10 % right in 4 samples: the variance of an accuracy is 0.9 * 0.1 / 4, and no client differs from another."""
    samples = np.full(200, 4.0)
    null = fairness.equal_clients(np.full(200, 0.4), samples, "here")
    assert fairness.spread(null).mean() == pytest.approx(15, rel=0.02)
    assert null.mean() == pytest.approx(10, abs=0.2)
    assert np.array_equal(null, fairness.equal_clients(np.full(200, 0.4), samples, "here"))


def test_worst_clients_and_shrinkage_by_hand():
    """Two clients of four samples, 1 and 3 right: sum n (p_k - p)^2 / (p (1 - p)) = 2, less K - 1 = 1, over 3."""
    correct, samples = np.array([1.0, 3.0]), np.array([4.0, 4.0])
    assert fairness.correlation(correct, samples) == pytest.approx(1 / 3)
    accuracies = np.arange(1.0, 21.0)
    assert fairness.worst_decile(accuracies) == pytest.approx(2.9)
    assert [fairness.bottom_mean(some) for some in (accuracies, np.array([3.0, 1.0, 2.0]))] == [1.5, 1.0]
    kept = np.sqrt((4 / 3) / 2)  # n rho / (1 + (n - 1) rho)
    assert fairness.shrunk(correct, samples) == pytest.approx([50 - 25 * kept, 50 + 25 * kept])


def test_clients_of_a_beta_are_told_from_chance():
    """A known beta: the spread seen is too wide, the shrunk one is right; equal clients shrink to next to nothing."""
    rng = np.random.default_rng(0)
    samples = rng.integers(5, 30, size=4000).astype(float)
    for a, true in ((8.0, 100 * np.sqrt(8 * 2 / (100 * 11))), (8e6, 0.0)):
        correct = rng.binomial(samples.astype(int), rng.beta(a, a / 4, size=4000)).astype(float)
        assert fairness.spread(100 * correct / samples) > true + 3
        assert fairness.spread(fairness.shrunk(correct, samples)) == pytest.approx(true, abs=2)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 12)), min_size=2, max_size=30))
def test_a_shrunk_accuracy_lies_between_the_pooled_and_the_seen_one(clients):
    samples = np.array([n for _, n in clients], dtype=float)
    correct = np.minimum([right for right, _ in clients], samples)
    both = [np.full(len(samples), 100 * correct.sum() / samples.sum()), 100 * correct / samples]
    shrunk = fairness.shrunk(correct, samples)
    assert ((np.min(both, axis=0) - 1e-9 <= shrunk) & (shrunk <= np.max(both, axis=0) + 1e-9)).all()


def test_the_table_prints_the_null_and_leaves_out_clients_with_too_few_test_samples(store, clients):
    one = clients[(clients["row"] == "fedavg") & (clients["seed"] == "0") & (clients["task"] == "digits, α=1")].copy()
    names = [f"{column.group} {column.name}".strip() for column in fairness.fairness_table(store, one).columns]

    def row(chosen):
        ((_, entries),) = fairness.fairness_table(store, chosen).rows
        return dict(zip(names, entries, strict=True))

    whole = row(one)
    assert whole["tested"].value == len(one)
    correct, samples = (one[name].to_numpy(dtype=float) for name in ("correct", "samples"))
    null = fairness.equal_clients(correct, samples, "fedavg", "digits, α=1", "0")
    assert whole["worst decile equal clients"].value == pytest.approx(fairness.worst_decile(null).mean())
    assert whole["spread shrunk"].value == pytest.approx(fairness.spread(fairness.shrunk(correct, samples)))
    one.loc[one.index[0], ["correct", "samples", "accuracy"]] = [0, fairness.LEAST - 1, 0.0]
    fewer = row(one)
    assert fewer["tested"].value == len(one) - 1
    assert fewer["spread seen"].value == pytest.approx(one["accuracy"].iloc[1:].std())
