"""`normalise`: inputs by statistics of training samples alone, each client's or all clients'."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bench
from bench.data import Array, Dataset, Partition
from bench.errors import UserError
from bench.federation.cell_data import file_samples, load_all
from bench.samples import normalising
from bench.settings import Settings
from datasets.assemble import assemble
from tests.datasets.helpers import seen

_NONE = np.empty(0, np.int64)


def problem(x: Array, clients: int = 3) -> tuple[Dataset, Partition]:
    """Two thirds of the samples for training, in turn; validation of one sample each; all share all tests."""
    n = len(x)
    n_train = n * 2 // 3
    data = assemble("mine", x, np.arange(n) % 2, n_train, mean=None, std=None)
    lists = [np.arange(i, n_train, clients) for i in range(clients)]
    tests = tuple(np.arange(n_train, n) for _ in range(clients))
    return data, Partition(tuple(at[1:] for at in lists), tuple(at[:1] for at in lists), tests, np.arange(n_train, n))


def test_statistics_of_each_client_by_hand() -> None:
    data, partition = problem(np.arange(36, dtype=np.float32).reshape(18, 2) ** 2)
    changed, lists = normalising.apply(data, partition, "per_client", range(3))
    for client, train in enumerate(partition.train):
        mean, std = data.x[train].mean(0, dtype=np.float64), data.x[train].std(0, dtype=np.float64)
        for before, after in (
            (train, lists.train[client]),
            (partition.validation[client], lists.validation[client]),
            (partition.test[client], lists.test[client]),
        ):
            np.testing.assert_allclose(seen(changed)[after], (data.x[before] - mean) / std, rtol=1e-6)
            assert (changed.y[after] == data.y[before]).all()
        np.testing.assert_allclose(changed.client_statistics[client], (mean, std), rtol=1e-12)
    assert len(lists.global_test) == 0  # clients see a shared sample differently: the union of their copies takes over


@pytest.mark.parametrize("how", ["per_client", "pooled"])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_only_training_samples_count(how: Any, dtype: str) -> None:
    """Validation and test samples change no sample of training, whatever they are; new clients change no pooled one."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 200, (36, 2, 3, 3)).astype(dtype)
    data, partition = problem(x)
    other = x.copy()
    held_out = np.concatenate([*partition.validation, *partition.test])
    other[held_out] = 255 - other[held_out]
    if how == "pooled":
        other[partition.train[2]] = 7
    pair = [normalising.apply(replace(data, x=inputs), partition, how, range(2)) for inputs in (x, other)]
    for client in range(2):
        (first, lists), (second, _) = pair
        at = lists.train[client]
        np.testing.assert_array_equal(seen(first)[at], seen(second)[at])
        assert abs(seen(first)[np.concatenate(lists.train[:2])].mean()) < 1e-6


@pytest.mark.parametrize("how", ["per_client", "pooled"])
def test_missing_numbers_become_the_mean_of_the_same_samples(how: Any) -> None:
    """After normalisation that is 0; columns of categories stay as they are."""
    x = np.random.default_rng(2).normal(5, 2, (36, 3)).astype(np.float32)
    missing = np.zeros(x.shape, np.bool_)
    missing[::5, 0] = True
    x[:, 2] = np.arange(36) % 2
    data, partition = problem(x)
    if how == "per_client":
        missing[partition.train[1], 0] = True  # a site that never measures it, but for one sample of its tests
        missing[partition.test[1][1], 0] = False
    data = replace(data, x=np.where(missing, np.nan, x), indicators=(2,))
    changed, lists = normalising.apply(data, partition, how, range(3))
    for client in range(3):
        lists_of_client = zip((partition.train, partition.test), (lists.train, lists.test), strict=True)
        for before, after in ((old[client], new[client]) for old, new in lists_of_client):
            values = seen(changed)[after]
            np.testing.assert_allclose(values[missing[before, 0], 0], 0, atol=1e-6)
            np.testing.assert_array_equal(values[:, 2], x[before, 2])
    if how == "per_client":
        assert not seen(changed)[lists.test[1], 0].any()
    assert changed.missing is None


def test_a_client_without_training_samples_and_one_with_a_single_one() -> None:
    """A site of one row has it for tests, of which some numbers may be missing."""
    data, partition = problem(np.random.default_rng(3).normal(size=(36, 2)).astype(np.float32))
    train = (partition.train[0], partition.train[1][:1], _NONE)
    changed, lists = normalising.apply(data, replace(partition, train=train), "per_client", [0, 1])
    assert np.isfinite(changed.x).all()
    assert not seen(changed)[lists.test[1]].any()
    pooled, _ = normalising.apply(data, replace(partition, train=train), "pooled", [0, 1])
    at = np.concatenate(train)
    np.testing.assert_allclose(pooled.mean, data.x[at].mean(0, dtype=np.float64), rtol=1e-12)
    gaps = replace(data, x=np.where(np.random.default_rng(4).random(data.x.shape) < 0.3, np.nan, data.x))
    changed, lists = normalising.apply(gaps, replace(partition, train=train), "per_client", [0, 1])
    assert not seen(changed)[lists.test[2]].any()


def cell(path: Path, **changes: Any) -> dict[str, Any]:
    """A grid of one cell on four groups whose features have other units."""
    rng = np.random.default_rng(4)
    groups = np.repeat(np.arange(4), 40)
    y = rng.integers(0, 2, 160)
    x = (rng.normal(size=(160, 3)) + 3 * y[:, None]) * 10.0 ** groups[:, None]
    np.savez(path, train_images=x.astype(np.float32), train_labels=y, groups=groups)
    return {
        "methods": ["fedavg"], "datasets": [{"name": "npz", "path": str(path)}], "partition": "natural", "clients": 4,
        "seeds": [0], "rounds": 3, "lr": 0.1, "model": "logistic", **changes,
    }  # fmt: skip


@pytest.mark.long
def test_the_cell_records_it_and_a_kept_model_takes_raw_samples(tmp_path: Path) -> None:
    grid = cell(tmp_path / "sites.npz", normalise="per_client")
    run = bench.run(grid, tmp_path / "run", keep="best", tracking=False, quiet=True, jobs=1)
    finished = run.cells[0]
    assert finished.settings.normalise == "per_client"
    raw = bench.load_dataset(finished.settings)
    data, partition, _ = load_all(finished.settings)
    before = bench.load_partition(finished.settings, raw)
    for client in range(4):
        model = finished.model(client=client)
        with torch.no_grad():
            at = torch.from_numpy(before.test[client])
            logits = model(torch.from_numpy(raw.x)[at])
            expected = model.network(torch.from_numpy(data.x)[torch.from_numpy(partition.test[client])])
        torch.testing.assert_close(logits, expected)


def test_what_has_no_units_or_no_owner_is_refused(tmp_path: Path) -> None:
    """Also later: `bench evaluate` asks after the run, and would take raw numbers for normalised ones."""
    with pytest.raises(UserError, match="tokens"):
        load_all(Settings(method="fedavg", dataset="markov", partition="iid", normalise="pooled"))
    settings = {"method": "fedavg", "alpha": 1, "normalise": "per_client", "tests": ["corrupted"]}
    with pytest.raises(UserError, match="normalise: per_client"):
        bench.Settings(**settings)
    grid = cell(tmp_path / "sites.npz", normalise="per_client")
    data, _, _ = load_all(bench.load_grid(grid).cells[0])
    with pytest.raises(UserError, match="are no client's, and under `normalise: per_client`"):
        file_samples(str(tmp_path / "sites.npz"), data)
