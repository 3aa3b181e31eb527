"""`file`: another system's split, reproduced exactly or refused."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.data import Dataset, Indices, Partition, Split
from bench.errors import UserError
from bench.plugin import PARTITIONS
from bench.rng import generator
from datasets.assemble import assemble
from tests.datasets.helpers import divide, load_npz

Y = np.array([0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1])
DATASET = Dataset("toy", np.zeros((12, 1), np.float32), Y, 8, 2, (0.0,), (1.0,), "-")
"""Samples 0 to 7 are the official training part, 8 to 11 the test part."""
LISTS: dict[str, Any] = {
    "train": [[3, 0, 4], [7, 5], []],
    "validation": [[1], [], []],
    "test": [[10, 8], [8], []],
    "global_test": [9, 11],
}


def make(path: Path, protocol: str = "honest") -> Partition:
    return divide(DATASET, "file", protocol=protocol, validation_share=0.5, path=str(path))


def write(folder: Path, content: Any, *, ending: str = "json") -> Path:
    path = folder / f"split.{ending}"
    if ending == "json":
        path.write_text(json.dumps(content))
        return path
    arrays = {}
    for name, lists in content.items():
        if name == "global_test":
            arrays[name] = np.array(lists)
        else:
            arrays[name] = np.array([sample for own in lists for sample in own])
            arrays[f"{name}_sizes"] = np.array([len(own) for own in lists])
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("ending", ["json", "npz"])
@pytest.mark.parametrize("protocol", ["honest", "paper"])
def test_lists_are_taken_as_they_are(tmp_path: Path, ending: str, protocol: str) -> None:
    partition = make(write(tmp_path, LISTS, ending=ending), protocol=protocol)
    for name in ("train", "validation", "test"):
        assert [own.tolist() for own in getattr(partition, name)] == LISTS[name]
    assert partition.global_test.tolist() == LISTS["global_test"]


@pytest.mark.parametrize("protocol", [4, 5])
@pytest.mark.parametrize("listed", [list, np.array])
def test_a_partition_of_flbench(tmp_path: Path, protocol: int, listed: Any) -> None:
    """Its `partition.pkl`, as of 06e658b: indices count through both official parts; some parts are empty."""
    lists: dict[str, Any] = {"train": [[3, 8, 4], [5], []], "val": [[], [], []], "test": [[10, 0], [9], []]}
    clients = [{part: listed(lists[part][client]) for part in lists} for client in range(3)]
    separation = {"train": [0, 1, 2], "val": [0, 1, 2], "test": [0, 1, 2], "total": 3}
    path = tmp_path / "partition.pkl"
    path.write_bytes(pickle.dumps({"separation": separation, "data_indices": clients}, protocol))
    partition = make(path, protocol="paper")
    assert [own.tolist() for own in partition.train] == lists["train"]
    assert [own.tolist() for own in partition.test] == lists["test"]
    assert [len(own) for own in make(path).validation] == [2, 0, 0]  # the harness's, as there is none in the file
    assert not len(partition.global_test)
    clients[1]["val"] = listed([6])
    path.write_bytes(pickle.dumps({"separation": separation, "data_indices": clients}, protocol))
    assert [own.tolist() for own in make(path).validation] == [[], [6], []]


@pytest.mark.parametrize(
    "content", [[], {"data_indices": []}, {"data_indices": [{"train": [0]}]}, {"data_indices": [[0, 1]]},
                {"data_indices": [{"train": [0.5], "val": [], "test": []}]}],
)  # fmt: skip
def test_a_pickle_that_is_no_partition_is_refused(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "partition.pkl"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(UserError, match=r"partition\.pkl is no partition of FL-bench"):
        make(path)


def test_the_harness_makes_what_is_absent(tmp_path: Path) -> None:
    partition = make(write(tmp_path, {"train": [[0, 1, 2, 3], [4, 5], [6]]}))
    assert [len(own) for own in partition.validation] == [2, 1, 0]
    assert [len(own) for own in partition.test] == [2, 1, 1]  # 4 * 4 / 8, 2 * 4 / 8, and 1 * 4 / 8 rounded up
    assert set(partition.test[0]) == {8, 9}
    assert partition.global_test.tolist() == [8, 9, 10, 11]
    assert all(len(held) == 0 for held in make(tmp_path / "split.json", protocol="paper").validation)
    given_validation = make(write(tmp_path, {"train": [[0, 1, 2], [4], []], "validation": [[3], [5], []]}))
    assert [len(own) for own in given_validation.test] == [2, 1, 0]


@pytest.mark.parametrize("common", [{}, {"global_test": []}])
def test_a_split_that_gives_tests_may_train_on_the_official_test_part(tmp_path: Path, common: dict[str, Any]) -> None:
    """The generic model is then tested on the union of the local tests."""
    partition = make(write(tmp_path, {"train": [[0, 8], [4], []], "test": [[1], [9], []], **common}))
    assert partition.global_test.size == 0
    assert partition.test[0].tolist() == [1]


def changed(**lists: Any) -> dict[str, Any]:
    return {name: value for name, value in {**LISTS, **lists}.items() if value is not None}


@pytest.mark.parametrize("ending", ["json", "npz"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (changed(train=[[0], [1, 12], []], validation=None), "client 1's list in 'train' .*samples 0 to 11"),
        (changed(train=[[0, 0], [4], []]), "client 0's list in 'train' has a sample twice"),
        (changed(train=[[0], [4, 0], []], validation=None), "client 1's .* has sample 0, which client 0 has already"),
        (changed(validation=[[], [3], []]), "client 1's list in 'validation' has sample 3, which client 0"),
        (changed(test=[[8], [3], []]), "client 1's list in 'test' has sample 3, on which client 0 trains"),
        (changed(test=[[8, 8], [], []]), "'test' has a sample twice"),
        (changed(global_test=[9, 1]), "'global_test' has sample 1, on which client 0 trains or validates"),
        (changed(global_test=[99]), "'global_test' goes from 99 to 99"),
        (changed(train=[[0], [4]]), "'train' has 2 lists; the cell has 3 clients"),
        (changed(test=[[8]]), "'test' has 1 lists"),
        (changed(train=[[0, 8], [4], []], test=None), "sample 8, of the official test part; give each client's tests"),
        (changed(train=[[0, -1], [4], []]), r"train\.0\.1: Input should be greater than or equal to 0"),
        (changed(train=None), "train: Field required; give one list of indices per client"),
        (changed(train=[[0.5], [4], []]), r"train\.0\.0: Input should be a valid int"),
    ],
)
def test_a_wrong_list_is_refused(tmp_path: Path, content: dict[str, Any], message: str, ending: str) -> None:
    path = write(tmp_path, content, ending=ending)
    with pytest.raises(UserError, match=message) as caught:
        make(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[1, 2]",
        "{",
        '{"train": 3}',
        '{"train": [[]], "tset": []}',
        '{"train": [[1e400]]}',
        {"train": np.arange(3)},
        {"train": np.arange(3), "train_sizes": np.array([1, 1, 2])},
        {"train": np.arange(3), "train_sizes": np.array([4, -1, 0])},
        {"train": np.arange(3), "train_sizes": np.array(3)},
        {"train": np.arange(3), "train_sizes": np.array([1.0, 1.0, 1.0])},
        {"train": np.zeros((3, 2), int), "train_sizes": np.array([1, 1, 1])},
        {"train": np.array(3), "train_sizes": np.array([1])},
        {"train": np.array([{}]), "train_sizes": np.array([1])},
        {"train": np.arange(3), "train_sizes": np.array([1, 1, 1]), "extra": np.arange(3)},
    ],
)
def test_files_that_are_no_split_are_refused(tmp_path: Path, content: str | dict[str, Any]) -> None:
    path = tmp_path / ("split.json" if isinstance(content, str) else "split.npz")
    if isinstance(content, str):
        path.write_text(content)
    else:
        np.savez(path, **content)
    with pytest.raises(UserError, match=path.name):
        make(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for name in ("absent.json", "absent.npz"):
        with pytest.raises(UserError, match=f"there is no file .*{name}; set the option `path`"):
            make(tmp_path / name)


def people(folder: Path, samples: int = 40, clients: int = 4) -> tuple[Dataset, list[list[int]]]:
    """A user's .npz without a test part, whose pictures show their row, and whose rows belong to people in turn."""
    rows = np.arange(samples)
    pictures = np.repeat(rows.astype(np.uint8), 4).reshape(samples, 2, 2)
    own = [rows[rows % clients == client].tolist() for client in range(clients)]
    return load_npz(folder, train_images=pictures, train_labels=rows // clients % 3), own


def shown(dataset: Dataset, samples: Indices) -> list[int]:
    """The rows that pictures show."""
    return sorted(dataset.x[samples, 0, 0, 0].tolist())


def test_indices_are_rows_of_the_users_file(tmp_path: Path) -> None:
    """Every client has exactly its person's rows, though the loader moved a held-out test part to the end."""
    dataset, own = people(tmp_path)
    assert dataset.rows is not None
    assert shown(dataset, np.arange(40)) == list(range(40))
    assert dataset.x[:, 0, 0, 0].tolist() != list(range(40))
    train, test = [rows[:8] for rows in own], [rows[8:] for rows in own]
    partition = divide(dataset, "file", 4, path=str(write(tmp_path, {"train": train, "test": test})))
    for i in range(4):
        assert shown(dataset, np.concatenate([partition.train[i], partition.validation[i]])) == train[i]
        assert shown(dataset, partition.test[i]) == test[i]
    assert partition.global_test.size == 0  # the union of what the split tests


def test_people_without_tests_are_refused(tmp_path: Path) -> None:
    """Their rows are partly held out: a split that does not say what is tested would train on tests."""
    dataset, own = people(tmp_path)
    path = write(tmp_path, {"train": own})
    with pytest.raises(UserError, match=r"held out for tests, .* give each client's tests, too: 'test'"):
        divide(dataset, "file", 4, path=str(path))


@PARTITIONS.register("tests_all_samples")
def all_samples(dataset: Dataset, *, clients: int, seed: int, tested: bool = False) -> Split:
    """An own partition that divides all samples, those kept for tests, too."""
    parts = np.array_split(generator(seed, "own").permutation(len(dataset.y)), clients)
    return Split([part[2:] for part in parts], test=[part[:2] for part in parts] if tested else None)


def test_an_own_partition_of_test_samples_must_say_what_is_tested() -> None:
    """Tests would be drawn from what clients train on; a common test of them is none either."""
    y = np.arange(200) % 4
    data = assemble("mine", np.zeros((200, 3), np.float32), y, 150, mean=None, std=None)
    with pytest.raises(UserError, match=r"train on sample 1[5-9][0-9], which is kept for tests; divide the first 150"):
        divide(data, "tests_all_samples", 4)
    divided = divide(data, "tests_all_samples", 4, tested=True)
    assert not divided.global_test.size
    trained = np.concatenate([*divided.train, *divided.validation])
    assert not np.intersect1d(trained, np.concatenate(divided.test)).size
