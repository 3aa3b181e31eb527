"""Costs against hand-made ledgers."""

import json

import pandas as pd
import pytest

from reports import cost
from reports.accuracy import PM
from reports.load import load


@pytest.fixture(scope="module")
def curve_and_costs(store):
    costs = cost.totals(store)
    return store, cost.curves(store.table("metrics"), costs, PM), costs


def test_costs_add_up_over_rounds(curve_and_costs):
    _, _, costs = curve_and_costs
    one = costs[(costs["row"] == "fedavg") & (costs["trial"] == "0")].groupby("round").first()
    assert one["megabytes"].to_numpy() == pytest.approx([0.8 * k for k in one.index])
    assert one["seconds"].to_numpy() == pytest.approx([1.5 * k for k in one.index])


def test_target_is_what_half_of_the_methods_reach():
    points = {"a": [0.5, 0.61], "b": [0.4, 0.58], "c": [0.2, 0.3]}
    rows = [(row, "t", "0", k, 100 * y) for row, values in points.items() for k, y in enumerate(values)]
    assert cost.targets(pd.DataFrame(rows, columns=["row", "task", "trial", "round", "accuracy"])) == {"t": 55.0}


@pytest.mark.parametrize(("bests", "target"), [((60, 90), 90), ((60, 70, 90, 95), 90), ((60, 70, 80), 70), ((61,), 60)])
def test_half_of_an_even_number_of_methods_is_half(bests, target):
    rows = [(str(k), "t", "0", 1, float(best)) for k, best in enumerate(bests)]
    assert cost.targets(pd.DataFrame(rows, columns=["row", "task", "trial", "round", "accuracy"])) == {"t": target}


def test_traffic_is_shared_by_the_clients_that_train(store_writer, tmp_path):
    """Of 20 clients one has no samples in the first seed, and four are held out."""
    run = store_writer(tmp_path, seeds=2, alphas=(1.0,), methods=("fedavg",), new_clients=4)
    path = run / "fedavg-1-0" / "partition.json"
    partition = json.loads(path.read_text())
    path.write_text(json.dumps({**partition, "n_train": [0, *partition["n_train"][1:]]}))
    store = load([run])
    costs = cost.totals(store)
    table = cost.cost_table(store, cost.curves(store.table("metrics"), costs, PM), costs)
    whole = 0.8 * 12
    assert table.rows[0][1][1].value == pytest.approx((whole / 15 + whole / 16) / 2)


def test_rounds_bytes_and_seconds_to_the_target(curve_and_costs):
    store, curve, costs = curve_and_costs
    table = cost.cost_table(store, curve, costs)
    entries = next(entries for label, entries in table.rows if label == "ditto")
    chosen = curve[(curve["row"] == "ditto") & (curve["task"] == "digits, α=1")]
    first = chosen[chosen["accuracy"] >= entries[2].value].groupby("trial")["round"].min()
    assert entries[3].value == first.mean()
    assert entries[4].value == pytest.approx(0.8 * first.mean())
    assert entries[5].value == pytest.approx(1.5 * first.mean())


def test_what_a_round_takes_stands_beside_the_accuracies(store_writer, tmp_path):
    """A mean over rounds, then over seeds; a run from before work was recorded has dashes and loads all the same."""
    run = store_writer(tmp_path, seeds=2, alphas=(1.0,), methods=("fedavg", "ditto"))
    for seed in (0, 1):
        work = [(k, 10 * k + seed, 100 * k, 3, 30) for k in range(1, 13)]
        columns = ["round", "steps", "samples", "server_steps", "server_samples"]
        pd.DataFrame(work, columns=columns).to_csv(run / f"ditto-1-{seed}" / "work.csv", index=False)
    store = load([run])
    table = cost.budget_table(store, "validation", cost.totals(store))
    old, new = (dict(zip([c.name for c in table.columns], entries, strict=True)) for _, entries in table.rows)
    assert [label for label, _ in table.rows] == ["fedavg", "ditto"]
    assert (new["steps"].value, new["samples"].value, new["server steps"].value) == (65.5, 650, 3)
    assert new["MB"].value == pytest.approx(0.8)
    scores = store.scores("ditto", "digits", "pm", "local", "train_size", "validation")
    assert new["PM"].value == pytest.approx(sum(scores.values()) / 2)
    assert [old[name].note for name in ("steps", "samples", "server steps")] == ["–"] * 3
    assert old["MB"].value == pytest.approx(0.8)
