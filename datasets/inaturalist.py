"""`inaturalist2017`: the photographs of iNaturalist 2017, listed by torchvision, resized once, read as needed.

Van Horn et al. 2018, "The iNaturalist Species Classification and Detection Dataset": 675,170 photographs in 5,089
categories of 13 super-categories. torchvision knows them without the official split; a fixed stratified 25 % is the
test part. The resized pictures lie in one file beside the originals and are never in memory as a whole.
"""

import json
import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from bench.data import Dataset
from bench.errors import UserError
from bench.plugin import DATASETS
from datasets.assemble import assemble, channel_statistics, content_checksum, hold_out
from datasets.image_folder import natural, picture

_FOLDER = "2017"
_WHAT = "inaturalist2017"
_BLOCK = 4096  # pictures; bounds what waits in memory


@DATASETS.register(_WHAT)
def load(
    *,
    data_root: Path,
    download: bool,
    labels: Literal["super", "full"] = "super",
    size: int = 64,
    mean: list[float] | None = None,
    std: list[float] | None = None,
) -> Dataset:
    """iNaturalist 2017: `[675170, 3, size, size]` uint8, a file that stays on disk.

    The first use resizes every photograph (bilinear; the aspect ratio is not kept) into
    `DATA_ROOT/2017-SIZE.images.npy`: 8.3 GB at 64 pixels. Both kinds of labels share the file.

    Args:
        data_root: holds torchvision's folder `2017/SUPER-CATEGORY/CATEGORY/*.jpg`.
        download: fetch the archive (186 GB) if that folder is missing.
        labels: the 13 super-categories or the 5,089 categories.
        size: height and width in pixels.
        mean, std: per channel, in units of `x / 255`; computed from the training part unless given.

    Raises:
        UserError: the photographs are missing or one of them is damaged.
    """
    if size < 1:
        raise UserError(f"{_WHAT}: size = {size} should be at least 1")
    listed = _listed(data_root, download)
    files = sorted(listed.index, key=lambda one: (one[0], natural(one[1])))
    category = np.array([number for number, _ in files])
    order, _, n_train = hold_out(np.arange(len(files)), category)
    category = category[order]
    paths = [Path(listed.root, listed.all_categories[files[i][0]], files[i][1]) for i in order]
    cache = data_root / f"{_FOLDER}-{size}.images.npy"
    try:
        x, known = _resized(paths, size, cache, n_train)
    except OSError as error:
        raise UserError(
            f"{_WHAT}: {cache} cannot be written ({error}); it needs {3 * size**2 * len(paths)} bytes"
        ) from None
    if labels == "full":
        y, classes = category, list(listed.all_categories)
    else:
        supers = np.array([one["super"] for one in listed.categories_map])
        y, classes = supers[category], list(listed.categories_index["super"])
    return assemble(
        f"{_WHAT}-{labels}", x, y, n_train,
        mean=mean or known["mean"], std=std or known["std"], classes=classes, checksum=f"{known['checksum']}-{labels}",
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


def _resized(paths: list[Path], size: int, cache: Path, n_train: int) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
    """The resized pictures `[n, 3, size, size]` with their mean, std and checksum, all kept beside the originals.

    They are made again when the originals are not those that the cache was made of (by number and bytes).
    """
    about = cache.with_suffix(".json")
    source = {"files": len(paths), "bytes": sum(path.stat().st_size for path in paths)}
    known = json.loads(about.read_text()) if about.is_file() and cache.is_file() else {}
    if known.get("source") != source or known.get("cache_bytes") != cache.stat().st_size:
        unfinished = cache.with_suffix(f".{os.getpid()}.tmp")
        _write(paths, size, unfinished)
        os.replace(unfinished, cache)
        x = _map(cache)
        mean, std = channel_statistics(x[:n_train])
        known = {
            "source": source,
            "cache_bytes": cache.stat().st_size,
            "mean": mean,
            "std": std,
            "checksum": content_checksum(x, np.zeros(0, np.int64), n_train),
        }
        unfinished.write_text(json.dumps(known))
        os.replace(unfinished, about)
    return _map(cache), known


def _map(cache: Path) -> npt.NDArray[np.uint8]:
    # copy on write: torch wants an array that it could write to, and nobody does
    found: npt.NDArray[np.uint8] = np.lib.format.open_memmap(cache, mode="c")
    return found


def _write(paths: list[Path], size: int, file: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    try:
        out = np.lib.format.open_memmap(file, mode="w+", dtype=np.uint8, shape=(len(paths), 3, size, size))
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # Pillow decodes without the interpreter's lock
            for start in range(0, len(paths), _BLOCK):
                block = paths[start : start + _BLOCK]
                out[start : start + len(block)] = list(pool.map(lambda path: picture(path, size), block))
        out.flush()
    except BaseException:
        file.unlink(missing_ok=True)
        raise
