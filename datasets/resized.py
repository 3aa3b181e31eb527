"""Photographs resized once into a file beside the originals, and read from that file as they are needed."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.config.digests import digest, version
from bench.data import Array, Dataset, Indices
from bench.errors import UserError
from bench.samples.normalising import channel_statistics
from datasets.assemble import assemble, content_checksum
from datasets.pictures import picture

_BLOCK = 4096  # pictures that are in memory at a time


def photographs(
    name: str, paths: list[Path], y: Indices, n_train: int, cache: Path, size: int, classes: list[str],
    mean: list[float] | None, std: list[float] | None, advice: str, groups: Array | None = None,
) -> Dataset:  # fmt: skip
    """Build a data set of pictures of many sizes, resized into `cache`.

    Args:
        name, paths, n_train, cache, size: as in `resized`.
        y, classes, groups: as in `datasets.assemble.assemble`.
        mean, std: per channel, in units of `x / 255`; computed from the training part unless given.
        advice: end of the message for a missing picture: what the user can do.

    Raises:
        UserError: a picture is missing or damaged, or the cache cannot be written.
    """
    if missing := next((path for path in paths if not path.is_file()), None):
        raise UserError(f"{name}: {missing} is missing; {advice}")
    x, about = resized(name, paths, size, cache, n_train)
    return assemble(
        name, x, y, n_train, mean=mean or about["mean"], std=std or about["std"], classes=classes,
        checksum=about["checksum"], groups=groups,
    )  # fmt: skip


def resized(
    name: str, paths: list[Path], size: int, cache: Path, n_train: int
) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
    """Resize pictures to `[n, 3, size, size]`, with their mean, std and checksum, all kept in files.

    They are resized again if the originals are not those that the cache was made from, judged by their names, order,
    times and sizes, and by the size of the training part.

    Args:
        name: name of the data set, for messages.
        paths: the pictures, the training part first.
        size: height and width in pixels; the aspect ratio is not kept (bilinear).
        cache: the file of the resized pictures; it is memory-mapped, not loaded.
        n_train: size of the training part, from which mean and std are computed.

    Raises:
        UserError: a picture is damaged, or the cache cannot be written.
    """
    about = cache.with_suffix(".json")
    listed = [(os.path.relpath(path, cache.parent), *version(path)[1:]) for path in paths]
    source = {"files": digest(json.dumps(listed)), "train": n_train}
    record = json.loads(about.read_text()) if about.is_file() and cache.is_file() else {}
    if record.get("source") != source or record.get("cache_bytes") != cache.stat().st_size:
        unfinished = cache.with_suffix(f".{os.getpid()}.tmp")
        try:
            _write(paths, size, unfinished)
            os.replace(unfinished, cache)
            x = _map(cache)
            mean, std = channel_statistics(x[:n_train])
            checksum = content_checksum(x, np.zeros(0, np.int64), n_train)
            record = {
                "source": source, "cache_bytes": cache.stat().st_size, "mean": mean, "std": std, "checksum": checksum,
            }  # fmt: skip
            unfinished.write_text(json.dumps(record))
            os.replace(unfinished, about)
        except OSError as error:
            needed = 3 * size**2 * len(paths)
            raise UserError(f"{name}: {cache} cannot be written ({error}); it needs {needed} bytes") from None
    return _map(cache), record


def _map(cache: Path) -> npt.NDArray[np.uint8]:
    # copy on write, as torch expects a writable array; nothing writes to it
    images: npt.NDArray[np.uint8] = np.lib.format.open_memmap(cache, mode="c")
    return images


def _write(paths: list[Path], size: int, file: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    try:
        out = np.lib.format.open_memmap(file, mode="w+", dtype=np.uint8, shape=(len(paths), 3, size, size))
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # threads help, as Pillow decodes without Python's lock
            for start in range(0, len(paths), _BLOCK):
                block = paths[start : start + _BLOCK]
                out[start : start + len(block)] = list(pool.map(lambda path: picture(path, size), block))
        out.flush()
    except BaseException:
        file.unlink(missing_ok=True)
        raise
