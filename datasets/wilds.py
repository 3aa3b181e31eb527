"""Pictures in the layout of WILDS (Koh et al. 2021, arXiv:2012.07421): a folder, and a list in `metadata.csv`."""

import csv
from pathlib import Path

import numpy as np
from pydantic import PositiveInt

from bench.data import Dataset, Indices
from bench.errors import UserError
from bench.plugin import DATASETS
from datasets.assemble import held_out_order
from datasets.resized import photographs

_ANIMALS = 182
_AGAIN = "fetch the data with WILDS again"
_KNOWN_CAMERAS = {"train": True, "id_val": True, "id_test": False}  # part of the list -> whether it is for training


@DATASETS.register("camelyon17")
def camelyon17(
    *, data_root: Path, download: bool, size: PositiveInt = 96, mean: list[float] | None = None,
    std: list[float] | None = None,
) -> Dataset:  # fmt: skip
    """Camelyon17 (Bandi et al. 2018): `[n, 3, size, size]` lymph nodes, tumour or not; groups are the five hospitals.

    WILDS' own split keeps whole hospitals for tests. Here the test part is a fixed 25 % of each hospital and label. To
    exclude a hospital from training, use the partition `natural` with its option `held_out`. The first use resizes
    every patch into `DATA_ROOT/camelyon17_v1.0-SIZE.images.npy`.

    Args:
        data_root: holds `camelyon17_v1.0` with `metadata.csv` and `patches`.
        download: not used.
        size: height and width in pixels.
        mean, std: per channel, in units of `x / 255`; computed from the training part unless given.

    Raises:
        UserError: the list or a patch is missing or damaged.
    """
    folder = data_root / "camelyon17_v1.0"
    rows = _rows("camelyon17", folder, ("patient", "node", "x_coord", "y_coord", "tumor", "center"))
    tumour, centre = _numbers("camelyon17", rows, "tumor"), _numbers("camelyon17", rows, "center")
    order, n_train = held_out_order(2 * centre + tumour)
    paths = [_patch(folder, rows[i]) for i in order]
    cache, classes = data_root / f"{folder.name}-{size}.images.npy", ["normal", "tumour"]
    return photographs(
        "camelyon17", paths, tumour[order], n_train, cache, size, classes, mean, std, _AGAIN, groups=centre[order]
    )


@DATASETS.register("iwildcam")
def iwildcam(
    *, data_root: Path, download: bool, size: PositiveInt = 96, mean: list[float] | None = None,
    std: list[float] | None = None,
) -> Dataset:  # fmt: skip
    """iWildCam 2020 (Beery et al. 2020, arXiv:2004.10340): 182 classes of animals; groups are the cameras.

    `[n, 3, size, size]` uint8. Only the parts of WILDS' training cameras are read: `train` and `id_val` for training,
    `id_test`, from other days, for tests. To exclude a camera from training, use the partition `natural` with its
    option `held_out`. The first use resizes every picture into `DATA_ROOT/iwildcam_v2.0-SIZE.images.npy`.

    Args:
        data_root: holds `iwildcam_v2.0` with `metadata.csv` and `train`.
        download: not used.
        size: height and width in pixels.
        mean, std: per channel, in units of `x / 255`; computed from the training part unless given.

    Raises:
        UserError: the list or a picture is missing or damaged.
    """
    folder = data_root / "iwildcam_v2.0"
    rows = _rows("iwildcam", folder, ("split", "location_remapped", "y", "filename"))
    rows = sorted(
        (row for row in rows if row["split"] in _KNOWN_CAMERAS), key=lambda row: not _KNOWN_CAMERAS[row["split"]]
    )
    n_train = sum(_KNOWN_CAMERAS[row["split"]] for row in rows)
    if not n_train:
        raise UserError(f"iwildcam: {folder / 'metadata.csv'} has no rows of the parts train or id_val")
    paths = [folder / "train" / row["filename"] for row in rows]
    y, cameras = _numbers("iwildcam", rows, "y"), _numbers("iwildcam", rows, "location_remapped")
    classes = [str(label) for label in range(_ANIMALS)]
    cache = data_root / f"{folder.name}-{size}.images.npy"
    return photographs("iwildcam", paths, y, n_train, cache, size, classes, mean, std, _AGAIN, groups=cameras)


def _rows(name: str, folder: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    file = folder / "metadata.csv"
    if not file.is_file():
        raise UserError(f"{name}: {file} is missing; fetch the data with WILDS, and set `--data-root` to their folder")
    with file.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    if not rows or not set(columns) <= rows[0].keys():
        raise UserError(f"{name}: {file} should have rows with the columns {', '.join(columns)}")
    return rows


def _numbers(name: str, rows: list[dict[str, str]], column: str) -> Indices:
    try:
        return np.array([int(row[column]) for row in rows], np.int64)
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}: the column {column} of metadata.csv should hold integers ({error})") from None


def _patch(folder: Path, row: dict[str, str]) -> Path:
    place = f"patient_{row['patient']}_node_{row['node']}"
    return folder / "patches" / place / f"patch_{place}_x_{row['x_coord']}_y_{row['y_coord']}.png"
