"""Changes of the data in a report: every figure by hand, and the curves."""

import pandas as pd
import pytest

from bench.settings import DataChange
from bench.store.store import COLUMNS
from reports.page.changes import change_curves, change_table, changes, curves
from reports.page.page import write_report
from reports.reading.load import load
from reports.reading.names import setting_text
from tests.reports.conftest import cell_id, change_run, change_status

ENDS = (4, 8, 12)
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
    """0.95 x 80 = 76: round 7 reaches it, three rounds after the change; 0.95 x 70 = 66.5 is reached in no round."""
    found = changes(load([changing]))
    assert found["round"].tolist() == [4, 8, 4, 8]
    first, second = found.iloc[0], found.iloc[1]
    assert (first["before"], first["after"]) == (pytest.approx(80), pytest.approx(40))
    assert first["recovery"] == 3
    assert first["forgotten"] == pytest.approx(90 - 50)
    assert (second["before"], second["after"]) == (pytest.approx(70), pytest.approx(60))
    assert pd.isna(second["recovery"])
    assert second["forgotten"] == pytest.approx(70 - 75)
    assert pd.isna(found.iloc[2]["recovery"])  # of the other seed round 7 has 66 there


def test_a_row_of_the_table(changing):
    store = load([changing])
    assert store.figures["round"].min() > 8, "the reported round is after the last change"
    table = change_table(store, changes(store))
    assert [column.name for column in table.columns][:4] == [
        "before, round 4", "after, round 4", "recovery, round 4", "forgotten, round 4",
    ]  # fmt: skip
    entries = dict(table.rows)["fedavg"]
    assert entries[0].value == pytest.approx(75)
    assert entries[0].spread == pytest.approx(10 / 2**0.5)
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


@pytest.mark.long
def test_the_page_has_the_section(changing, tmp_path):
    page = write_report([changing], tmp_path / "out").read_text(encoding="utf-8")
    assert "Changes of the data" in page
    assert (tmp_path / "out" / "tables" / "changes.csv").exists()
    assert (tmp_path / "out" / "figures" / "changes.svg").exists()
