"""Synthetic(alpha, beta): what its two variances do, and that its labels are each device's own linear model's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.data import Array, Dataset
from datasets.synthetic import load


def drawn(**options: Any) -> Dataset:
    return load(data_root=Path(), download=False, **options)


def of_device(data: Dataset, device: int) -> tuple[Array, Array]:
    assert data.groups is not None
    mine = data.groups == device
    return data.x[mine], data.y[mine]


def test_sizes_and_shape() -> None:
    data = drawn(devices=40, largest=120)
    assert data.groups is not None
    sizes = np.bincount(data.groups)
    assert (data.shape, data.num_classes, len(sizes)) == ((60,), 10, 40)
    assert sizes.min() >= 50
    assert sizes.max() == 120  # log-normal sizes go far beyond
    assert drawn(devices=40).y.size > data.y.size
    assert data.n_train == pytest.approx(0.75 * data.y.size, abs=5)


def test_the_same_draw_twice_and_another_one() -> None:
    first, again, other = drawn(devices=3), drawn(devices=3), drawn(devices=3, draw=1)
    assert first.checksum == again.checksum != other.checksum


def test_a_device_does_not_depend_on_how_many_there_are() -> None:
    few, many = drawn(devices=2, largest=60), drawn(devices=5, largest=60)
    for device in range(2):
        assert np.array_equal(np.sort(of_device(few, device)[0], axis=0), np.sort(of_device(many, device)[0], axis=0))


def test_inputs_of_devices_differ_by_their_variance() -> None:
    """The mean over features of a device's inputs is B_k + noise of variance 1/60 (1/60 more by each v_k)."""

    def spread(variance: float) -> float:
        data = drawn(devices=400, largest=50, input_variance=variance)
        return float(np.var([of_device(data, device)[0].mean() for device in range(400)]))

    assert spread(0.0) == pytest.approx(1 / 60, rel=0.3)
    assert spread(4.0) == pytest.approx(4.0, rel=0.3)


def test_variances_of_the_features_fall_with_their_place() -> None:
    data = drawn(devices=1, draw=3, largest=4000)
    x, _ = of_device(data, 0)
    expected = np.arange(1, 61) ** -1.2
    relative = np.sqrt(2 / len(x))  # standard error of a sample variance
    assert np.all(np.abs(x.var(axis=0) / expected - 1) < 5 * relative)


def test_labels_are_those_of_a_linear_model() -> None:
    """A device's labels separate linearly: a perceptron comes to make no mistake."""
    x, y = of_device(drawn(devices=2, largest=80), 1)
    z = np.c_[x.astype(np.float64), np.ones(len(x))]
    weight = np.zeros((10, 61))
    for _ in range(3000):
        wrong = 0
        for row, label in zip(z, y, strict=True):
            guess = int((weight @ row).argmax())
            if guess != label:
                weight[label] += row
                weight[guess] -= row
                wrong += 1
        if not wrong:
            return
    pytest.fail(f"{wrong} mistakes left")
