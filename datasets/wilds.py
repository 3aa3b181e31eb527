"""Pictures in the layout of WILDS (Koh et al. 2021, arXiv:2012.07421): a folder, and a list in `metadata.csv`."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import PositiveInt

from bench.data import Dataset
from bench.errors import UserError
from bench.plugin import DATASETS
from datasets.assemble import held_out_order
from datasets.published import reading
from datasets.resized import photographs

if TYPE_CHECKING:
    import pandas as pd

_ANIMALS = 182
_ADVICE = "fetch the data with WILDS, and set `--data-root` to their folder"


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
    """
    folder = data_root / "camelyon17_v1.0"
    rows = _rows("camelyon17", folder, ("patient", "node", "x_coord", "y_coord"), ("tumor", "center"))
    tumour, centre = rows["tumor"].to_numpy(), rows["center"].to_numpy()
    order, n_train = held_out_order(2 * centre + tumour)
    place = "patient_" + rows["patient"] + "_node_" + rows["node"]
    patches = place + "/patch_" + place + "_x_" + rows["x_coord"] + "_y_" + rows["y_coord"] + ".png"
    paths = [folder / "patches" / patch for patch in patches.iloc[order]]
    cache, classes = data_root / f"{folder.name}-{size}.images.npy", ["normal", "tumour"]
    return photographs(
        "camelyon17", paths, tumour[order], n_train, cache, size, classes, mean, std, _ADVICE, groups=centre[order]
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
    """
    folder = data_root / "iwildcam_v2.0"
    rows = _rows("iwildcam", folder, ("split", "filename"), ("location_remapped", "y"))
    known, tests = rows["split"].isin(["train", "id_val"]), rows["split"] == "id_test"
    if not (n_train := int(known.sum())):
        raise UserError(f"iwildcam: {folder / 'metadata.csv'} has no rows of the parts train or id_val")
    order = np.concatenate([np.flatnonzero(known), np.flatnonzero(tests)])
    paths = [folder / "train" / name for name in rows["filename"].iloc[order]]
    y, cameras = rows["y"].to_numpy()[order], rows["location_remapped"].to_numpy()[order]
    classes = [str(label) for label in range(_ANIMALS)]
    cache = data_root / f"{folder.name}-{size}.images.npy"
    return photographs("iwildcam", paths, y, n_train, cache, size, classes, mean, std, _ADVICE, groups=cameras)


def _rows(name: str, folder: Path, texts: tuple[str, ...], numbers: tuple[str, ...]) -> "pd.DataFrame":
    """Columns of texts and of whole numbers of the list."""
    import pandas as pd

    types = {**dict.fromkeys(texts, str), **dict.fromkeys(numbers, np.int64)}
    with reading(name, folder / "metadata.csv", _ADVICE):
        return pd.read_csv(folder / "metadata.csv", usecols=list(types), dtype=types, na_filter=False)
