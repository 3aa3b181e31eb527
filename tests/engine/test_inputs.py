"""What is stored and what a network sees: inputs of every kind are normalised by the data set's mean and std, once."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.data import Array, Dataset
from bench.engine import device_data
from bench.engine.device_data import Pool
from bench.errors import UserError
from bench.samples.normalising import channel_statistics
from datasets.assemble import assemble
from tests.engine.problems import toy_data

CPU = torch.device("cpu")
SHAPES = {"images": (3, 8, 8), "series": (4, 9), "features": (5,)}


def raw(kind: str, samples: int = 24, seed: int = 0) -> Array:
    """Whole numbers 0 .. 255, float32: exact in every type, and after offsets and scales of powers of two."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (samples, *SHAPES[kind])).astype(np.float32)


def dataset(x: Array, **given: Any) -> Dataset:
    return assemble("own", x, np.arange(len(x)) % 3, len(x) * 2 // 3, mean=None, std=None, **given)


def by_channel(values: list[float], x: Array) -> Array:
    return np.resize(np.array(values, x.dtype), x.shape[1]).reshape(-1, *[1] * (x.ndim - 2))


def seen(data: Dataset, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """What a network sees of all samples, in an order of their own."""
    pool = Pool.of(data, CPU, dtype)
    x = pool.take(torch.arange(len(data.y)).flip(0).view(2, -1))[0]
    assert x.dtype == dtype
    return x.flatten(0, 1).flip(0)


@pytest.fixture(params=[True, False], ids=["kept normalised", "normalised batch by batch"])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if not request.param:
        monkeypatch.setattr(device_data, "KEEP_NORMALISED", 0)
    return bool(request.param)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("stored", [np.uint8, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("kind", SHAPES)
def test_a_network_sees_standardised_inputs(kind: str, stored: Any, dtype: torch.dtype, kept: bool) -> None:
    x = raw(kind)
    train = x[:16].astype(np.float64)
    axes = (0, *range(2, x.ndim))
    wanted = (x - train.mean(axes, keepdims=True)) / train.std(axes, keepdims=True)
    found = seen(dataset(x.astype(stored)), dtype)
    np.testing.assert_allclose(found, wanted, atol=1e-5 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("kind", SHAPES)
def test_given_statistics_count_and_none_leave_inputs_as_they_are(kind: str, kept: bool) -> None:
    x = raw(kind) / 7
    data = dataset(x)
    channels = x.shape[1]
    plain = replace(data, mean=(0.0,) * channels, std=(1.0,) * channels)
    assert torch.equal(seen(plain), torch.from_numpy(x))
    other = seen(replace(data, mean=(1.0,) * channels, std=(4.0,) * channels))
    torch.testing.assert_close(other, (torch.from_numpy(x) - 1) / 4, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", SHAPES)
def test_whether_a_set_is_kept_normalised_changes_no_byte(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = dataset(raw(kind) * np.float32(0.37) - 3)
    small = seen(data)
    monkeypatch.setattr(device_data, "GATHER", 1000)  # many parts
    parts = seen(data)
    monkeypatch.setattr(device_data, "KEEP_NORMALISED", 0)
    assert torch.equal(small, parts)
    assert torch.equal(small, seen(data))


@given(
    kind=st.sampled_from(list(SHAPES)),
    scales=st.lists(st.integers(-30, 30).map(lambda power: 2.0**power), min_size=1, max_size=3),
    offsets=st.lists(st.integers(-(2**15), 2**15).map(float), min_size=1, max_size=3),
)
def test_units_of_a_channel_do_not_matter(kind: str, scales: list[float], offsets: list[float]) -> None:
    """To a rounding, also where an offset is thousands of times the standard deviation."""
    x = raw(kind)
    moved = (x + by_channel(offsets, x)) * by_channel(scales, x)
    torch.testing.assert_close(seen(dataset(moved)), seen(dataset(x)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("std", [1e-12, 1e30])
def test_extreme_units_are_finite(std: float, kept: bool) -> None:
    x = (np.random.default_rng(0).normal(size=(24, 5)) * std).astype(np.float32)
    found = seen(dataset(x))
    assert found.isfinite().all()
    torch.testing.assert_close(found[:16].std(0, correction=0), torch.ones(5), rtol=1e-5, atol=0)


@pytest.mark.parametrize("stored", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("kind", SHAPES)
def test_a_channel_that_is_constant_in_training_keeps_its_unit(kind: str, stored: Any, kept: bool) -> None:
    """Also a value that no sum of doubles gives exactly, as 0.1 does not."""
    value = 100 if stored == np.uint8 else 0.1
    x = raw(kind).astype(stored)
    x[:, 0] = value
    x[20:, 0] += 3
    data = dataset(x)
    assert data.std[0] == 1
    found = seen(data)[:, 0]
    assert torch.equal(found[:20], torch.zeros_like(found[:20]))
    unit = 255 if stored == np.uint8 else 1
    torch.testing.assert_close(found[20:], torch.full_like(found[20:], 3 / unit), rtol=1e-5, atol=1e-6)


def test_statistics_of_outlying_first_samples() -> None:
    x = np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)
    x[0] = 1e6
    mean, std = channel_statistics(x)
    np.testing.assert_allclose([mean, std], [x.astype(float).mean(0), x.astype(float).std(0)], rtol=1e-9)


@pytest.mark.parametrize("offset", [0.0, 0.5, 300.0])
def test_what_a_crop_leaves_empty_does_not_depend_on_units(offset: float) -> None:
    """Nothing says which floating number is black, so an empty pixel is its channel's mean."""
    x = raw("images")
    codes = torch.arange(0, 160, 7)[:16]
    plain, moved = (
        pool.crop_flip(pool.take(torch.arange(16))[0], codes)
        for pool in (Pool.of(dataset(one), CPU, torch.float32) for one in (x, (x + offset) / 4))
    )
    torch.testing.assert_close(plain, moved, rtol=1e-5, atol=1e-5)
    assert (plain[0, :, 0, 0] == 0).all()  # code 0: four rows and columns of padding come first


@pytest.mark.parametrize(
    ("what", "values"), [("mean", ()), ("std", (1.0,) * 3), ("std", (0.0,) * 4), ("mean", (np.nan,) * 4)]
)
def test_statistics_that_cannot_normalise_are_refused(what: str, values: tuple[float, ...]) -> None:
    """They were not looked at where inputs are float32; a plug-in may have left them out."""
    with pytest.raises(UserError, match=f"toy: {what} = .* should be 4 (finite|positive) numbers, one per channel"):
        replace(toy_data(), **{what: values})
