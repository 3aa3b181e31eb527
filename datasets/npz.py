"""`npz`: a user's own arrays under MedMNIST's keys (Yang et al. 2023, https://medmnist.com)."""

from pathlib import Path
from typing import Any

import numpy as np

from bench.data import Array, Dataset
from bench.errors import UserError
from bench.plugin import DATASETS
from datasets.arrays import read_npz
from datasets.copies import with_copies

_PARTS = ("train", "val", "test")
_KINDS = ("images", "series", "tokens")
_MOST = 1_000_000  # different tokens; each has an embedding in the model
_CHANNELS = (1, 3, 4)
_OWNERS = ("groups", "subjects")


@DATASETS.register("npz")
def load(
    *,
    data_root: Path,
    download: bool,
    path: str,
    name: str = "",
    mean: list[float] | None = None,
    std: list[float] | None = None,
) -> Dataset:
    """Arrays `train_images`, `train_labels` and optionally `val_...` and `test_...` of an .npz file.

    Images are `[n, height, width]` or `[n, height, width, channels]`, uint8 or floating; features are `[n, features]`,
    floating; labels are integers or texts, `[n]` or `[n, 1]`: those that occur in some part are the classes, in sorted
    order, and name them. In place of `..._images` there may be `..._series`, floating `[n, channels, time]`, or
    `..._tokens`, integers from 0 `[n, length]`. The validation part joins the training part;
    without a test part a fixed stratified 25 % is held out. Normalisation is computed from the training part unless
    given.

    An array `groups` (integers or text) gives the group of each sample, first of the training part, then of the
    validation and the test part; the partition `natural` makes the groups clients. An array `subjects`, in the same
    order, says of whom or what each sample is, such as the recording that a window is from: all samples of a subject
    are on one side of tests, validation and training.

    Args:
        data_root, download: not used; the file is the user's own.
        path: the .npz file; a relative path starts at the current directory.
        name: name of the data set in reports; the file's name without its ending if empty.
        mean, std: per channel, in units of `x / 255` for uint8 images and of `x` otherwise.

    Raises:
        UserError: the file is missing or damaged, or an array has another shape or type.
    """
    file = Path(path)
    x, y, sizes, owners = read_samples(file)
    n_train = len(y) - sizes["test"]
    vocabulary = int(x.max()) + 1 if x.dtype == np.int32 else 0
    if vocabulary and (mean is not None or std is not None):
        raise UserError(f"{file} holds tokens, which have no `mean` and no `std`; leave these options out")
    further: dict[str, Any] = {**owners, "mean": mean, "std": std, "vocabulary": vocabulary}
    validation = range(sizes["train"], sizes["train"] + sizes["val"])
    return with_copies(name or file.stem, x, y, n_train, "sample", validation=validation, **further)


@DATASETS.offer("npz", "samples")
def read_samples(file: Path) -> tuple[Array, Array, dict[str, int], dict[str, Array]]:
    """Read inputs and labels of the parts train, val and test in this order, the parts' sizes, and by name the arrays
    that say whose samples they are.

    Raises:
        UserError: the file is missing or damaged, or an array has another shape or type.
    """
    parts, owners = _read(file)
    y = np.concatenate([labels for _, labels in parts.values()])  # checked: all integers or all text
    first = parts["train"][0]
    x = np.empty((len(y), *first.shape[1:]), first.dtype)  # without `out`, channels would stay last and cost a copy
    np.concatenate([inputs for inputs, _ in parts.values()], out=x)
    return x, y, {part: len(parts[part][1]) if part in parts else 0 for part in _PARTS}, owners


def _read(file: Path) -> tuple[dict[str, tuple[Array, Array]], dict[str, Array]]:
    """The parts of a file in the order train, val, test, checked against each other, and the arrays `_OWNERS`."""
    arrays = read_npz(file)
    owners = {name: arrays.pop(name) for name in _OWNERS if name in arrays}
    kinds = [kind for kind in _KINDS if f"train_{kind}" in arrays]
    if len(kinds) != 1:
        raise UserError(
            f"{file} has {len(kinds) or 'none'} of the arrays 'train_images', 'train_series' and 'train_tokens', and "
            "should have one, with 'train_labels' beside it; 'train_images' may also be features [n, features]"
        )
    readable = {f"{part}_{kind}" for part in _PARTS for kind in (kinds[0], "labels")}
    if unknown := sorted(arrays.keys() - readable):
        raise UserError(
            f"{file} has an array {unknown[0]!r}, which is not read: known are {', '.join(sorted(readable))}. If it "
            "says whose each sample is, name it 'groups' (partition `natural`) or 'subjects' (kept together), for all "
            "parts in one array; else leave it out"
        )
    parts = {part: _part(file, part, kinds[0], arrays) for part in _PARTS if f"{part}_{kinds[0]}" in arrays}
    first = parts["train"][0]
    for part, (inputs, _) in parts.items():
        if (inputs.shape[1:], inputs.dtype) != (first.shape[1:], first.dtype):
            raise UserError(
                f"{file}: '{part}_{kinds[0]}' holds samples of {inputs.dtype} {inputs.shape[1:]}, 'train_{kinds[0]}' "
                f"of {first.dtype} {first.shape[1:]} (channels first); they should be the same"
            )
    texts = {part: labels.dtype.kind == "U" for part, (_, labels) in parts.items()}
    if other := [part for part in texts if texts[part] != texts["train"]]:
        raise UserError(
            f"{file}: '{other[0]}_labels' and 'train_labels' should both hold integers or both hold text, not one of "
            "each"
        )
    return parts, owners


def _part(file: Path, part: str, kind: str, arrays: dict[str, Array]) -> tuple[Array, Array]:
    key = f"{part}_{kind}"
    if f"{part}_labels" not in arrays:
        raise UserError(f"{file} has '{key}' but no '{part}_labels'")
    read = {"images": _images, "series": _series, "tokens": _tokens}[kind]
    inputs = read(file, key, arrays[key])
    labels = arrays[f"{part}_labels"]
    if labels.shape == (len(inputs), 1):
        labels = labels[:, 0]
    if labels.shape != (len(inputs),) or labels.dtype.kind not in "biuU":
        raise UserError(
            f"{file}: '{part}_labels' is {labels.dtype} {labels.shape}; "
            f"it should hold one integer or text for each of the {len(inputs)} {kind}"
            + ("; `astype(int)` makes integers of whole numbers" if labels.dtype.kind == "f" else "")
        )
    return inputs, labels if labels.dtype.kind == "U" else labels.astype(np.int64)


def _series(file: Path, key: str, series: Array) -> Array:
    """Check time series and return them as float32 `[n, channels, time]`."""
    if series.ndim != 3 or series.size == 0 or not np.issubdtype(series.dtype, np.floating):
        raise UserError(
            f"{file}: '{key}' is {series.dtype} {series.shape}; it should be floating [n, channels, time], all series "
            "of one length"
        )
    return finite(file, key, series)


def _tokens(file: Path, key: str, tokens: Array) -> Array:
    """Check token numbers and return them as int32 `[n, length]`."""
    if tokens.ndim != 2 or tokens.size == 0 or not np.issubdtype(tokens.dtype, np.integer):
        raise UserError(
            f"{file}: '{key}' is {tokens.dtype} {tokens.shape}; it should be integer token numbers [n, length], rows "
            "of one length (0 as padding)"
        )
    if tokens.min() < 0 or tokens.max() >= _MOST:
        raise UserError(
            f"{file}: '{key}' has tokens from {tokens.min()} to {tokens.max()}; they should be numbers from 0, below "
            f"{_MOST:,}, as few as there are different ones: a model has an embedding for each"
        )
    return tokens.astype(np.int32)


def _images(file: Path, key: str, images: Array) -> Array:
    """Check images, or features `[n, features]`, and return them as uint8 or float32 with channels first."""
    floating = np.issubdtype(images.dtype, np.floating)
    fits = images.ndim == 3 or (images.ndim == 4 and images.shape[3] in _CHANNELS) or (images.ndim == 2 and floating)
    if not fits or images.size == 0 or not (floating or images.dtype == np.uint8):
        raise UserError(
            f"{file}: '{key}' is {images.dtype} {images.shape}; it should be images [n, height, width] or "
            "[n, height, width, 1, 3 or 4], uint8 or floating, or features [n, features], floating"
        )
    if floating:
        images = finite(file, key, images)
    if images.ndim == 3:
        return images[:, None]
    return images.transpose(0, 3, 1, 2) if images.ndim == 4 else images


def finite(file: Path, key: str, values: Array) -> Array:
    """The values as float32.

    Raises:
        UserError: some are NaN or infinite.
    """
    numbers = values.astype(np.float32)
    if not np.isfinite(numbers).all():
        raise UserError(f"{file}: '{key}' holds NaN or infinite values; remove or replace them")
    return numbers
