"""Speed-ups and timelines from a real run: Ditto waiting, wait-free, and under FedBuff."""

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from reports.pictures.timeline import timelines
from reports.published.comparison import PublishedRow, published_table
from reports.published.speedup import speedup_table
from reports.reading.load import Store, load
from tests.runs.helpers import make_run

pytestmark = pytest.mark.long


def curve(store: Store, seconds: dict[str, list[float]], accuracy: list[float]) -> pd.DataFrame:
    rows = [
        (row, store.tasks[0], "0", k + 1, accuracy[k], one)
        for row, times in seconds.items()
        for k, one in enumerate(times)
    ]
    return pd.DataFrame(rows, columns=["row", "task", "seed", "round", "accuracy", "seconds"]).assign(megabytes=1.0)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    run = tmp_path_factory.mktemp("speedup") / "run"
    server = {"name": "fedbuff", "buffer": 2}
    cells = {"waits": {"wait_free": "off"}, "free": {}, "buffered": {"server": server, "rounds": 4}}
    methods: Any = [{"name": "ditto", "label": label, "set": settings} for label, settings in cells.items()]
    return load([make_run(run, run, methods, datasets=["digits"], rounds=3, steps=2)])


def test_a_row_is_compared_with_the_one_that_waits(store: Store) -> None:
    """By hand: the target of 90 % is reached in round 2 by both; 8 seconds against 5. A task without a curve yet is
    left out."""
    cells = (*store.cells, *(replace(cell, task="not begun") for cell in store.cells))
    curves = curve(store, {"waits": [4.0, 8.0, 12.0], "free": [3.0, 5.0, 8.0]}, [50.0, 92.0, 93.0])
    table = speedup_table(Store(store.runs, cells, store.figures), curves, [], {store.tasks[0]: 90.0})
    assert table is not None
    assert [label for label, _ in table.rows] == ["free", "buffered"]
    entries = dict(table.rows)["free"]
    assert entries[1].note == "waits"
    assert entries[2].value == 90
    assert [entry.value for entry in entries[3:6]] == pytest.approx([1.0, 1.6, 1.6])
    assert [entry.note for entry in dict(table.rows)["buffered"][3:6]] == ["– (n=0 of 0)"] * 3


def test_speed_ups_are_geometric_and_say_of_how_many_seeds(store: Store) -> None:
    """Twice as fast in one seed and half as fast in the other is no speed-up; a third seed does not get there."""
    waits, accuracy = [4.0, 8.0, 12.0], [50.0, 92.0, 93.0]
    seeds = (([2.0, 4.0, 6.0], accuracy), ([8.0, 16.0, 24.0], accuracy), ([2.0, 4.0, 6.0], [50.0, 60.0, 60.0]))
    parts = [curve(store, {"waits": waits, "free": free}, of).assign(seed=str(k)) for k, (free, of) in enumerate(seeds)]
    table = speedup_table(store, pd.concat(parts), [], {store.tasks[0]: 90.0})
    assert table is not None
    entries = [entries for row, entries in table.rows if row == "free"][-1]
    assert entries[5].value == pytest.approx(1.0)
    assert entries[5].note == "(×/÷ 2.67; n=2 of 3)"


def test_no_factor_of_the_paper_stands_beside_another_data_set(store: Store) -> None:
    """Of a table on the cells' own data it does; one on CIFAR-10 gives its targets, and a note that it is another."""
    seconds = {"waits": [4.0, 8.0, 12.0], "free": [3.0, 5.0, 8.0]}
    (cell,) = (cell for cell in store.cells if cell.row == "free")
    of_the_paper = published_table("scd_t4")
    axes = {"pm_epochs": cell.flat["hp.personal_epochs"], "target_acc": 80}
    row = PublishedRow(method="free", label="Free", metric="speedup", mean=2.5, std=None, **axes)
    for dataset, expected in (("digits", 2.5), ("cifar10", None)):
        printed = of_the_paper.model_copy(update={"dataset": dataset, "rows": [row]})
        table = speedup_table(store, curve(store, seconds, [50.0, 92.0, 93.0]), [printed], {store.tasks[0]: 90.0})
        assert table is not None
        at_80 = next(entries for label, entries in table.rows if label == "free" and entries[2].value == 80)
        assert at_80[6].value == expected
        assert any("dataset digits (paper: cifar10)" in note for note in table.notes) == (dataset == "cifar10")


def test_without_a_waiting_cell_there_is_nothing_to_compare(store: Store) -> None:
    cells = tuple(cell for cell in store.cells if cell.row != "waits")
    assert speedup_table(Store(store.runs, cells, store.figures), pd.DataFrame(), [], {}) is None


def test_the_timeline_is_drawn_from_what_the_run_kept(store: Store) -> None:
    spans = store.table("timeline")
    assert set(spans["kind"]) == {"download", "training", "upload", "personal training"}
    assert spans["round"].max() >= 3
    drawn = timelines(store)
    assert drawn is not None
    assert drawn.png.startswith(b"\x89PNG")
