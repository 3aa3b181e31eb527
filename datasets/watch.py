"""`watch`: shoulder exercises, from the smartwatches of people at physiotherapy (Burns et al. 2018, arXiv:1802.01489).

Ten people did sets of seven exercises with either arm: 140 recordings of six channels at 50 Hz. The package `seglearn`
ships them (BSD licence).
"""

import hashlib
import importlib.util
import io
from dataclasses import dataclass
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
"""`Recordings.checksum` of the published recordings."""
_EXERCISES = ("PEN", "ABD", "FEL", "IR", "ER", "TRAP", "ROW")
_ARRAYS = ("series", "offsets", "labels", "subjects")
"""Readings [steps, 6], the first step of each recording and the end, and its exercise and person."""
_HINT = f"put {FILE} under --data-root, or `pip install --no-deps {PACKAGE}==1.2.5`, which ships the recordings"


@dataclass(frozen=True)
class Recordings:
    """Recordings below each other.

    Attributes:
        series: readings `[steps, channels]`, float32.
        offsets: `[recordings + 1]` the first step of each, and the end.
        labels: `[recordings]` numbers of the exercises.
        people: `[recordings]` numbers of the people.
    """

    series: Array
    offsets: Indices
    labels: Indices
    people: Indices

    @property
    def checksum(self) -> str:
        """Hex digest of the content."""
        digest = hashlib.blake2b(digest_size=16)
        for array, kind in ((self.series, "<f4"), (self.offsets, "<i8"), (self.labels, "<i8"), (self.people, "<i8")):
            digest.update(np.ascontiguousarray(array, kind).data)
        return digest.hexdigest()


@dataclass(frozen=True)
class Windows:
    """Windows of recordings in time, none of which overlaps another or reaches into another recording.

    Attributes:
        x: `[n, channels, steps]`.
        y, people: `[n]` of the window's recording.
        place: `[n]` where in its recording a window lies: its middle, as a share of the recording's windows.
    """

    x: Array
    y: Indices
    people: Indices
    place: Array


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
        download: not used.
        window: length of a window in readings; a shorter rest of a recording is left out.
        part: `clients`: training and test windows. `between`: the windows between them, as a training part.
        shares: of each recording's windows, for training and for tests.
        mean, std: per channel; computed from the training windows unless given.
        name: name of the data set in reports.

    Raises:
        UserError: the recordings are missing, or not the published ones; no window is that long, or the shares leave
            nothing.
    """
    if sum(shares) > 1:
        raise UserError(f"watch: shares = {list(shares)} should add up to 1 at most: for training and tests")
    recordings = _read(data_root)
    if recordings.checksum != CHECKSUM:
        raise UserError(f"watch: these are not the published recordings; {_HINT}")
    cut = cut_windows(recordings, window)
    train, test = cut.place < shares[0], cut.place > 1 - shares[1]
    if not train.any() or not test.any() or (part == "between" and (train | test).all()):
        raise UserError(f"watch: shares = {list(shares)} leave no windows of {window} readings; take shorter windows")
    if mean is None or std is None:
        statistics = channel_statistics(cut.x[train])
        mean, std = (list(given or computed) for given, computed in zip((mean, std), statistics, strict=True))
    parts = (train, test) if part == "clients" else (~(train | test),)
    order = np.concatenate([np.flatnonzero(chosen) for chosen in parts])
    return assemble(
        name, cut.x[order], cut.y[order], int(parts[0].sum()), mean=mean, std=std, classes=_EXERCISES,
        groups=cut.people[order],
    )  # fmt: skip


def cut_windows(recordings: Recordings, steps: int) -> Windows:
    """Cut each recording into windows of so many steps, from its beginning.

    Raises:
        UserError: no recording is that long.
    """
    windows, numbers, places = [], [], []
    for number, (begin, end) in enumerate(zip(recordings.offsets[:-1], recordings.offsets[1:], strict=True)):
        count = (end - begin) // steps
        rows = recordings.series[begin : begin + count * steps]
        windows.append(rows.reshape(count, steps, rows.shape[1]).swapaxes(1, 2))
        numbers += [number] * count
        places.append((np.arange(count) + 0.5) / max(1, count))
    if not numbers:
        raise UserError(
            f"watch: no recording has {steps} readings; the longest has {np.diff(recordings.offsets).max()}"
        )
    x = np.ascontiguousarray(np.concatenate(windows), np.float32)
    return Windows(x, recordings.labels[numbers], recordings.people[numbers], np.concatenate(places))


def _read(data_root: Path) -> Recordings:
    file = data_root / FILE
    if file.exists():
        arrays = read_npz(file, set(_ARRAYS))
        if missing := [name for name in _ARRAYS if name not in arrays]:
            raise UserError(f"watch: {file} has no array {missing[0]!r}; {_HINT}")
        return Recordings(*(arrays[name] for name in _ARRAYS))
    packed = _packed()
    if packed is None:
        raise UserError(f"watch: {file} does not exist; {_HINT}")
    return _unpacked(packed)


def _packed() -> Path | None:
    """The file of the installed package, which is not imported."""
    spec = importlib.util.find_spec(PACKAGE)
    places = [Path(place, PACKED) for place in (spec.submodule_search_locations or [])] if spec else []
    return next((place for place in places if place.is_file()), None)


def _unpacked(file: Path) -> Recordings:
    """Read the package's file, which is pickled: only the very file that was published is."""
    content = file.read_bytes()
    if hashlib.sha256(content).hexdigest() != PACKED_SHA256:
        raise UserError(f"watch: {file} is not the file of {PACKAGE} 1.2.5; {_HINT}")
    published = np.load(io.BytesIO(content), allow_pickle=True).item()
    lengths = [len(rows) for rows in published["X"]]
    return Recordings(
        np.concatenate(published["X"]).astype(np.float32),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        published["y"].astype(np.int64),
        published["subject"].astype(np.int64),
    )
