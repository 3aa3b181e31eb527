"""What the papers' tables print, from cells whose numbers are written by hand."""

import json

import numpy as np
import pandas as pd
import pytest

from bench.store.store import COLUMNS
from reports.published.comparison import PublishedTable, comparison, published_tables
from reports.published.measures import MEASURES, Place, measured
from reports.reading.load import PM_EQUAL, load
from tests.reports.conftest import cell_id, change_status

CURVES = {  # mean personalized accuracy after rounds 2, 4 and 6, by seed
    "local": ([0.2, 0.3, 0.4], [0.2, 0.3, 0.4]),
    "fedavg": ([0.5, 0.6, 0.7], [0.5, 0.7, 0.6]),
    "ditto": ([0.7, 0.8, 0.8], [0.6, 0.7, 0.8]),
    "scd": ([0.7, 0.5, 0.9], [0.6, 0.6, 0.6]),
}
CLIENTS = {  # correct answers of clients 0 and 1, of ten each, in every round and seed
    "local": (2, 6),
    "fedavg": (4, 4),
    "ditto": (5, 7),
    "scd": (9, 9),
}


@pytest.fixture
def cells(store_writer, tmp_path):
    """The cells of each method, and the store."""
    run = store_writer(tmp_path, seeds=2, alphas=(1.0,), methods=tuple(CURVES), protocol="paper", epochs=3)
    for method, by_seed in CURVES.items():
        for seed, curve in enumerate(by_seed):
            means = {k: {"equal": one, "train_size": one} for k, one in zip((2, 4, 6), curve, strict=True)}
            write_tables(run / cell_id(f"{method}-1-{seed}"), means, dict.fromkeys(means, CLIENTS[method]))
    return read(run)


def write_tables(folder, means, right):
    """Accuracies of personalized models by round and mean; right answers of clients, of ten each, by round."""
    rows = [(k, "pm", "local", mean, "test", "accuracy", one) for k, by in means.items() for mean, one in by.items()]
    pd.DataFrame(rows, columns=list(COLUMNS["metrics"])).to_csv(folder / "metrics.csv", index=False)
    rows = [(k, "pm", client, "test", one, 10) for k, of in right.items() for client, one in enumerate(of)]
    pd.DataFrame(rows, columns=list(COLUMNS["clients"])).to_csv(folder / "clients.csv", index=False)


def read(run):
    """The store of a run, and its cells by method."""
    store = load([run])
    return store, {method: [cell for cell in store.cells if cell.view.label == method] for method in CURVES}


def ask(cells, metric, method, **axes):
    """One measure, with FedAvg as the table's first method."""
    store, by_method = cells
    place = Place(axes, by_method[method], by_method["fedavg"], [[], *map(by_method.get, ("fedavg", "ditto", "scd"))])
    return measured(store, metric, place)


@pytest.mark.parametrize(
    ("metric", "method", "expected"),
    [
        ("rounds_to_70", "fedavg", 5),  # rounds 6 and 4
        ("rounds_to_70", "ditto", 3),
        ("rounds_to_70", "local", "never"),
        ("rounds_to_70", "scd", 2),
        ("rounds_to_70", "scd", "(1 of 2 seeds)"),
        ("speedup_over_slowest", "ditto", (6 * 4 / (2 * 4)) ** 0.5),  # over whoever gets there with every seed
        ("speedup_over_slowest", "fedavg", 1),
        ("speedup_over_slowest", "scd", "1 of 2 seeds"),
        ("individual_gain", "ditto", 20),  # over training alone: 30 and 10 points
        ("individual_gain", "local", "–"),
        ("comcost", "fedavg", 12 * (4e5 + 2e4) / 4),  # scalars; a broadcast counts once
    ],
)
def test_measures_by_hand(cells, metric, method, expected):
    entry = ask(cells, metric, method)
    assert (entry.note if isinstance(expected, str) else entry.value) == pytest.approx(expected)


def test_what_is_measured_of_clients(cells):
    """A gain spreads over them; one of them goes by its number, and does not move where another has no tests."""
    assert ask(cells, "individual_gain", "ditto").spread == pytest.approx(10 * 2**0.5)
    of = {name: ask(cells, "client", "ditto", client_id=name) for name in ("c1", "c2", "mean", "c9")}
    assert [of[name].value for name in ("c1", "c2", "mean")] == pytest.approx([50, 70, 80])
    assert of["c9"].note == "–"
    sizes = [np.mean(cell.json("partition")["n_train"]) for cell in cells[1]["fedavg"]]
    assert ask(cells, "train_samples", "fedavg").value == pytest.approx(np.mean(sizes))
    for cell in cells[1]["ditto"]:
        file = cell.view.folder / "clients.csv"
        clients = pd.read_csv(file)
        clients.loc[clients["client"] == 0, ["correct", "samples"]] = 0
        clients.to_csv(file, index=False)
    later = read(cells[0].cells[0].view.folder.parent)
    assert ask(later, "client", "ditto", client_id="c1").note == "–"
    assert ask(later, "client", "ditto", client_id="c2").value == pytest.approx(70)
    assert measured(None, "client", Place({}, [], [], [])).note == "missing"


def test_a_diverged_seed_is_no_seed_less(cells):
    """Ditto's second seed diverges: one of ten classes is guessed, no target is reached, as in the main table."""
    run = cells[0].cells[0].view.folder.parent
    change_status(run / cell_id("ditto-1-1"), state="diverged")
    again = read(run)
    assert ask(again, "PM", "ditto").value == pytest.approx((80 + 10) / 2)
    assert ask(again, "PM_last_10", "ditto").value == pytest.approx((100 * (0.7 + 0.8 + 0.8) / 3 + 10) / 2)
    assert ask(again, "individual_gain", "ditto").value == pytest.approx((20 + (10 - 40)) / 2)
    assert ask(again, "client", "ditto", client_id="c2").value == pytest.approx((70 + 10) / 2)
    half = ask(again, "rounds_to_70", "ditto")
    assert (half.value, half.note) == (2, "(1 of 2 seeds)")
    assert ask(again, "speedup_over_slowest", "ditto").note == "1 of 2 seeds"


def test_speed_counts_the_images_of_local_epochs(cells):
    by_method = cells[1]
    partition = json.loads((by_method["ditto"][0].view.folder / "partition.json").read_text())
    images = sum(partition["n_train"]) * 3 * 12
    (by_method["ditto"][1].view.folder / "timing.json").write_text('{"seconds": 6.5}')
    speeds = [images / 3.25, sum(by_method["ditto"][1].json("partition")["n_train"]) * 3 * 12 / 6.5]
    assert ask(cells, "images_per_s", "ditto").value == pytest.approx(sum(speeds) / 2)
    assert ask(cells, "relative_speed", "fedavg").value == pytest.approx(100)
    assert ask(cells, "relative_speed", "ditto").value < 100


def test_speed_counts_the_clients_that_a_round_takes(store_writer, tmp_path):
    """Of 20 clients one has no samples and three are held out; a share of 0.17 of the other 16 is 3."""
    run = store_writer(
        tmp_path, seeds=1, alphas=(1.0,), methods=("fedavg",), protocol="paper", participation=0.17, new_clients=3
    )
    path = run / cell_id("fedavg-1-0") / "partition.json"
    partition = json.loads(path.read_text())
    path.write_text(json.dumps({**partition, "n_train": [0, *[40] * 19]}))
    store = load([run])
    entry = measured(store, "images_per_s", Place({}, list(store.cells), [], []))
    assert entry.value == pytest.approx(3 * 40 * store.cells[0].view.settings.epochs * 12 / 3.25)


def test_clients_are_those_of_the_round_that_the_accuracies_are_of(cells):
    """Here the equal mean is best in round 4 and the weighted one in round 6."""
    store, by_method = cells
    means = {4: {"equal": 0.9, "train_size": 0.7}, 6: {"equal": 0.8, "train_size": 0.9}}
    for cell in by_method["ditto"]:
        write_tables(cell.view.folder, means, {4: (10, 8), 6: (9, 7)})
    again = read(store.cells[0].view.folder.parent)
    assert ask(again, "acc", "ditto").value == pytest.approx(90)
    assert ask(again, "client", "ditto", client_id="c1").value == pytest.approx(100)
    assert ask(again, "individual_gain", "ditto").value == pytest.approx(50)  # 80 and 20 points


def table(rows, **fields):
    """A printed table of one paper that has none of these."""
    plain = {"id": "t", "number": "1", "title": "t", "dataset": "digits", "axes": {}, "metrics": ["client"]}
    plain |= {"unit": "percent", "printed": {}, "setting": {}}
    return PublishedTable(**{**plain, **fields}, rows=[{"label": "x", "std": None, "mean": 1.0, **row} for row in rows])


def test_a_row_that_varies_one_setting_has_the_others_at_the_table_s_value(store_writer, tmp_path):
    runs = [
        store_writer(tmp_path / f"{tau}", seeds=1, alphas=(alpha,), methods=("scd",), protocol="paper", hp={"tau": tau})
        for tau, alpha in ((0.4, 1.0), (0.2, 0.5))
    ]
    printed = table(
        [
            {"method": "scd", "metric": "client", "label": "N=20", "param": "N", "value": 20},
            {"method": "scd", "metric": "client", "label": "tau=0.2", "param": "tau", "value": 0.2},
        ],
        setting={"N": 20, "tau": 0.4},
        axes={"param": ["N", "tau"]},
    )
    found = dict(comparison(load(runs), printed).rows)
    for label, run in zip(("N=20", "tau=0.2"), runs, strict=True):
        alone = load([run])
        (score,) = alone.scores(alone.rows[0], alone.tasks[0], PM_EQUAL, "best").values()
        assert found[label][1].value == pytest.approx(score)
        assert found[label][1].note == "(n=1)"


@pytest.mark.parametrize(("same", "dist"), [(True, "iid"), (False, "niid")])
def test_iid_means_the_same_classes_and_long_numbers_are_divided_on_both_sides(store_writer, tmp_path, same, dist):
    run = store_writer(tmp_path, seeds=1, alphas=(1.0,), methods=("scd",), partition_options={"same_classes": same})
    rows = [{"method": "scd", "metric": "comcost", "dist": kind, "mean": 4.4e7} for kind in ("iid", "niid")]
    shown = comparison(load([run]), table(rows))
    for at, kind in enumerate(("iid", "niid")):
        theirs, ours, difference = shown.rows[0][1][3 * at : 3 * at + 3]
        assert shown.columns[3 * at].group == f"partition={kind}, comcost (10⁷)"
        assert (theirs.figure, ours.note) == ("4.40", "(n=1)" if kind == dist else "missing")
        assert kind != dist or difference.value == pytest.approx(12 * (4e5 + 2e4) / 4 / 1e7 - 4.4)


def test_every_metric_of_a_printed_table_but_two_speedups_is_measured():
    left = {metric for printed in published_tables().values() for metric in printed.metrics} - set(MEASURES)
    assert left == {"speedup"}
