"""Figures over clients against their definitions."""

import numpy as np
import pandas as pd
import pytest

from bench.runs.results import tidy
from reports import fairness


@pytest.fixture(scope="module")
def clients(store):
    return fairness.client_accuracies(store, "validation")


def test_worst_clients_by_hand():
    accuracies = np.arange(1.0, 21.0)
    assert fairness.worst_decile(accuracies) == pytest.approx(2.9)
    assert fairness.bottom_mean(accuracies) == 1.5
    assert fairness.bottom_mean(np.array([3.0, 1.0, 2.0])) == 1.0


def test_clients_are_those_of_the_chosen_round(run, clients):
    """Their mean is the figure that the tables report."""
    f = tidy(run)
    chosen = f[(f.metric == "pm") & (f["mean"] == "equal") & (f.selection == "validation")]
    for (row, trial, task), group in clients.groupby(["row", "trial", "task"]):
        alpha = float(task.split("=")[1])
        one = chosen[(chosen.label == row) & (chosen.seed == int(trial)) & (chosen.alpha == alpha)]
        assert group["accuracy"].mean() == pytest.approx(100 * one["value"].item())


def test_gain_is_paired_by_client_and_seed(store, clients):
    gains = fairness.gains(clients, store)
    assert "local" not in set(gains["row"])
    keys = ["task", "trial", "client"]
    by_key = clients.set_index(["row", *keys])["accuracy"]
    for one in gains.sample(20, random_state=0).itertuples():
        place = (one.task, one.trial, one.client)
        assert one.gain == by_key[(one.row, *place)] - by_key[("local", *place)]


def test_share_of_clients_worse_than_local(store, clients):
    table = fairness.fairness_table(store, clients)
    gains = fairness.gains(clients, store)
    chosen = gains[(gains["row"] == "fedavg") & (gains["task"] == "digits, α=1")]
    share = 100 * (chosen["gain"] < 0).groupby(chosen["trial"]).mean()
    entry = next(entries for label, entries in table.rows if label == "fedavg")[5]
    assert (entry.value, entry.spread) == pytest.approx((share.mean(), share.std()))
    local = next(entries for label, entries in table.rows if label == "local")
    assert local[5].note == "–"


def test_without_local_nothing_is_said_of_gains(store, clients):
    others = clients[clients["row"] != "local"]
    assert isinstance(others, pd.DataFrame)
    assert fairness.gains(others, store).empty
