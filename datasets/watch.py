"""`watch`: shoulder exercises, from the smartwatches of people at physiotherapy (Burns et al. 2018, arXiv:1802.01489).

Ten people did sets of seven exercises with either arm: 140 recordings of six channels at 50 Hz. The package `seglearn`
ships them (BSD licence).
"""

import hashlib
import importlib.util
import io
import itertools
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, PositiveInt

from bench.data import Array, Dataset, Indices
from bench.errors import UserError
from bench.plugin import DATASETS
from bench.samples.normalising import channel_statistics
from datasets.arrays import read_npz
from datasets.assemble import assemble

FILE = "watch.npz"
"""Under the data root: the arrays of `_ARRAYS`."""
PACKAGE, PACKED = "seglearn", Path("data", "watch_dataset.npy")
PACKED_SHA256 = "eb122f23cdf06ef6bd6c6c5312958ec5cf9d038e2e6d457b8081662c75a42537"
CHECKSUM = "9714214ce75f4bf02973a66d95a40908"
"""`checksum` of the published recordings."""
_EXERCISES = ("PEN", "ABD", "FEL", "IR", "ER", "TRAP", "ROW")
_ARRAYS = {"series": "<f4", "offsets": "<i8", "labels": "<i8", "subjects": "<i8"}
"""Readings [steps, 6], the first step of each recording and the end, and its exercise and person; with types."""
_HINT = f"put {FILE} under --data-root, or `pip install --no-deps {PACKAGE}==1.2.5`, which ships the recordings"


@DATASETS.register("watch")
def load(
    *,
    data_root: Path,
    download: bool,
    window: PositiveInt = 64,
    part: Literal["clients", "between"] = "clients",
    shares: tuple[Annotated[float, Field(gt=0, lt=1)], Annotated[float, Field(gt=0, lt=1)]] = (0.6, 0.25),
    mean: list[float] | None = None,
    std: list[float] | None = None,
    name: str = "watch",
) -> Dataset:
    """Windows `[n, 6, window]` of 50 readings a second, seven exercises; groups are the ten people.

    Channels are acceleration and angular velocity along x, y and z. The tests lie in time after the training windows:
    of each recording the first windows train and the last ones test. Those between them are in neither, so that no
    test begins where training ends; `part: between` makes public samples of them.

    Args:
        data_root: may hold `watch.npz`; else the installed package `seglearn` is read.
        window: length of a window in readings; a shorter rest of a recording is left out.
        part: `clients`: training and test windows. `between`: the windows between them, as a training part.
        shares: of each recording's windows, for training and for tests.

    Raises:
        UserError: the recordings are missing, or not the published ones; no window is that long, or the shares leave
            nothing.
    """
    if sum(shares) > 1:
        raise UserError(f"watch: shares = {list(shares)} should add up to 1 at most: for training and tests")
    recordings = _read(data_root)
    x, of, place = cut_windows(recordings["series"], recordings["offsets"], window)
    train, test = place < shares[0], place > 1 - shares[1]
    if not train.any() or not test.any() or (part == "between" and (train | test).all()):
        raise UserError(f"watch: shares = {list(shares)} leave no windows of {window} readings; take shorter windows")
    statistics = channel_statistics(x[train])
    parts = (train, test) if part == "clients" else (~(train | test),)
    order = np.concatenate([np.flatnonzero(chosen) for chosen in parts])
    return assemble(
        name, x[order], recordings["labels"][of[order]], int(parts[0].sum()), mean=mean or statistics[0],
        std=std or statistics[1], classes=_EXERCISES, groups=recordings["subjects"][of[order]],
    )  # fmt: skip


def cut_windows(series: Array, offsets: Indices, steps: int) -> tuple[Array, Indices, Array]:
    """Cut each recording into windows of so many steps, from its beginning; none overlaps another.

    Returns:
        Windows `[n, channels, steps]`, the number of each one's recording, and where in its recording it lies: its
        middle, as a share of the recording's windows.

    Raises:
        UserError: no recording is that long.
    """
    windows, numbers, places = [], [], []
    for number, (begin, end) in enumerate(itertools.pairwise(offsets.tolist())):
        count = (end - begin) // steps
        rows = series[begin : begin + count * steps]
        windows.append(rows.reshape(count, steps, rows.shape[1]).swapaxes(1, 2))
        numbers += [number] * count
        places.append((np.arange(count) + 0.5) / max(1, count))
    if not numbers:
        raise UserError(f"watch: no recording has {steps} readings; the longest has {np.diff(offsets).max()}")
    x = np.ascontiguousarray(np.concatenate(windows), np.float32)
    return x, np.array(numbers), np.concatenate(places)


def _read(data_root: Path) -> dict[str, Array]:
    """The published recordings, from the file under the data root or the installed package.

    Raises:
        UserError: there are none, or others.
    """
    file, packed = data_root / FILE, packed_file()
    if file.exists():
        recordings = read_npz(file, set(_ARRAYS))
    elif packed:
        recordings = unpacked(packed)
    else:
        raise UserError(f"watch: {file} does not exist; {_HINT}")
    if recordings.keys() != set(_ARRAYS) or checksum(recordings) != CHECKSUM:
        raise UserError(f"watch: these are not the published recordings; {_HINT}")
    return recordings


def checksum(recordings: dict[str, Array]) -> str:
    """Hex digest of the content of recordings."""
    digest = hashlib.blake2b(digest_size=16)
    for name, kind in _ARRAYS.items():
        digest.update(np.ascontiguousarray(recordings[name], kind).data)
    return digest.hexdigest()


def packed_file() -> Path | None:
    """The file of the installed package, which is not imported."""
    spec = importlib.util.find_spec(PACKAGE)
    places = [Path(place, PACKED) for place in (spec.submodule_search_locations or [])] if spec else []
    return next((place for place in places if place.is_file()), None)


def unpacked(file: Path) -> dict[str, Array]:
    """Read the package's file, which is pickled: only the very file that was published is."""
    content = file.read_bytes()
    if hashlib.sha256(content).hexdigest() != PACKED_SHA256:
        raise UserError(f"watch: {file} is not the file of {PACKAGE} 1.2.5; {_HINT}")
    published = np.load(io.BytesIO(content), allow_pickle=True).item()
    return {
        "series": np.concatenate(published["X"]).astype(np.float32),
        "offsets": np.cumsum([0, *(len(rows) for rows in published["X"])]),
        "labels": published["y"].astype(np.int64),
        "subjects": published["subject"].astype(np.int64),
    }
