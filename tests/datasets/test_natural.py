"""Clients that are groups of the data: people, hospitals, domains."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import bench
from bench.config.grid import grid_of
from bench.data import Dataset
from bench.errors import UserError
from bench.federation.cell_data import load_dataset, load_partition
from bench.results.data_description import describe
from bench.runs.plan import plan, planned_remarks
from bench.settings import BY_GROUPS, Settings
from datasets.assemble import assemble
from tests.datasets.helpers import divide, group_of_each, load_from, load_npz, paint


def of_groups(train: list[int], test: list[int]) -> Dataset:
    """A data set of two labels whose samples are of given groups."""
    groups = np.array(train + test)
    y = np.arange(len(groups)) % 2
    x = np.zeros((len(y), 1), np.float32)
    raw = np.array([f"person {group}" for group in groups])
    return assemble("toy", x, y, len(train), mean=[0], std=[1], classes="ab", groups=raw)


TOY = of_groups([0] * 10 + [1] * 20 + [2] * 6 + [3] * 14, [0] * 4 + [1] * 4 + [3] * 2)


@pytest.mark.long
@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=80), st.lists(st.integers(0, 7), min_size=1, max_size=40),
    st.integers(1, 8), st.integers(1, 4), st.booleans(), st.sampled_from([None, [0.6, 0.2, 0.2]]), st.integers(0, 3),
    st.sampled_from(["honest", "paper", "tuning"]),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_clients_are_groups(
    train: list[int], test: list[int], clients: int, least: int, pooled: bool, shares: Any, seed: int, protocol: str
) -> None:
    """Nobody has another's samples, no sample has two places, and a client has all that its groups have."""
    assume(clients <= len(train))
    dataset = of_groups(train, test)
    assert dataset.groups is not None
    options: dict[str, Any] = {"min_samples": least, "pooled": pooled} | ({"shares": shares} if shares else {})
    dealt = len(dataset.y) if shares else dataset.n_train
    sizes = np.bincount(dataset.groups[:dealt], minlength=len(dataset.group_names))
    if (sizes >= least).sum() < clients:
        with pytest.raises(UserError, match="clients that train"):
            divide(dataset, clients=clients, seed=seed, protocol=protocol, **options)
        return
    try:
        found = divide(dataset, clients=clients, seed=seed, protocol=protocol, **options)
    except UserError as error:
        assert "in the test part" in str(error)  # noqa: PT017
        return
    parts = [np.concatenate(own) for own in zip(found.train, found.validation, found.test, strict=True)]
    names = np.array(group_of_each(dataset))
    whose = [set(names[own].tolist()) for own in parts]
    assert sum(map(len, whose)) == len(set().union(*whose))
    everything = np.concatenate(parts)
    assert len(set(everything.tolist())) == len(everything)
    assert len(found.global_test) == 0
    for name, own, groups in zip(found.names, parts, whose, strict=True):
        assert groups <= set(name.split(" + "))
        members = [dataset.group_names.index(one) for one in name.split(" + ")]
        assert (sizes[members] >= least).all()
        if shares is None and protocol != "tuning":
            assert sorted(own) == np.flatnonzero(np.isin(dataset.groups, members)).tolist()
        if not pooled:
            assert len(members) == 1
    if pooled:
        counts = [len(name.split(" + ")) for name in found.names]
        assert sum(counts) == (sizes >= least).sum()
        assert max(counts) - min(counts) <= 1


def test_tests_are_the_group_s_own_and_small_groups_are_left_out() -> None:
    found = divide(TOY, min_samples=10)
    assert found.names == ("person 0", "person 1", "person 3")
    assert [one.tolist() for one in found.test] == [[50, 51, 52, 53], [54, 55, 56, 57], [58, 59]]


def test_a_number_of_groups_is_drawn_once_for_all_seeds() -> None:
    """And the others are named, unless each seed draws anew."""
    (names,) = {divide(TOY, clients=2, seed=seed).names for seed in range(20)}
    left_out = {divide(TOY, clients=2, seed=seed).left_out for seed in range(20)}
    assert left_out == {tuple(sorted(set(TOY.group_names) - set(names)))}
    assert len({divide(TOY, clients=2, seed=seed).hash for seed in range(5)}) == 5  # validation is each seed's
    redrawn = [divide(TOY, clients=2, seed=seed, redraw=True) for seed in range(20)]
    assert len({partition.names for partition in redrawn}) > 3
    assert not any(partition.left_out for partition in redrawn)
    assert {divide(TOY, seed=seed, held_out=("person 1",)).names for seed in range(9)} == {
        divide(TOY, held_out=("person 1",)).names
    }
    pooled = [divide(TOY, clients=2, seed=seed, pooled=True) for seed in range(20)]  # nobody is left out
    assert len({partition.names for partition in pooled}) > 1
    assert not any(partition.left_out for partition in pooled)


def test_all_groups_are_the_default() -> None:
    found = divide(TOY, clients="all")
    assert found.names == TOY.group_names
    assert found.left_out == ()
    assert divide(TOY, clients="all", held_out=("person 1",)).names == ("person 0", "person 2", "person 3", "person 1")
    large = divide(TOY, clients="all", min_samples=10)
    assert (large.names, large.left_out) == (("person 0", "person 1", "person 3"), ("person 2",))
    for partition in BY_GROUPS:
        assert bench.Settings(method="fedavg", partition=partition).clients == "all"
        assert bench.Settings(method="fedavg", partition=partition, clients=20).clients == 20
    assert bench.Settings(method="fedavg", alpha=1).clients == 20
    with pytest.raises(UserError, match="clients: all is of natural and natural_leaf"):
        bench.Settings(method="fedavg", alpha=1, clients="all")
    assert load_partition(bench.Settings(method="fedavg", partition="natural_leaf"), TOY).names == TOY.group_names


def npz_cell(path: Path, **changes: Any) -> Settings:
    return bench.Settings(
        method="fedavg", dataset="npz", dataset_options={"path": str(path)}, partition="natural", **changes
    )


def test_a_listed_grid_keeps_the_number_of_clients(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays(np.arange(60) % 30))
    cells = [npz_cell(tmp_path / "a.npz", clients=clients) for clients in ("all", 20)]
    (tmp_path / "listed.yaml").write_text(grid_of(cells, "listed").source)
    assert [cell.clients for cell in bench.load_grid(str(tmp_path / "listed.yaml")).cells] == ["all", 20]


def test_the_data_page_and_the_run_name_who_is_left_out(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays(np.array([f"site {i % 5}" for i in range(60)])))
    cell = npz_cell(tmp_path / "a.npz", clients=3, model="logistic")
    left_out = load_partition(cell, load_dataset(cell)).left_out
    text = f"3 groups of the data take part, and 2 are left out: {', '.join(left_out)}"
    assert text in describe(cell, tmp_path)["remarks"]
    assert planned_remarks(plan([cell], tmp_path, download=False)) == [f"a: {text} (seed 0)"]


def test_held_out_groups_are_the_new_clients() -> None:
    found = divide(TOY, held_out=("person 1",))
    assert found.names[2] == "person 1"
    assert found.new == (2,)
    cell = Settings(
        method="fedavg", partition="natural", partition_options={"held_out": ["person 1"]}, clients=3, new_clients=1
    )
    assert load_partition(cell, TOY).hash == found.hash
    with pytest.raises(UserError, match="set `new_clients: 1`"):
        load_partition(cell.model_copy(update={"new_clients": 0}), TOY)


@pytest.mark.parametrize(
    ("options", "clients", "message"),
    [
        ({"held_out": ("x",)}, 2, "held_out has 'x'; the groups large enough are person 0"),
        ({"held_out": ("person 0", "person 0")}, 3, "names a group twice"),
        ({"held_out": ("person 0",)}, 1, "leaves no client to train"),
        ({"min_samples": 15}, 2, "has 1 groups of 15 samples or more for 2 clients that train; take `clients: all`"),
    ],
)
def test_refusals(options: dict[str, Any], clients: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        divide(TOY, clients=clients, **options)


def test_data_without_groups_are_refused() -> None:
    with pytest.raises(UserError, match="toy has no groups"):
        divide(replace(TOY, groups=None))


def test_a_test_part_of_other_people_asks_for_shares() -> None:
    strangers = of_groups([0] * 20 + [1] * 20, [2] * 10)
    with pytest.raises(UserError, match=r"shares: \[0.75, 0, 0.25\]"):
        divide(strangers, clients=2)
    found = divide(strangers, shares=[0.75, 0, 0.25])
    assert sum(map(len, found.test)) == 12  # a quarter of each class, wherever it lay


def arrays(groups: Any, test: bool = False) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    known = {"train_images": rng.normal(size=(60, 4)), "train_labels": np.arange(60) % 3, "groups": groups}
    return known | ({"test_images": rng.normal(size=(30, 4)), "test_labels": np.arange(30) % 3} if test else {})


def test_groups_of_an_npz_file_stay_with_their_samples(tmp_path: Path) -> None:
    """Without a test part samples are moved to the end, and their groups with them."""
    groups = np.array([f"h{i % 12}" for i in range(60)])
    content = arrays(groups)
    data = load_npz(tmp_path, **content)
    assert data.rows is not None
    assert group_of_each(data) == groups[data.rows].tolist()
    np.testing.assert_allclose(data.x, content["train_images"][data.rows], rtol=1e-6)
    numbers = load_npz(tmp_path, **arrays(np.arange(90) % 11 - 1, test=True))
    assert numbers.group_names == ("-1", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9")  # as numbers, not as text


def test_a_folder_level_of_groups(tmp_path: Path) -> None:
    shade = 0
    for group, label, count in (("cam10", "dog", 4), ("cam9", "dog", 8), ("cam9", "cat", 8)):
        for i in range(count):
            paint(tmp_path / group / label / f"{i}.png", (shade := shade + 1, 0, 0))
    data = load_from("image_folder", tmp_path, groups=True)
    assert data.classes == ("cat", "dog")
    shades = data.x[:, 0, 0, 0]
    assert group_of_each(data) == ["cam10" if s <= 4 else "cam9" for s in shades]
    assert [data.classes[y] for y in data.y] == ["dog" if s <= 12 else "cat" for s in shades]
    assert divide(data, clients=2).names == ("cam10", "cam9")
