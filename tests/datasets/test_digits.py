"""`digits`, and the fixed test part of sets that have no official one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.errors import UserError
from datasets.assemble import held_out_order
from tests.datasets.helpers import load
from tests.later import Later


def test_pixels_are_exact_and_each_image_keeps_its_label() -> None:
    data = load("digits", Path("nowhere"))
    raw = Later("sklearn.datasets").load_digits()
    assert data.x.shape == (1797, 1, 8, 8)
    assert data.x.dtype == np.uint8
    ours = sorted((tuple(image), label) for image, label in zip(data.x.reshape(1797, 64) // 15, data.y, strict=True))
    theirs = sorted((tuple(image), label) for image, label in zip(raw.data.astype(int), raw.target, strict=True))
    assert ours == theirs
    assert not (data.x % 15).any()
    other = load("digits", Path("nowhere"), mean=[0.5], std=[0.25])  # normalisation is no part of the content
    assert (other.checksum, other.mean, other.std) == (data.checksum, (0.5,), (0.25,))


@pytest.mark.parametrize("options", [{"mean": [0.1, 0.2]}, {"std": [0.0]}, {"std": []}, {"mean": [float("nan")]}])
def test_normalisation_that_does_not_fit_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=rf"digits: {next(iter(options))} = .* one per channel"):
        load("digits", Path("nowhere"), **options)


def test_single_samples_of_a_class_are_not_held_out() -> None:
    y = np.array([0, 1, 0, 2, 0, 1, 0, 0, 0, 0])
    order, n_train = held_out_order(y)
    assert sorted(order) == list(range(10))
    assert np.bincount(y[order[n_train:]], minlength=3).tolist() == [2, 1, 0]  # of 7, 2 and 1 samples
