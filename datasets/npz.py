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
_KINDS = {  # the inputs of a file, and what they should be
    "images": "images [n, height, width] or [n, height, width, 1, 3 or 4], uint8 or floating, or features "
    "[n, features], floating",
    "series": "floating [n, channels, time], all series of one length",
    "tokens": "integer token numbers [n, length], rows of one length (0 as padding)",
}
_MOST = 1_000_000  # different tokens; each has an embedding in the model
_CHANNELS = ((1,), (3,), (4,))
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
        path: the .npz file.

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
    arrays = read_npz(file)
    owners = {name: arrays.pop(name) for name in _OWNERS if name in arrays}
    kinds = [kind for kind in _KINDS if f"train_{kind}" in arrays]
    if len(kinds) != 1:
        raise UserError(
            f"{file} has {len(kinds) or 'none'} of the arrays 'train_images', 'train_series' and 'train_tokens', and "
            "should have one, with 'train_labels' beside it; 'train_images' may also be features [n, features]"
        )
    kind = kinds[0]
    readable = {f"{part}_{what}" for part in _PARTS for what in (kind, "labels")}
    if unknown := sorted(arrays.keys() - readable):
        raise UserError(
            f"{file} has an array {unknown[0]!r}, which is not read; leave it out, or if it says whose each sample is, "
            "name it 'groups' (partition `natural`) or 'subjects' (kept together), for all parts in one array"
        )
    parts = {part: _part(file, part, kind, arrays) for part in _PARTS if f"{part}_{kind}" in arrays}
    first, first_labels = parts["train"]
    for part, (inputs, labels) in parts.items():
        if (inputs.shape[1:], inputs.dtype) != (first.shape[1:], first.dtype):
            raise UserError(
                f"{file}: '{part}_{kind}' holds samples of {inputs.dtype} {inputs.shape[1:]}, 'train_{kind}' of "
                f"{first.dtype} {first.shape[1:]} (channels first); they should be the same"
            )
        if (labels.dtype.kind == "U") != (first_labels.dtype.kind == "U"):
            raise UserError(f"{file}: '{part}_labels' and 'train_labels' should both hold integers or both hold text")
    y = np.concatenate([labels for _, labels in parts.values()])
    x = np.empty((len(y), *first.shape[1:]), first.dtype)  # without `out`, channels would stay last and cost a copy
    np.concatenate([inputs for inputs, _ in parts.values()], out=x)
    return x, y, {part: len(parts[part][1]) if part in parts else 0 for part in _PARTS}, owners


def _part(file: Path, part: str, kind: str, arrays: dict[str, Array]) -> tuple[Array, Array]:
    inputs = _inputs(file, f"{part}_{kind}", kind, arrays[f"{part}_{kind}"])
    labels = arrays.get(f"{part}_labels")
    if labels is None:
        raise UserError(f"{file} has '{part}_{kind}' but no '{part}_labels'")
    if labels.shape == (len(inputs), 1):
        labels = labels[:, 0]
    if labels.shape != (len(inputs),) or labels.dtype.kind not in "biuU":
        raise UserError(
            f"{file}: '{part}_labels' is {labels.dtype} {labels.shape}; "
            f"it should hold one integer or text for each of the {len(inputs)} {kind}"
        )
    return inputs, labels if labels.dtype.kind == "U" else labels.astype(np.int64)


def _inputs(file: Path, key: str, kind: str, values: Array) -> Array:
    """Check inputs, and return them with channels first as uint8, float32, or int32 tokens."""
    floating = values.dtype.kind == "f"
    fits = {
        "images": (values.ndim == 2 and floating)
        or ((values.ndim == 3 or values.shape[3:] in _CHANNELS) and (floating or values.dtype == np.uint8)),
        "series": values.ndim == 3 and floating,
        "tokens": values.ndim == 2 and values.dtype.kind in "iu",
    }
    if not fits[kind] or values.size == 0:
        raise UserError(f"{file}: '{key}' is {values.dtype} {values.shape}; it should be {_KINDS[kind]}")
    if kind == "tokens":
        if values.min() < 0 or values.max() >= _MOST:
            raise UserError(
                f"{file}: '{key}' has tokens from {values.min()} to {values.max()}; they should be numbers from 0, "
                f"below {_MOST:,}, as few as there are different ones: a model has an embedding for each"
            )
        return values.astype(np.int32)
    values = finite(file, key, values) if floating else values
    if kind == "series" or values.ndim == 2:
        return values
    return values[:, None] if values.ndim == 3 else values.transpose(0, 3, 1, 2)


def finite(file: Path, key: str, values: Array) -> Array:
    """The values as float32.

    Raises:
        UserError: some are NaN or infinite.
    """
    numbers = values.astype(np.float32)
    if not np.isfinite(numbers).all():
        raise UserError(f"{file}: '{key}' holds NaN or infinite values; remove or replace them")
    return numbers
