"""`emnist_writers`: handwritten characters with their writers, in EMNIST's own MATLAB file (Cohen et al. 2017)."""

from pathlib import Path
from typing import Any

import numpy as np

from bench.data import Array, Dataset
from bench.plugin import DATASETS
from datasets.assemble import assemble
from datasets.published import reading

_SIDE = 28


@DATASETS.register("emnist_writers")
def load(
    *, data_root: Path, download: bool, mean: list[float] | None = None, std: list[float] | None = None
) -> Dataset:
    """EMNIST ByClass with its writers: `[n, 1, 28, 28]` uint8, 62 classes; groups are the writers.

    The file holds the images column by column, as MATLAB does; here they are upright.

    Args:
        data_root: holds `EMNIST/matlab/emnist-byclass.mat`.
    """
    from scipy.io import loadmat

    file = data_root / "EMNIST" / "matlab" / "emnist-byclass.mat"
    with reading("emnist_writers", file, "unpack EMNIST's MATLAB archive there, or set `--data-root`"):
        content = loadmat(file, variable_names=["dataset"], simplify_cells=True)["dataset"]
        parts = [_part(content[part]) for part in ("train", "test")]
        classes = [chr(int(code)) for _, code in sorted(content["mapping"].tolist())]
    x, y, writers = (np.concatenate(both) for both in zip(*parts, strict=True))
    return assemble("emnist_writers", x, y, len(parts[0][1]), mean=mean, std=std, classes=classes, groups=writers)


def _part(part: dict[str, Any]) -> tuple[Array, Array, Array]:
    """Upright images, labels and writers of one part."""
    images = np.asarray(part["images"])
    labels, writers = (np.ravel(part[key]) for key in ("labels", "writers"))
    if images.dtype != np.uint8 or not len(images) == len(labels) == len(writers):
        raise ValueError(f"{len(images)} images of {images.dtype}, {len(labels)} labels, {len(writers)} writers")
    return images.reshape(-1, 1, _SIDE, _SIDE).swapaxes(2, 3), labels.astype(np.int64), writers.astype(np.int64)
