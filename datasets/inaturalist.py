"""`inaturalist2017`: the photographs of iNaturalist 2017, listed by torchvision, resized once and read as needed.

Van Horn et al. 2018, "The iNaturalist Species Classification and Detection Dataset": 675,170 photographs in 5,089
categories of 13 super-categories. torchvision does not provide the official split, so a fixed stratified 25 % is the
test part. The resized pictures are kept in one file beside the originals, which is never loaded as a whole.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import PositiveInt

from bench.data import Dataset
from bench.errors import UserError
from bench.plugin import DATASETS
from datasets.assemble import assemble, hold_out
from datasets.image_folder import natural
from datasets.resized import resized

_FOLDER = "2017"
_WHAT = "inaturalist2017"


@DATASETS.register(_WHAT)
def load(
    *,
    data_root: Path,
    download: bool,
    labels: Literal["super", "full"] = "super",
    size: PositiveInt = 64,
    mean: list[float] | None = None,
    std: list[float] | None = None,
) -> Dataset:
    """iNaturalist 2017: `[675170, 3, size, size]` uint8, in a file that stays on disk.

    The first use resizes every photograph (bilinear; the aspect ratio is not kept) into
    `DATA_ROOT/2017-SIZE.images.npy`: 8.3 GB at 64 pixels. Both kinds of labels share the file.

    Args:
        data_root: holds torchvision's folder `2017/SUPER-CATEGORY/CATEGORY/*.jpg`.
        download: fetch the archive (186 GB) if that folder is missing.
        labels: `super` for the 13 super-categories, `full` for the 5,089 categories.
        size: height and width in pixels.
        mean, std: per channel, in units of `x / 255`; computed from the training part unless given.

    Raises:
        UserError: the photographs are missing or one of them is damaged.
    """
    listed = _listed(data_root, download)
    files = sorted(listed.index, key=lambda file: (file[0], natural(file[1])))
    category = np.array([number for number, _ in files])
    order, _, n_train = hold_out(np.arange(len(files)), category)
    category = category[order]
    paths = [Path(listed.root, listed.all_categories[files[i][0]], files[i][1]) for i in order]
    cache = data_root / f"{_FOLDER}-{size}.images.npy"
    x, about = resized(_WHAT, paths, size, cache, n_train)
    if labels == "full":
        y, classes = category, list(listed.all_categories)
    else:
        supers = np.array([category_map["super"] for category_map in listed.categories_map])
        y, classes = supers[category], list(listed.categories_index["super"])
    return assemble(
        f"{_WHAT}-{labels}", x, y, n_train,
        mean=mean or about["mean"], std=std or about["std"], classes=classes, checksum=f"{about['checksum']}-{labels}",
    )  # fmt: skip


def _listed(data_root: Path, download: bool) -> Any:
    from torchvision.datasets import INaturalist

    folder = data_root / _FOLDER
    try:
        return INaturalist(str(data_root), version=_FOLDER, download=download and not folder.is_dir())
    except (RuntimeError, OSError) as error:
        fault = f"{folder} cannot be read ({error})" if folder.exists() else f"{folder} is missing"
        raise UserError(
            f"{_WHAT}: {fault}; add `--download` to fetch 186 GB, or set `--data-root` to the folder that holds "
            f"'{_FOLDER}'"
        ) from None
