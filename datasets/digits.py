"""`digits`: the 1,797 handwritten digits of scikit-learn, 8 x 8 pixels (UCI, Alpaydin and Kaynak 1998)."""

from importlib.metadata import distribution
from pathlib import Path

import numpy as np

from bench.data import Dataset
from bench.plugin import DATASETS
from datasets.assemble import assemble, held_out_order


@DATASETS.register("digits")
def load(
    *, data_root: Path, download: bool, mean: list[float] | None = None, std: list[float] | None = None
) -> Dataset:
    """Grey images `[1797, 1, 8, 8]` of ten classes with a fixed stratified 25 % as test part; nothing is downloaded.

    The original values 0 .. 16 are multiplied by 15 to 0 .. 240, which is exact and close to the usual range of images.
    """
    # Reads the file itself, because importing scikit-learn would take seconds in every process that trains.
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = np.loadtxt(str(file), delimiter=",", dtype=np.int64)
    x = (rows[:, :-1].reshape(-1, 1, 8, 8) * 15).astype(np.uint8)
    y = rows[:, -1]
    order, n_train = held_out_order(y)
    return assemble("digits", x[order], y[order], n_train, mean=mean, std=std, classes=[*"0123456789"])
