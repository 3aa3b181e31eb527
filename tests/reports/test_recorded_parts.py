"""Parts of a page that only some runs have: changes of the data, new clients, and how clients relate."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from bench.settings import DataChange
from bench.store.store import COLUMNS
from reports.page.changes import change_curves, change_table, changes, curves
from reports.page.client_relations import relations
from reports.page.page import write_report
from reports.pictures.new_clients import newcomer_bars, newcomer_table, newcomers
from reports.reading.load import load
from reports.reading.names import setting_text
from tests.reports.conftest import ROUNDS, cell_id, change_run, change_status

TIMELINE = [{"round": 4, "shifts": [{"name": "concept_shift", "clusters": 2}]}, {"round": 8, "add_classes": 1}]
COMPARED = {  # round, stage: accuracy
    (4, 0): 0.8, (4, 1): 0.4, (8, 0): 0.9, (8, 1): 0.7, (8, 2): 0.6, (12, 0): 0.5, (12, 1): 0.75, (12, 2): 0.65,
}  # fmt: skip
CURVE = [0.5, 0.6, 0.7, 0.8, 0.5, 0.75, 0.76, 0.7, 0.3, 0.4, 0.5, 0.65]


@pytest.fixture
def changing(store_writer, tmp_path):
    """A run of two seeds; in the second one every accuracy is 0.1 lower."""
    run = store_writer(tmp_path, seeds=2, methods=("fedavg",), alphas=(1.0,))
    change_run(run, lambda _: {"timeline": TIMELINE})
    for seed in (0, 1):
        folder = run / cell_id(f"fedavg-1-{seed}")
        place = ("pm", "local", "train_size", "test", "accuracy")
        rows = [(r, s, *place, value - 0.1 * seed) for (r, s), value in COMPARED.items()]
        noise = [(r, s, "pm", "local", "equal", "test", "accuracy", 0.0) for r, s in COMPARED]
        pd.DataFrame(rows + noise, columns=list(COLUMNS["changes"])).to_csv(folder / "changes.csv", index=False)
        metrics = pd.read_csv(folder / "metrics.csv", keep_default_na=False)
        place = (metrics["metric"] == "pm") & (metrics["mean"] == "train_size") & (metrics["split"] == "test")
        at = metrics[place & (metrics["quantity"] == "accuracy")].index
        metrics.loc[at, "value"] = [CURVE[r - 1] - 0.1 * seed for r in metrics.loc[at, "round"]]
        metrics.to_csv(folder / "metrics.csv", index=False)
    return run


def test_a_diverged_cell_guesses_and_never_recovers(changing):
    """One of ten classes; in the table's means, and not left out of them."""
    change_status(changing / cell_id("fedavg-1-1"), state="diverged")
    store = load([changing])
    entries = dict(change_table(store, changes(store)).rows)["fedavg"]
    assert [entry.value for entry in entries[:2]] == pytest.approx([(80 + 10) / 2, (40 + 10) / 2])
    assert [(entry.value, entry.note) for entry in entries[2:4]] == [(3, "(1/2)"), (pytest.approx(40), "(n=1 of 2)")]


def test_figures_by_hand(changing):
    """0.95 x 80 = 76: round 7 reaches it, three rounds after the change; 0.95 x 70 = 66.5 is reached in no round. Of
    the other seed round 7 has 66."""
    store = load([changing])
    assert store.figures["round"].min() > 8, "the reported round is after the last change"
    found = changes(store)
    expected = [(4, 80, 40, 3, 40), (8, 70, 60, np.nan, -5), (4, 70, 30, np.nan, 40), (8, 60, 50, np.nan, -5)]
    np.testing.assert_allclose(found[["round", "before", "after", "recovery", "forgotten"]], expected)
    table = change_table(store, found)
    assert [column.name for column in table.columns][:4] == [
        "before, round 4", "after, round 4", "recovery, round 4", "forgotten, round 4",
    ]  # fmt: skip
    entries = dict(table.rows)["fedavg"]
    assert (entries[0].value, entries[0].spread) == pytest.approx((75, 10 / 2**0.5))
    assert (entries[2].value, entries[2].note) == (3, "(1/2)")
    assert entries[6].note == "– (0/2)"


def test_curves_have_the_round_of_a_change_twice(changing):
    drawn = curves(load([changing]))
    one = drawn[drawn["seed"] == "0"]
    assert one["round"].tolist() == [1, 2, 3, 4, 4, 5, 6, 7, 8, 8, 9, 10, 11, 12]
    assert one[one["round"] == 4]["accuracy"].tolist() == pytest.approx([80, 40])
    assert one[one["round"] == 8]["accuracy"].tolist() == pytest.approx([70, 60])
    assert change_curves(load([changing]), drawn).png.startswith(b"\x89PNG")


def test_a_task_says_what_changes():
    timeline = [
        DataChange(round=4, shifts=[{"name": "rotation", "groups": 2}]).model_dump(),
        DataChange(round=8, shifts=[], exchange=0.5, add_classes=2, arrive=[3, 4]).model_dump(),
    ]
    assert setting_text("timeline", timeline) == (
        "after round 4 rotation groups=2; after round 8 no shift, exchange=0.5, add_classes=2, clients 3 to 4 arrive"
    )
    assert setting_text("timeline", []) == "no change"


@pytest.fixture
def held_out(store_writer, tmp_path):
    """A run whose last round also scored newcomers after 0 and 5 epochs."""
    run = store_writer(tmp_path, seeds=2, methods=("fedavg", "scd"), alphas=(1.0,))
    for (method, level), seed in itertools.product((("fedavg", 0.5), ("scd", 0.6)), (0, 1)):
        with open(run / cell_id(f"{method}-1-{seed}") / "metrics.csv", "a", encoding="utf-8") as file:
            for k, mean in itertools.product((0, 5), ("train_size", "equal")):
                file.write(f"{ROUNDS},new{k},local,{mean},test,accuracy,{level + 0.1 * seed + 0.01 * k}\n")
    return load([run])


def test_a_column_for_each_number_of_epochs(held_out):
    table = newcomer_table(held_out, newcomers(held_out))
    assert [column.name for column in table.columns] == ["0 epochs", "5 epochs"]
    entries = dict(table.rows)["scd"]
    assert [entry.value for entry in entries] == pytest.approx([65, 70])
    assert entries[0].spread == pytest.approx(10 / 2**0.5)


def test_a_diverged_cell_has_the_accuracy_of_guessing(held_out):
    """One of ten classes, 10 %, as in the main table; else the seeds that came to their end stood alone."""
    run = held_out.cells[0].view.folder.parent
    change_status(run / cell_id("scd-1-1"), state="diverged")
    store = load([run])
    entries = dict(newcomer_table(store, newcomers(store)).rows)["scd"]
    assert [entry.value for entry in entries] == pytest.approx([(60 + 10) / 2, (65 + 10) / 2])


def test_bars_of_one_colour_differ_in_their_hatches(held_out, drawn):
    """Seven colours are not enough for twelve methods, and the legend shows what the bars have."""
    twelve = replace(held_out, cells=tuple(replace(c, row=f"{c.row} {k}") for k in range(6) for c in held_out.cells))
    newcomer_bars(twelve, newcomers(twelve))
    looks = [[(bar.get_facecolor(), bar.get_hatch()) for bar in drawn[0].axes[0].patches[at::2]] for at in (0, 1)]
    assert looks[0] == looks[1] == [(bar.get_facecolor(), bar.get_hatch()) for bar in drawn[0].legends[0].get_patches()]
    assert len(set(looks[0])) == 12


MATRIX = [[9.0, 1.0, 2.0], [3.0, 9.0, 4.0], [5.0, 7.0, 9.0]]


@pytest.fixture
def related(store_writer, tmp_path):
    """A run in which one method of two left matrices; in its first task, clients have equally many samples."""
    run = store_writer(tmp_path, seeds=1, methods=("fedavg", "scd"))
    for alpha, sizes in (("1", [6, 6, 6]), ("0.1", [6, 3, 9])):
        content = {"clients": [0, 2, 5], "n_train": sizes, "matrices": {"coefficients": MATRIX, "similarity": MATRIX}}
        (run / cell_id(f"scd-{alpha}-0") / "relations.json").write_text(json.dumps(content))
    return run


@pytest.mark.long
def test_pictures_of_the_method_that_has_matrices(related):
    section = relations(load([related]))
    assert [picture.name for picture in section.pictures] == ["relations_1"]
    assert section.pictures[0].svg.decode().count("<image") == 2 * 2 + 4  # a matrix and its colour bar each
    assert section.pictures[0].png.startswith(b"\x89PNG")


@pytest.mark.long
def test_the_page_has_the_parts(changing, tmp_path):
    content = {"clients": [0, 2, 5], "n_train": [6, 3, 9], "matrices": {"coefficients": MATRIX}}
    (changing / cell_id("fedavg-1-0") / "relations.json").write_text(json.dumps(content))
    page = write_report([changing], tmp_path / "out").read_text(encoding="utf-8")
    assert "Changes of the data" in page
    assert "fedavg: how clients relate" in page
    assert (tmp_path / "out" / "tables" / "changes.csv").exists()
    assert (tmp_path / "out" / "figures" / "changes.svg").exists()
