"""`camelyon17`: patches of lymph nodes from five hospitals (Bandi et al. 2018), as WILDS (Koh et al. 2021) has them."""

import csv
from pathlib import Path

import numpy as np
from pydantic import PositiveInt

from bench.data import Dataset
from bench.errors import UserError
from bench.plugin import DATASETS
from datasets.assemble import assemble, held_out_order
from datasets.resized import resized

_NAME = "camelyon17"
_FOLDER = "camelyon17_v1.0"
_COLUMNS = ("patient", "node", "x_coord", "y_coord", "tumor", "center")


@DATASETS.register(_NAME)
def load(
    *, data_root: Path, download: bool, size: PositiveInt = 96, mean: list[float] | None = None,
    std: list[float] | None = None,
) -> Dataset:  # fmt: skip
    """Camelyon17 by WILDS: `[n, 3, size, size]` uint8, tumour or not; groups are the five hospitals.

    WILDS' own split keeps whole hospitals for tests. Here a fixed 25 % of each hospital and label is the test part, and
    a hospital is kept from training with the partition `natural` and its option `held_out`. The first use resizes every
    patch into `DATA_ROOT/camelyon17_v1.0-SIZE.images.npy`.

    Args:
        data_root: holds `camelyon17_v1.0` with `metadata.csv` and `patches`.
        download: not used.
        size: height and width in pixels.
        mean, std: per channel, in units of `x / 255`; computed from the training part unless given.

    Raises:
        UserError: the list or a patch is missing or damaged.
    """
    folder = data_root / _FOLDER
    rows = _rows(folder / "metadata.csv")
    tumour = np.array([int(row["tumor"]) for row in rows])
    centre = np.array([int(row["center"]) for row in rows])
    order, n_train = held_out_order(2 * centre + tumour)
    paths = [_patch(folder, rows[i]) for i in order]
    if missing := next((path for path in paths if not path.is_file()), None):
        raise UserError(f"{_NAME}: {missing} is missing; fetch the data with WILDS again")
    x, known = resized(_NAME, paths, size, data_root / f"{_FOLDER}-{size}.images.npy", n_train)
    return assemble(
        _NAME, x, tumour[order], n_train, mean=mean or known["mean"], std=std or known["std"],
        classes=["normal", "tumour"], checksum=known["checksum"], groups=centre[order],
    )  # fmt: skip


def _rows(file: Path) -> list[dict[str, str]]:
    if not file.is_file():
        raise UserError(f"{_NAME}: {file} is missing; fetch the data with WILDS, and set `--data-root` to their folder")
    with file.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    if not rows or not set(_COLUMNS) <= rows[0].keys():
        raise UserError(f"{_NAME}: {file} should have rows with the columns {', '.join(_COLUMNS)}")
    return rows


def _patch(folder: Path, row: dict[str, str]) -> Path:
    place = f"patient_{row['patient']}_node_{row['node']}"
    return folder / "patches" / place / f"patch_{place}_x_{row['x_coord']}_y_{row['y_coord']}.png"
