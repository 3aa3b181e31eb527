"""`har`: people's activities, from the sensors of a phone at their waist (Anguita et al. 2013, UCI).

30 people, six activities, windows of 128 readings at 50 Hz; the two official parts come from different people.
"""

from pathlib import Path

import numpy as np

from bench.data import Array, Dataset
from bench.errors import UserError
from bench.plugin import DATASETS
from datasets.assemble import assemble

FOLDER = "UCI HAR Dataset"
SIGNALS = [f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]
_STEPS = 128
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
        download: not used; the archive is UCI's.
        recordings: whether windows that follow each other, of a person and an activity, are a subject: all for
            training, all for validation or all for tests. Neighbours share half of their readings.
        mean, std: per channel; computed from the training part unless given.

    Raises:
        UserError: a file is missing, or not in the published format.
    """
    folder = data_root / FOLDER
    if not folder.is_dir():
        raise UserError(f"har: {folder} does not exist; unpack UCI's archive there, or set `--data-root`")
    classes = [line.split()[-1].lower() for line in _text(folder / "activity_labels.txt").splitlines() if line.strip()]
    train, test = (_part(folder / part, part) for part in ("train", "test"))
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
        raise UserError(f"har: the files of {folder} have different numbers of rows; unpack the archive again")
    return np.stack(signals, axis=1).astype(np.float32), y.astype(np.int64), people.astype(np.int64)


def _numbers(file: Path, columns: int) -> Array:
    """Rows of numbers separated by blanks."""
    try:
        numbers = np.loadtxt(_text(file).splitlines(), ndmin=2)
    except ValueError as error:
        raise UserError(f"har: {file} is damaged ({error}); unpack the archive again") from None
    if not np.isfinite(numbers).all():
        raise UserError(f"har: {file} has NaN or infinite values; unpack the archive again")
    if numbers.shape[1] != columns:
        raise UserError(f"har: {file} has {numbers.shape[1]} numbers in a row instead of {columns}; unpack it again")
    return numbers


def _text(file: Path) -> str:
    try:
        text = file.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"har: {file} cannot be read ({error}); unpack UCI's archive again") from None
    if not text.strip():
        raise UserError(f"har: {file} is empty; unpack UCI's archive again")
    return text
