"""`har`: people's activities, from the sensors of a phone at their waist (Anguita et al. 2013, UCI).

30 people, six activities, windows of 128 readings at 50 Hz; the two official parts come from different people.
"""

from pathlib import Path

import numpy as np

from bench.data import Array, Dataset
from bench.plugin import DATASETS
from datasets.assemble import assemble
from datasets.published import reading

FOLDER = "UCI HAR Dataset"
SIGNALS = [f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]
_STEPS = 128
_ADVICE = "unpack UCI's archive there, or set `--data-root`"
OVERLAP = (
    "har: neighbouring windows share half of their readings, so tests or validation that are cut from a person's own "
    "windows (`shares`, `validation_share`) repeat parts of what is trained on; with `recordings: true` they do not, "
    "nor do new people (`held_out`)"
)


@DATASETS.register("har")
def load(
    *,
    data_root: Path,
    download: bool,
    recordings: bool = False,
    mean: list[float] | None = None,
    std: list[float] | None = None,
) -> Dataset:
    """UCI HAR: series `[10299, 9, 128]`, 7,352 of them for training, 6 classes; groups are the people.

    Channels are the body's acceleration, the gyroscope and the total acceleration, each along x, y and z.

    Args:
        data_root: holds the unpacked folder `UCI HAR Dataset`.
        recordings: whether windows that follow each other, of a person and an activity, are a subject: all for
            training, all for validation or all for tests. Neighbours share half of their readings.
    """
    folder = data_root / FOLDER
    with reading("har", folder, _ADVICE):
        names = np.loadtxt(folder / "activity_labels.txt", dtype=str)[:, 1]
        train, test = (_part(folder / part, part) for part in ("train", "test"))
    classes = [name.lower() for name in names.tolist()]
    x, y, people = (np.concatenate(both) for both in zip(train, test, strict=True))
    return assemble(
        "har", x, y - 1, len(train[1]), mean=mean, std=std, classes=classes, groups=people,
        subjects=_runs(y, people) if recordings else None, notes=[] if recordings else [OVERLAP],
    )  # fmt: skip


def _runs(y: Array, people: Array) -> Array:
    """The number of each window's run: windows that follow each other, of one person and one activity."""
    begins = (np.diff(y) != 0) | (np.diff(people) != 0)
    runs: Array = np.concatenate([[0], np.cumsum(begins)])
    return runs


def _part(folder: Path, part: str) -> tuple[Array, Array, Array]:
    """Windows `[n, 9, 128]`, activities (from 1) and people of one part."""
    signals = [_numbers(folder / "Inertial Signals" / f"{signal}_{part}.txt", _STEPS) for signal in SIGNALS]
    y, people = (_numbers(folder / f"{what}_{part}.txt", 1)[:, 0] for what in ("y", "subject"))
    if {len(rows) for rows in (*signals, people)} != {len(y)}:
        raise ValueError(f"the files of {folder} have different numbers of rows")
    return np.stack(signals, axis=1).astype(np.float32), y.astype(np.int64), people.astype(np.int64)


def _numbers(file: Path, columns: int) -> Array:
    """Rows of numbers separated by blanks."""
    try:
        numbers = np.loadtxt(file, ndmin=2)
    except (ValueError, UserWarning) as error:  # NumPy warns of an empty file
        raise ValueError(f"{file.name}: {error}") from None
    if numbers.shape[1] != columns or not np.isfinite(numbers).all():
        raise ValueError(f"{file.name} has rows of {numbers.shape[1]} numbers, not of {columns} finite ones")
    return numbers
