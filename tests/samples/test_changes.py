"""Data that change: who has which samples before and after each change."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.data import Dataset, Partition, without_tests
from bench.federation.cell_data import apply_shifts, load_all, load_dataset, load_partition
from bench.runs.blind import read_data, without_labels, write_data
from bench.settings import Settings

CELL: dict[str, Any] = {"method": "fedavg", "clients": 6, "rounds": 40, "alpha": 0.5}
LABELS = {"name": "concept_shift", "clusters": 2}
TURNED = {"name": "rotation", "groups": 4}
PARTS = ("train", "validation", "test")


def data(*changes: dict[str, Any], **others: Any) -> tuple[Dataset, Partition]:
    """The data of a cell that changes after rounds 10, 20, ..."""
    timeline = [{"round": 10 * (k + 1), **change} for k, change in enumerate(changes)]
    dataset, partition, _ = load_all(Settings(**{**CELL, **others, "timeline": timeline}))
    return dataset, partition


def samples(dataset: Dataset, indices: Any) -> tuple[bytes, bytes]:
    return dataset.x[indices].tobytes(), dataset.y[indices].tobytes()


def assert_same_samples(
    first: tuple[Dataset, Partition], other: tuple[Dataset, Partition], clients: Any = None, parts: Any = PARTS
) -> None:
    for part in parts:
        lists = getattr(first[1], part), getattr(other[1], part)
        for client in range(len(first[1])) if clients is None else clients:
            assert samples(first[0], lists[0][client]) == samples(other[0], lists[1][client]), (part, client)


@pytest.mark.parametrize("shifts", [[], [TURNED], [{"name": "label_noise"}]])
def test_each_stage_is_the_cell_with_its_shifts(shifts: list[dict[str, Any]]) -> None:
    """Before the change the data are those of a cell without one; after it those of a cell with the later shifts."""
    changed = data({"shifts": [LABELS]}, {"shifts": []}, shifts=shifts)
    stages = changed[1].stages
    assert [change.round for change in changed[1].changes] == [10, 20]
    for stage, same in zip(stages, (shifts, [LABELS], []), strict=True):
        assert_same_samples((changed[0], stage), data(shifts=same))
    common = data(shifts=shifts)
    assert samples(changed[0], stages[0].global_test) == samples(common[0], common[1].global_test)
    assert [changed[1].stage(number) for number in (1, 10, 11, 20, 21, 40)] == [0, 0, 1, 1, 2, 2]


def test_without_shifts_all_stages_share_the_samples_that_were_loaded() -> None:
    dataset, partition = data({"exchange": 1.0}, {"add_classes": 3})
    assert dataset.x is load_dataset(Settings(**CELL)).x
    assert len(partition.stages) == 3


def test_new_classes_are_nobodys_before_they_come() -> None:
    dataset, partition = data({"add_classes": 2}, {"add_classes": 3})
    whole = data()
    known = []
    for stage in partition.stages:
        lists = [*stage.train, *stage.validation, *stage.test, stage.global_test]
        known.append(set(dataset.y[np.concatenate(lists)].tolist()))
    assert [len(labels) for labels in known] == [5, 7, 10]
    assert known[0] < known[1] < known[2]
    assert_same_samples((dataset, partition.stages[2]), whole)
    other = data({"add_classes": 2}, {"add_classes": 3}, seed=1)
    assert set(other[0].y[np.concatenate(other[1].train)].tolist()) != known[0]  # which, the seed decides


def test_an_exchange_moves_samples_from_client_to_client() -> None:
    _, partition = data({"exchange": 1.0}, {"exchange": 0.5})
    before, after, later = partition.stages
    for part in PARTS:
        lists = [sorted(indices.tobytes() for indices in getattr(stage, part)) for stage in (before, after, later)]
        assert lists[0] == lists[1] == lists[2]
    moved = [[not np.array_equal(a, b) for a, b in zip(x.train, y.train, strict=True)] for x, y in
             ((before, after), (after, later))]  # fmt: skip
    assert sum(moved[0]) == 6
    assert sum(moved[1]) == 3
    owner = {indices.tobytes(): i for i, indices in enumerate(before.train)}
    for part in PARTS[1:]:  # a client's validation and test samples come along
        for i, indices in enumerate(after.train):
            giver = owner[indices.tobytes()]
            assert np.array_equal(getattr(after, part)[i], getattr(before, part)[giver])


def test_clients_come_and_go() -> None:
    dataset, partition = data({"arrive": [4, 5]}, {"leave": [0, 1]}, {"arrive": [1, 1]}, {"shifts": [LABELS]})
    assert [stage.clients for stage in partition.stages] == [
        [0, 1, 2, 3], [0, 1, 2, 3, 4, 5], [2, 3, 4, 5], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5],
    ]  # fmt: skip
    assert all(not len(getattr(partition, part)[i]) for part in PARTS for i in (4, 5))
    assert_same_samples((dataset, partition.stages[1]), data())
    assert_same_samples((dataset, partition.stages[4]), data(shifts=[LABELS]), (1, 2, 3, 4, 5))


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.sampled_from([
            {"shifts": [LABELS]}, {"shifts": [TURNED, LABELS]}, {"shifts": []}, {"exchange": 0.5}, {"exchange": 1.0},
            {"add_classes": 2}, {"shifts": [{"name": "missing_classes", "k": 2}]},
        ]),
        min_size=1, max_size=4,
    ),
    st.sampled_from([
        {}, {"partition": "shards", "alpha": None}, {"partition_options": {"shares": [0.5, 0.2, 0.3]}},
        {"protocol": "paper"}, {"protocol": "tuning"},
    ]),
    st.integers(0, 3),
)  # fmt: skip
def test_nobody_trains_on_what_is_scored_at_another_time(
    changes: list[dict[str, Any]], others: dict[str, Any], seed: int
) -> None:
    """Whatever changes, of the loaded samples those that are trained on, validated on and tested on are others."""
    cell = Settings(**{**CELL, **others, "seed": seed})
    loaded = load_dataset(cell)
    timeline = [{"round": 10 * (k + 1), **change} for k, change in enumerate(changes)]
    x = np.arange(len(loaded.y), dtype=np.float32)[:, None, None, None] * np.ones((1, 1, 8, 8), np.float32)
    marked = Dataset("marked", x, loaded.y, loaded.n_train, 10, (0.0,), (1.0,), "")
    dataset, partition = apply_shifts(
        cell.model_copy(update={"timeline": Settings(**{**CELL, "timeline": timeline}).timeline}),
        marked, load_partition(cell, marked),
    )  # fmt: skip
    used = {
        part: {int(dataset.x[i, 0, 4, 4]) for stage in partition.stages for i in np.concatenate(getattr(stage, part))}
        for part in PARTS
    }
    assert used["train"]
    assert sum(map(len, used.values())) == len(set.union(*used.values()))


def test_a_trial_of_a_sweep_has_no_test_of_any_stage() -> None:
    dataset, partition = data({"shifts": [LABELS]}, {"add_classes": 1}, protocol="tuning")
    whole = data(shifts=[LABELS])
    smaller, lists = without_tests(dataset, partition)
    assert len(smaller.y) == len(dataset.y)
    assert all(not len(indices) for stage in lists.stages for indices in stage.test)
    used = np.unique(np.concatenate([i for stage in partition.stages for i in (*stage.train, *stage.validation)]))
    assert len(used) == len(dataset.y)
    last = partition.stages[2]
    assert_same_samples((dataset, last), whole, parts=PARTS[:2])


def test_what_a_blind_worker_gets(tmp_path: Any) -> None:
    """All stages, and no label of a test of any of them."""
    whole, partition = data({"shifts": [LABELS]}, {"exchange": 1.0})
    write_data(tmp_path / "cell", tmp_path, (whole, partition, None))
    handed, lists, _ = read_data(tmp_path / "cell")
    assert lists.hash == partition.hash
    used = np.concatenate([i for stage in partition.stages for i in (*stage.train, *stage.validation)])
    assert np.array_equal(handed.y[used], whole.y[used])
    assert set(handed.y[np.setdiff1d(np.arange(len(whole.y)), used)]) == {0}
    assert np.array_equal(without_labels(whole, partition).y, handed.y)


def test_a_hash_tells_changes_apart() -> None:
    hashes = [data(change)[1].hash for change in ({"exchange": 1.0}, {"shifts": [LABELS]}, {"add_classes": 1})]
    assert len({*hashes, data()[1].hash}) == 4
    later = Settings(**{**CELL, "timeline": [{"round": 11, "exchange": 1.0}]})
    assert load_all(later)[1].hash not in hashes
