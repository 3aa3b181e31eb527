"""`pamap2`: people's activities, from sensors at hand, chest and ankle (Reiss and Stricker 2012, UCI)."""

from pathlib import Path

import numpy as np
from pydantic import PositiveInt

from bench.data import Array, Dataset
from bench.errors import UserError
from bench.plugin import DATASETS
from datasets.assemble import assemble, held_out_order
from datasets.published import reading

FOLDER = Path("PAMAP2_Dataset", "Protocol")
ACTIVITIES = {
    1: "lying", 2: "sitting", 3: "standing", 4: "walking", 5: "running", 6: "cycling", 7: "Nordic walking",
    12: "ascending stairs", 13: "descending stairs", 16: "vacuum cleaning", 17: "ironing", 24: "rope jumping",
}  # fmt: skip
"""The protocol's activities by their numbers in the files; 0 is what lies between them."""

_COLUMNS = 54
_ACTIVITY = 1
CHANNELS = [first + k for first in (3, 20, 37) for k in (1, 2, 3, 7, 8, 9, 10, 11, 12)]
"""Of each sensor, which has 17 columns: acceleration within 16 g, gyroscope and magnetometer, along x, y and z."""


@DATASETS.register("pamap2")
def load(
    *, data_root: Path, download: bool, window: PositiveInt = 256, mean: list[float] | None = None,
    std: list[float] | None = None,
) -> Dataset:  # fmt: skip
    """PAMAP2: series `[n, 27, window]` of 100 readings a second, 12 classes; groups are the nine people.

    Windows do not overlap, and each lies within one activity. Lost readings are interpolated linearly. There are no
    official parts: a fixed 25 % of each person's windows of an activity is the test part.

    Args:
        data_root: holds the unpacked folder `PAMAP2_Dataset`.
        window: length of a window in readings.
    """
    folder = data_root / FOLDER
    files = sorted(folder.glob("subject*.dat"))
    if not files:
        raise UserError(f"pamap2: {folder} has no files subject*.dat; unpack UCI's archive, or set `--data-root`")
    parts = []
    for file in files:
        with reading("pamap2", file, "unpack UCI's archive again"):
            parts.append(_windows(np.loadtxt(file, ndmin=2), window))
    people = np.concatenate([np.full(len(y), file.stem) for file, (_, y) in zip(files, parts, strict=True)])
    x, y = (np.concatenate(both) for both in zip(*parts, strict=True))
    if not len(y):
        raise UserError(f"pamap2: no activity of {folder} lasts {window} readings")
    order, n_train = held_out_order(len(ACTIVITIES) * np.unique(people, return_inverse=True)[1] + y)
    return assemble(
        "pamap2", x[order], y[order], n_train, mean=mean, std=std, classes=list(ACTIVITIES.values()),
        groups=people[order],
    )  # fmt: skip


def _windows(rows: Array, window: int) -> tuple[Array, Array]:
    """Windows `[n, 27, window]` of one person's readings `[readings, 54]`, and the activity of each."""
    if rows.shape[1] != _COLUMNS:
        raise ValueError(f"{rows.shape[1]} columns instead of {_COLUMNS}")
    numbers = rows[:, _ACTIVITY].astype(np.int64)
    if unknown := set(numbers.tolist()) - {0, *ACTIVITIES}:
        raise ValueError(f"the activity {min(unknown)}, which is not in the protocol")
    windows, labels = [np.zeros((0, len(CHANNELS), window), np.float32)], []
    ends = [*(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        count = (end - begin) // window
        if numbers[begin] and count:
            readings = np.stack([_whole(rows[begin:end, channel]) for channel in CHANNELS])
            cut = readings[:, : count * window].reshape(len(CHANNELS), count, window)
            windows.append(cut.swapaxes(0, 1).astype(np.float32))
            labels += [list(ACTIVITIES).index(numbers[begin])] * count
    return np.concatenate(windows), np.array(labels, np.int64)


def _whole(readings: Array) -> Array:
    """One channel with lost readings (NaN) interpolated."""
    present = np.flatnonzero(np.isfinite(readings))
    if not len(present):
        raise ValueError("an activity without readings of a sensor")
    return np.interp(np.arange(len(readings)), present, readings[present])
