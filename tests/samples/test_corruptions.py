"""The fifteen corruptions: images of any size stay images, draws depend on their addresses, severe ones change more."""

import numpy as np
import pytest

from bench.errors import UserError
from bench.rng import generator
from bench.samples.corruptions import KINDS, SEVERITIES, corrupt


def images(channels: int, height: int, width: int, count: int = 4) -> np.ndarray:
    """Smooth bright shapes on a dark ground, like small photographs."""
    rng = generator("tests", "corruptions")
    rows, columns = np.meshgrid(np.linspace(0, 1, height), np.linspace(0, 1, width), indexing="ij")
    waves = [np.sin(6 * (a * rows + b * columns)) for a, b in rng.uniform(-1, 1, (count * channels, 2))]
    x = 128 + 100 * np.stack(waves).reshape(count, channels, height, width)
    return x.astype(np.uint8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (3, 20, 28), (2, 5, 9)])
def test_every_kind_changes_images_of_any_size_and_severe_ones_more(kind: str, shape: tuple[int, int, int]) -> None:
    x = images(*shape)
    at = np.arange(len(x))
    changed = [corrupt(x, kind, severity, at, seed=0) for severity in SEVERITIES]
    assert all((one.shape, one.dtype) == (x.shape, np.uint8) for one in changed)
    far = [float(np.abs(one.astype(float) - x).mean()) for one in changed]
    if shape == (3, 32, 32):
        assert far[-1] > far[0] or kind == "elastic_transform"  # whose first level moves three points far
        assert far[0] > 0
        assert far[-1] < 128
    assert far[-1] > 0 or (kind == "defocus_blur" and shape[1] < 16)  # there the disc is smaller than a pixel


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_is_corrupted_alike_wherever_it_stands(kind: str) -> None:
    x = images(1, 8, 8)
    whole = corrupt(x, kind, 3, np.array([7, 8, 9, 10]), seed=1)
    assert np.array_equal(corrupt(x[2:], kind, 3, np.array([9, 10]), seed=1), whole[2:])
    drawn = {"gaussian_noise", "shot_noise", "impulse_noise", "glass_blur", "motion_blur", "snow", "frost", "fog"}
    other = corrupt(x, kind, 3, np.array([7, 8, 9, 10]), seed=2)
    assert np.array_equal(other, whole) == (kind not in {*drawn, "elastic_transform"})


def test_by_hand() -> None:
    grey = np.full((1, 1, 4, 4), 100, np.uint8)
    grey[0, 0, 0, 0] = 164
    at = np.zeros(1, int)
    assert corrupt(grey, "contrast", 2, at, 0)[0, 0, 0, 0] == round(104 + (164 - 104) / 2)
    assert corrupt(grey, "brightness", 2, at, 0)[0, 0, 1, 1] == round(100 + 25.5)
    assert abs(corrupt(grey, "defocus_blur", 1, at, 0).astype(int).sum() - grey.sum()) < 20  # a blur keeps the light
    flat = np.full((1, 3, 16, 16), 60, np.uint8)
    for kind in ("glass_blur", "motion_blur", "zoom_blur", "elastic_transform", "pixelate", "defocus_blur"):
        assert np.array_equal(corrupt(flat, kind, 5, at, 0), flat), kind
    noisy = corrupt(np.full((1, 1, 200, 200), 128, np.uint8), "gaussian_noise", 5, at, 0)
    assert np.std(noisy / 255) == pytest.approx(0.10, rel=0.03)
    struck = corrupt(np.full((1, 1, 200, 200), 128, np.uint8), "impulse_noise", 5, at, 0)
    assert np.mean(struck != 128) == pytest.approx(0.07, rel=0.1)
    assert set(np.unique(struck)) == {0, 128, 255}


def test_what_is_no_image_of_bytes_is_refused() -> None:
    for x in (np.zeros((2, 5), np.uint8), np.zeros((2, 1, 4, 4), np.float32)):
        with pytest.raises(UserError, match="corrupted tests need images of bytes"):
            corrupt(x, "fog", 1, np.arange(2), 0)
