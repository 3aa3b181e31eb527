"""Shifts: differences between the samples of two clients beyond their label frequencies (docs/data.md has pictures).

Shifts of the inputs: `rotation`, `colours`, `corruption`, `permuted_pixels`. Of the meaning of labels: `concept_shift`.
Of training (and validation) data, but not of tests: `label_noise`, `missing_classes`. `datasets.shifting` describes
their arguments and return values.
"""

import math
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, PositiveInt

from bench.data import Array, Indices, Own
from bench.errors import UserError
from bench.plugin import SHIFTS
from datasets.partitions import Share

Groups = Annotated[int, Field(ge=2)]


@SHIFTS.register("rotation")
def rotation(own: Own, *, groups: Groups = 4) -> Own:
    """Images turned by g / groups of a full turn, where g is the client's group (rotated MNIST, as in IFCA's paper).

    Quarter turns of square images and half turns are exact; other turns are interpolated linearly, and the corners that
    become empty are filled with black, or with the channel's mean where images are floating.

    Raises:
        UserError: the samples are not images.
    """
    _need_images(own)
    group = own.group(groups)
    square = own.x.shape[2] == own.x.shape[3]
    if 4 * group % groups == 0 and (square or 2 * group % groups == 0):
        return replace(own, x=np.ascontiguousarray(np.rot90(own.x, 4 * group // groups, axes=(2, 3))))
    from scipy import ndimage

    blank = own.dataset.blank.reshape(-1, 1, 1)
    values = own.x.astype(np.float64) - blank
    turned = ndimage.rotate(values, 360 * group / groups, axes=(3, 2), reshape=False, order=1)
    return replace(own, x=_as_stored(turned + blank, own.x))


@SHIFTS.register("colours")
def colours(own: Own, *, groups: Groups = 4, contrast: Annotated[float, Field(gt=0, le=1)] = 0.5) -> Own:
    """Every group of clients has its own two colours; black becomes one, white the other, greys are in between.

    Args:
        own: images of one byte per channel.
        groups: number of groups.
        contrast: smallest difference of the two colours in every channel, as a share of the whole range.

    Raises:
        UserError: the samples are not such images.
    """
    _need_images(own)
    if own.x.dtype != np.uint8:
        raise UserError(f"shift 'colours' needs images of bytes; {own.dataset.name} has {own.x.dtype}")
    rng = own.rng("colours", own.group(groups))
    channels = own.x.shape[1]
    distance = rng.uniform(contrast, 1, channels)
    dark = rng.uniform(0, 1 - distance)
    flipped = rng.integers(2, size=channels) == 1
    black, white = (np.where(flipped == first, dark + distance, dark) for first in (True, False))
    shape = (1, channels, 1, 1)
    return replace(own, x=_as_stored(255 * black.reshape(shape) + (white - black).reshape(shape) * own.x, own.x))


@SHIFTS.register("corruption")
def corruption(
    own: Own,
    *,
    kinds: Annotated[tuple[Literal["none", "blur", "noise"], ...], Field(min_length=2)] = ("none", "blur", "noise"),
    blur: Annotated[float, Field(gt=0)] = 1.0,
    noise: Annotated[float, Field(gt=0)] = 1.0,
) -> Own:
    """Clients are assigned evenly to `kinds` of corruption: blur (a poor lens), noise (a poor sensor) or none.

    Args:
        own: samples; they must be images if one of the kinds is `blur`.
        kinds: of corruption; a kind that is listed twice gets twice as many clients.
        blur: standard deviation of the Gaussian kernel in pixels.
        noise: standard deviation of the Gaussian noise, in units of the data set's standard deviation per channel.

    Raises:
        UserError: the samples are not numbers, or not images although `blur` is among the kinds.
    """
    _need_numbers(own)
    if "blur" in kinds:
        _need_images(own)
    kind = kinds[own.group(len(kinds))]
    if kind == "none":
        return own
    values = own.x.astype(np.float64)
    if kind == "blur":
        from scipy import ndimage

        return replace(own, x=_as_stored(ndimage.gaussian_filter(values, (0, 0, blur, blur)), own.x))
    unit = np.array(own.dataset.std).reshape(-1, *[1] * (values.ndim - 2)) * (255 if own.x.dtype == np.uint8 else 1)
    drawn = np.stack([own.rng("noise", own.client, int(i)).standard_normal(values.shape[1:]) for i in own.at])
    return replace(own, x=_as_stored(values + noise * unit * drawn, own.x))


@SHIFTS.register("permuted_pixels")
def permuted_pixels(own: Own, *, groups: Groups = 4) -> Own:
    """Every group of clients has its own order of pixels, or of features; the first group keeps the usual order.

    Raises:
        UserError: the samples are neither images nor vectors of features, or features have unlike units.
    """
    _need_numbers(own)
    if own.x.ndim == 2 and len({*zip(own.dataset.mean, own.dataset.std, strict=True)}) > 1:
        raise UserError(
            f"shift {own.name!r}: the features of {own.dataset.name} have different units, and a permuted feature "
            "would be normalised by another one's; give an .npz file of features in one unit, with `mean` and `std`"
        )
    if own.x.ndim not in (2, 4):
        raise UserError(
            f"shift {own.name!r} needs images or features; samples of {own.dataset.name} are {own.x.shape[1:]}"
        )
    group = own.group(groups)
    if group == 0:
        return own
    flat = own.x.reshape(len(own.x), own.x.shape[1] if own.x.ndim == 4 else 1, -1)
    order = own.rng("pixels", group).permutation(flat.shape[2])
    return replace(own, x=flat[:, :, order].reshape(own.x.shape))


@SHIFTS.register("concept_shift")
def concept_shift(own: Own, *, clusters: Groups = 4) -> Own:
    """Labels differ in meaning: every cluster of clients has its own permutation of them; the first keeps the labels.

    Raises:
        UserError: there are fewer permutations than clusters.
    """
    classes = own.dataset.num_classes
    if clusters > math.factorial(classes):
        raise UserError(f"shift 'concept_shift': {classes} classes have fewer than {clusters} permutations")
    return replace(own, y=_permutations(own, clusters)[own.group(clusters)][own.y])


@SHIFTS.register("label_noise")
def label_noise(own: Own, *, share: Share | tuple[Share, Share] = 0.3) -> Own:
    """A share of each client's training labels is replaced by other classes; validation and tests stay clean.

    Args:
        own: samples.
        share: share of wrong labels, rounded to a number of samples; with two values each client draws its share
            between them.

    Raises:
        UserError: there is only one class.
    """
    classes = own.dataset.num_classes
    if classes < 2:
        raise UserError(f"shift 'label_noise': {own.dataset.name} has one class, so no label can be wrong")
    if own.part != "train":
        return own
    rng = own.rng("labels", own.client)
    wrong = share if isinstance(share, int | float) else rng.uniform(min(share), max(share))
    chosen = rng.permutation(len(own.y))[: round(wrong * len(own.y))]
    y = own.y.copy()
    y[chosen] = (y[chosen] + rng.integers(1, classes, len(chosen))) % classes
    return replace(own, y=y)


@SHIFTS.register("missing_classes")
def missing_classes(own: Own, *, k: PositiveInt = 1) -> Own:
    """Each client lacks k of its classes, drawn at random, in training and validation, but is tested on them too.

    At least one class stays, if only in its validation: a client with k classes or fewer lacks all but one.

    Raises:
        UserError: the data set has no more than k classes.
    """
    if k >= own.dataset.num_classes:
        raise UserError(f"shift 'missing_classes': k = {k} leaves none of {own.dataset.num_classes} classes")
    if own.part == "test":
        return own
    order = own.rng("missing", own.client).permutation(own.held)
    return own.only(~np.isin(own.y, order[: min(k, len(order) - 1)]))


def _permutations(own: Own, count: int) -> list[Indices]:
    """Draw `count` different permutations of the labels, the identity first."""
    classes = own.dataset.num_classes
    permutations = [np.arange(classes)]
    draw = 0
    while len(permutations) < count:
        candidate = own.rng("permutation", draw).permutation(classes)
        draw += 1
        if not any(np.array_equal(candidate, other) for other in permutations):
            permutations.append(candidate)
    return permutations


def _need_images(own: Own) -> None:
    if own.x.ndim != 4:
        raise UserError(
            f"shift {own.name!r} needs images; samples of {own.dataset.name} have the shape {own.x.shape[1:]}"
        )


def _need_numbers(own: Own) -> None:
    if own.x.dtype != np.uint8 and own.x.dtype.kind != "f":
        raise UserError(f"shift {own.name!r} needs images or numbers; samples of {own.dataset.name} are {own.x.dtype}")


def _as_stored(values: Array, stored: Array) -> Array:
    """Convert values to the type of `stored`; for bytes they are rounded and clipped to 0 .. 255."""
    if stored.dtype == np.uint8:
        values = np.clip(np.rint(values), 0, 255)
    return values.astype(stored.dtype)
