"""Costs against hand-made ledgers."""

import json

import pandas as pd
import pytest

from bench.errors import UserError
from reports.reading.load import PM, load
from reports.tables import cost
from tests.reports.conftest import cell_id


def test_costs_add_up_over_rounds(store):
    costs = cost.totals(store)
    one = costs[(costs["row"] == "fedavg") & (costs["seed"] == "0")].groupby("round").first()
    assert one["megabytes"].to_numpy() == pytest.approx([0.8 * k for k in one.index])
    assert one["seconds"].to_numpy() == pytest.approx([1.5 * k for k in one.index])


def curve_of(points, task="t"):
    rows = [(row, task, seed, k + 1, float(y)) for (row, seed), values in points.items() for k, y in enumerate(values)]
    frame = pd.DataFrame(rows, columns=["row", "task", "seed", "round", "accuracy"])
    return frame.assign(megabytes=frame["round"] * 2.0, seconds=frame["round"] * 3.0)


def test_the_target_is_the_reference_s_whoever_else_is_there():
    """By hand: the last five evaluations are 80, 84, 86, 88, 92 of one seed, mean 86, and 90 of the other: 88."""
    base = {("fedavg", "0"): [10, 80, 84, 86, 88, 92], ("fedavg", "1"): [90] * 6}
    others = {("a", "0"): [99] * 6, ("b", "0"): [5] * 6}
    assert cost.targets(curve_of(base), "fedavg", {}) == {"t": 85.0}
    assert cost.targets(curve_of(base | others), "fedavg", {}) == {"t": 85.0}
    assert cost.targets(curve_of(others), "fedavg", {}) == {}
    assert cost.targets(curve_of(base), "fedavg", cost.read_targets(["70"])) == {"t": 70.0}
    both = cost.read_targets(["70", "digits, α=1=92.5"])
    assert both == {"": 70.0, "digits, α=1": 92.5}
    assert cost.targets(curve_of(base, "digits, α=1"), "fedavg", both) == {"digits, α=1": 92.5}


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        *((text, "write a percentage such as 90") for text in (["much"], ["t="], ["101"], ["t=-3"])),
        *((texts, "is given twice") for texts in (["70", "80"], ["t=70", "t=70"])),
    ],
)
def test_a_target_is_one_percentage_a_task(texts, said):
    with pytest.raises(UserError, match=said):
        cost.read_targets(texts)


def test_one_lucky_evaluation_is_no_arrival():
    curve = curve_of({("a", "0"): [50, 91, 80, 90, 92, 89]})
    assert cost.reached(curve, 90)[["round", "megabytes", "seconds"]].tolist() == [4, 8, 12]
    assert cost.reached(curve_of({("a", "0"): [50, 60, 95]}), 90) is None


def test_a_run_that_misses_the_target_is_not_dropped(store):
    """Expected running time: rounds 2 and 3 of those that arrive and 4 of the one that does not, by two arrivals."""
    task = store.tasks[0]
    curve = curve_of({("scd", "0"): [1, 90, 90, 1], ("scd", "1"): [1, 1, 90, 90], ("scd", "2"): [1, 90, 1, 1]}, task)
    table = cost.cost_table(store, curve, {task: 90.0})
    entries = dict(table.rows)["scd"]
    assert [entry.value for entry in entries[3:]] == [4.5, 9.0, 13.5]
    assert {entry.note for entry in entries[3:]} == {"(2/3)"}
    missed = dict(cost.cost_table(store, curve, {task: 95.0}).rows)["scd"]
    assert [entry.note for entry in missed[3:]] == ["– (0/3)"] * 3


def test_traffic_is_shared_by_the_clients_that_train(store_writer, tmp_path):
    """Of 20 clients one has no samples in the first seed, and four are held out."""
    run = store_writer(tmp_path, seeds=2, alphas=(1.0,), methods=("fedavg",), new_clients=4)
    path = run / cell_id("fedavg-1-0") / "partition.json"
    partition = json.loads(path.read_text())
    path.write_text(json.dumps({**partition, "n_train": [0, *partition["n_train"][1:]]}))
    store = load([run])
    table = cost.cost_table(store, cost.curves(store)["PM"], {})
    whole = 0.8 * 12
    assert table.rows[0][1][1].value == pytest.approx((whole / 15 + whole / 16) / 2)


def test_what_a_round_takes_stands_beside_the_accuracies(store_writer, tmp_path):
    """A mean over rounds, then over seeds; a run from before work was recorded has dashes and loads all the same."""
    run = store_writer(tmp_path, seeds=2, alphas=(1.0,), methods=("fedavg", "ditto"))
    for seed in (0, 1):
        work = [(k, 10 * k + seed, 100 * k, 3, 30) for k in range(1, 13)]
        columns = ["round", "steps", "samples", "server_steps", "server_samples"]
        pd.DataFrame(work, columns=columns).to_csv(run / cell_id(f"ditto-1-{seed}") / "work.csv", index=False)
    store = load([run])
    table = cost.budget_table(store)
    old, new = (dict(zip([c.name for c in table.columns], entries, strict=True)) for _, entries in table.rows)
    assert [label for label, _ in table.rows] == ["fedavg", "ditto"]
    assert (new["steps"].value, new["samples"].value, new["server steps"].value) == (65.5, 650, 3)
    assert new["MB"].value == pytest.approx(0.8)
    scores = store.scores("ditto", "digits, α=1", PM)
    assert new["PM"].value == pytest.approx(sum(scores.values()) / 2)
    assert [old[name].note for name in ("steps", "samples", "server steps")] == ["–"] * 3
    assert old["MB"].value == pytest.approx(0.8)
