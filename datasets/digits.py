"""`digits`: the 1,797 handwritten digits of scikit-learn, 8 x 8 pixels (UCI, Alpaydin and Kaynak 1998)."""

from pathlib import Path

import numpy as np

from bench.data import Dataset
from bench.plugin import DATASETS
from datasets.assemble import assemble, hold_out


@DATASETS.register("digits")
def load(
    *, data_root: Path, download: bool, mean: list[float] | None = None, std: list[float] | None = None
) -> Dataset:
    """Grey images `[1797, 1, 8, 8]` of ten classes with a fixed stratified 25 % as test part; nothing is downloaded.

    The original values 0 .. 16 are stored times 15, as 0 .. 240: exact, and near the usual range of a picture.
    """
    from sklearn.datasets import load_digits

    raw = load_digits()
    x = (raw.images[:, None] * 15).astype(np.uint8)
    classes = [str(label) for label in raw.target_names]
    return assemble("digits", *hold_out(x, raw.target), mean=mean, std=std, classes=classes)
