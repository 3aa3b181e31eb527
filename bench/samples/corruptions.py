"""The fifteen common corruptions at five severities of Hendrycks and Dietterich (ICLR 2019), for images of any size.

Kinds and parameters are those of CIFAR-10-C, the authors' set for images of 32 x 32 pixels; lengths (radii, widths,
displacements) are scaled by the image's shorter side over 32. Written anew from the paper's description, with NumPy,
SciPy and Pillow, so pixels are not those of the published files. Two kinds differ by more: `frost` has a texture that
is drawn, where the authors paste crops of photographs, and `motion_blur` (also that of `snow`) interpolates linearly.
On images below 16 pixels `defocus_blur` changes next to nothing: its disc is smaller than a pixel. A draw depends on
the seed, the kind, the severity and the sample, so that all methods see the same.
"""

import io
import math
from collections.abc import Callable

import numpy as np

from bench.data import Array, Floats, Indices
from bench.errors import UserError
from bench.rng import generator

SEVERITIES = (1, 2, 3, 4, 5)
_SIDE = 32
"""Pixels of the images that the parameters are made for."""

Corruption = Callable[[Floats, int, np.random.Generator], Floats]
"""A corruption of an image `[channels, height, width]` in 0 .. 1, by its severity 0 .. 4."""


def corrupt(x: Array, kind: str, severity: int, samples: Indices, seed: int) -> Array:
    """Corrupt images.

    Args:
        x: `[n, channels, height, width]` bytes.
        kind: a key of `KINDS`.
        severity: 1 to 5.
        samples: `[n]` numbers of the samples, which the draws depend on.
        seed: of the draws.

    Raises:
        UserError: the samples are not images of bytes.
    """
    check(x)
    corruption, out = KINDS[kind], np.empty_like(x)
    for k, (image, sample) in enumerate(zip(x, samples.tolist(), strict=True)):
        rng = generator(seed, "corruption", kind, severity, sample)
        out[k] = np.rint(255 * np.clip(corruption(image / 255, severity - 1, rng), 0, 1))
    return out


def check(x: Array) -> None:
    """Refuse samples that are not images of bytes.

    Raises:
        UserError: they are not.
    """
    if x.ndim != 4 or x.dtype != np.uint8:
        raise UserError(f"corrupted tests need images of bytes; the samples are {x.dtype} of the shape {x.shape[1:]}")


def _scale(x: Floats) -> float:
    return float(min(x.shape[1:])) / _SIDE


def _gaussian_noise(x: Floats, level: int, rng: np.random.Generator) -> Floats:
    return x + rng.normal(scale=(0.04, 0.06, 0.08, 0.09, 0.10)[level], size=x.shape)


def _shot_noise(x: Floats, level: int, rng: np.random.Generator) -> Floats:
    photons = (500, 250, 100, 75, 50)[level]
    return np.asarray(rng.poisson(x * photons) / photons)


def _impulse_noise(x: Floats, level: int, rng: np.random.Generator) -> Floats:
    struck = rng.random(x.shape) < (0.01, 0.02, 0.03, 0.05, 0.07)[level]
    return np.where(struck, rng.integers(2, size=x.shape), x)


def _defocus_blur(x: Floats, level: int, rng: np.random.Generator) -> Floats:
    """Convolve with a disc whose edge is softened."""
    from scipy import ndimage

    radius, soft = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))[level]
    fine = 8
    radius, soft = max(radius * _scale(x), 1 / fine), soft * _scale(x)  # no disc is smaller than a quarter of a pixel
    half = math.ceil(radius + 3 * soft)
    size = (2 * half + 1) * fine
    at = (np.arange(size) + 0.5) / fine - (half + 0.5)
    disc = (at[:, None] ** 2 + at**2 <= radius**2).astype(np.float64)
    blurred = ndimage.gaussian_filter(disc, soft * fine, mode="constant")
    kernel = blurred.reshape(2 * half + 1, fine, 2 * half + 1, fine).sum((1, 3))
    return np.asarray(ndimage.convolve(x, kernel[None] / kernel.sum(), mode="mirror"))


def _glass_blur(x: Floats, level: int, rng: np.random.Generator) -> Floats:
    """Exchange neighbouring pixels at random, between two slight blurs."""
    from scipy import ndimage

    sigma, delta, times = ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2))[level]
    far, sigma = max(1, round(delta * _scale(x))), sigma * _scale(x)
    out: Floats = ndimage.gaussian_filter(x, (0, sigma, sigma))
    _, height, width = x.shape
    for _ in range(times):
        moves = rng.integers(-far, far, size=(height, width, 2))
        for row in range(height - far, far, -1):
            for column in range(width - far, far, -1):
                other = row + moves[row - 1, column - 1, 0], column + moves[row - 1, column - 1, 1]
                out[:, row, column], out[:, *other] = out[:, *other].copy(), out[:, row, column].copy()
    return np.asarray(ndimage.gaussian_filter(out, (0, sigma, sigma)))


def _motion_blur(x: Floats, level: int, rng: np.random.Generator) -> Floats:
    radius, sigma = ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))[level]
    return _moved(x, radius * _scale(x), sigma * _scale(x), rng.uniform(-45, 45))


def _moved(x: Floats, radius: float, sigma: float, angle: float) -> Floats:
    """Average an image along a line, with weights that fall as half a Gaussian."""
    from scipy import ndimage

    steps = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    direction = np.sin(np.radians(angle)), np.cos(np.radians(angle))
    images = (
        weight * ndimage.shift(x, (0, step * direction[0], step * direction[1]), order=1, mode="nearest")
        for step, weight in zip(steps, weights / weights.sum(), strict=True)
        if weight > 1e-6
    )
    return np.asarray(sum(images))


def _zoomed(x: Floats, factor: float) -> Floats:
    """Enlarge an image around its middle; its size stays."""
    from scipy import ndimage

    middle = (np.array(x.shape[1:]) - 1) / 2
    scale = np.array([1, 1 / factor, 1 / factor])
    offset = np.array([0, *(middle * (1 - 1 / factor))])
    return np.asarray(ndimage.affine_transform(x, scale, offset, order=1, mode="nearest"))


def _zoom_blur(x: Floats, level: int, rng: np.random.Generator) -> Floats:
    factors = np.arange(1, (1.06, 1.11, 1.16, 1.21, 1.26)[level], 0.01)
    return np.asarray(np.mean([x, *(_zoomed(x, factor) for factor in factors)], axis=0))


def _snow(x: Floats, level: int, rng: np.random.Generator) -> Floats:
    loc, spread, zoom, least, radius, sigma, kept = (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    )[level]
    flakes = _zoomed(rng.normal(loc, spread, size=(1, *x.shape[1:])), zoom)
    flakes = np.where(flakes < least, 0, np.clip(flakes, 0, 1))
    flakes = _moved(flakes, radius * _scale(x), sigma * _scale(x), rng.uniform(-135, -45))
    whitened = kept * x + (1 - kept) * np.maximum(x, 1.5 * x.mean(0, keepdims=True) + 0.5)
    return np.asarray(whitened + flakes + flakes[:, ::-1, ::-1])


def _frost(x: Floats, level: int, rng: np.random.Generator) -> Floats:
    """Add a texture of bright ridges, which stands for the photographs of frost."""
    kept, added = ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))[level]
    ridges = 1 - np.abs(2 * _plasma(x.shape[1:], 2.0, rng) - 1)
    return np.asarray(kept * x + added * ridges)


def _fog(x: Floats, level: int, rng: np.random.Generator) -> Floats:
    thickness, decay = ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))[level]
    brightest = x.max()
    return np.asarray((x + thickness * _plasma(x.shape[1:], decay, rng)) * brightest / (brightest + thickness))


def _plasma(shape: tuple[int, ...], decay: float, rng: np.random.Generator) -> Floats:
    """Cloud of the diamond-square algorithm in 0 .. 1, `shape`: the noise of each halving is divided by `decay`."""
    side = 2 ** max(1, math.ceil(math.log2(max(shape))))
    cloud = np.zeros((side, side))
    step, noise = side, 1.0

    def middles(total: Floats) -> Floats:
        return np.asarray(total / 4 + rng.uniform(-noise, noise, total.shape))

    while step >= 2:
        half = step // 2
        corners = cloud[::step, ::step]
        pairs = corners + np.roll(corners, -1, axis=0)
        cloud[half::step, half::step] = middles(pairs + np.roll(pairs, -1, axis=1))
        centres = cloud[half::step, half::step]
        across = centres + np.roll(centres, 1, axis=0) + corners + np.roll(corners, -1, axis=1)
        down = centres + np.roll(centres, 1, axis=1) + corners + np.roll(corners, -1, axis=0)
        cloud[::step, half::step], cloud[half::step, ::step] = middles(across), middles(down)
        step, noise = half, noise / decay
    cloud = (cloud - cloud.min()) / (cloud.max() - cloud.min())
    return np.asarray(cloud[: shape[0], : shape[1]])


def _brightness(x: Floats, level: int, rng: np.random.Generator) -> Floats:
    """Raise the value of hue, saturation and value: of grey images the grey itself."""
    value = x.max(0, keepdims=True)
    raised = np.clip(value + (0.05, 0.1, 0.15, 0.2, 0.3)[level], 0, 1)
    return np.asarray(np.where(value > 0, x * raised / np.where(value > 0, value, 1), raised))


def _contrast(x: Floats, level: int, rng: np.random.Generator) -> Floats:
    mean = x.mean((1, 2), keepdims=True)
    return np.asarray((x - mean) * (0.75, 0.5, 0.4, 0.3, 0.15)[level] + mean)


def _elastic_transform(x: Floats, level: int, rng: np.random.Generator) -> Floats:
    """Move three points of the image a little, and all of it by a smooth random field."""
    from scipy import ndimage

    far, smooth, jitter = ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03))[
        level
    ]
    shape = np.array(x.shape[1:])
    side = min(shape)
    middle, arm = shape // 2, max(1, side // 3)
    points = np.array([middle + arm, [middle[0] + arm, middle[1] - arm], middle - arm], np.float64)
    moved = points + rng.uniform(-jitter * side, jitter * side, size=points.shape)
    affine = np.linalg.lstsq(np.column_stack([moved, np.ones(3)]), points, rcond=None)[0]  # back from the new places
    rows, columns = np.meshgrid(*(np.arange(n, dtype=np.float64) for n in shape), indexing="ij")
    places = np.stack([rows, columns, np.ones_like(rows)], axis=-1) @ affine
    for axis in range(2):
        field = rng.uniform(-1, 1, size=shape)
        places[..., axis] += far * side * ndimage.gaussian_filter(field, smooth * side, mode="reflect", truncate=3)
    return np.stack(
        [ndimage.map_coordinates(channel, places.transpose(2, 0, 1), order=1, mode="mirror") for channel in x]
    )


def _pixelate(x: Floats, level: int, rng: np.random.Generator) -> Floats:
    from PIL import Image

    share = (0.95, 0.9, 0.85, 0.75, 0.65)[level]
    height, width = x.shape[1:]
    small = max(1, int(width * share)), max(1, int(height * share))
    images = (Image.fromarray(channel.astype(np.float32)) for channel in x)
    coarse = (image.resize(small, Image.Resampling.BOX) for image in images)
    return np.stack([np.asarray(image.resize((width, height), Image.Resampling.BOX), np.float64) for image in coarse])


def _jpeg_compression(x: Floats, level: int, rng: np.random.Generator) -> Floats:
    """Compress an image: a coloured one as such, of another number of channels each channel by itself."""
    from PIL import Image

    quality = (80, 65, 58, 50, 40)[level]
    pixels = np.rint(255 * x).astype(np.uint8)
    parts = [pixels.transpose(1, 2, 0)] if len(x) == 3 else list(pixels)
    images = []
    for part in parts:
        buffer = io.BytesIO()
        Image.fromarray(part).save(buffer, "JPEG", quality=quality)
        images.append(np.asarray(Image.open(buffer), np.float64) / 255)
    return images[0].transpose(2, 0, 1) if len(x) == 3 else np.stack(images)


KINDS: dict[str, Corruption] = {
    "gaussian_noise": _gaussian_noise,
    "shot_noise": _shot_noise,
    "impulse_noise": _impulse_noise,
    "defocus_blur": _defocus_blur,
    "glass_blur": _glass_blur,
    "motion_blur": _motion_blur,
    "zoom_blur": _zoom_blur,
    "snow": _snow,
    "frost": _frost,
    "fog": _fog,
    "brightness": _brightness,
    "contrast": _contrast,
    "elastic_transform": _elastic_transform,
    "pixelate": _pixelate,
    "jpeg_compression": _jpeg_compression,
}
"""The corruptions by name, in the paper's order: noise, blur, weather, digital."""
