"""Public data sets of series and texts, from small files in the published layout; `watch` from its package, too."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.data import Array, TokenShape
from bench.errors import UserError
from datasets import watch
from datasets.har import SIGNALS
from datasets.pamap2 import CHANNELS
from datasets.watch import CHECKSUM, checksum, cut_windows, packed_file, unpacked
from tests.datasets.helpers import divide, group_of_each, load


def write_har(root: Path, people: dict[str, list[int]], activities: dict[str, list[int]]) -> dict[str, Any]:
    """Files as UCI's archive has them, with fixed-width numbers; returns what was written, `[n, 9, 128]` by part."""
    folder, written = root / "UCI HAR Dataset", {}
    for part in ("train", "test"):
        signals = np.random.default_rng(len(part)).normal(size=(len(people[part]), 9, 128)).astype(np.float32)
        (folder / part / "Inertial Signals").mkdir(parents=True, exist_ok=True)
        for channel, signal in enumerate(SIGNALS):
            rows = ["".join(f" {value: .7e}" for value in row) for row in signals[:, channel]]
            (folder / part / "Inertial Signals" / f"{signal}_{part}.txt").write_text("\n".join(rows) + "\n")
        (folder / part / f"y_{part}.txt").write_text("".join(f"{one}\n" for one in activities[part]))
        (folder / part / f"subject_{part}.txt").write_text("".join(f"{one}\n" for one in people[part]))
        written[part] = signals
    labels = ["WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING"]
    (folder / "activity_labels.txt").write_text("".join(f"{i} {one}\n" for i, one in enumerate(labels, start=1)))
    return written


PEOPLE = {"train": [1, 1, 3, 3, 11], "test": [2, 2]}
ACTIVITIES = {"train": [5, 1, 6, 2, 2], "test": [3, 4]}


def test_har_in_uci_s_files(tmp_path: Path) -> None:
    written = write_har(tmp_path, PEOPLE, ACTIVITIES)
    data = load("har", tmp_path)
    assert (data.shape, data.n_train, data.num_classes) == ((9, 128), 5, 6)
    assert data.floating
    assert "share half of their readings" in data.notes[0]
    np.testing.assert_allclose(data.x, np.concatenate([written["train"], written["test"]]), rtol=1e-6)
    assert [data.classes[label] for label in data.y[:3]] == ["standing", "walking", "laying"]
    assert group_of_each(data) == ["1", "1", "3", "3", "11", "2", "2"]


def test_har_s_recordings_are_on_one_side(tmp_path: Path) -> None:
    """Windows that follow each other are of one subject, up to another activity or person; none of them is parted."""
    person, runs = [1, 2], [5, 4, 6, 1, 2, 3, 5, 4, 1]
    activities = [activity for _ in person for activity in runs for _ in range(4)]
    people = [number for number in person for _ in range(4 * len(runs))]
    write_har(tmp_path, {"train": people, "test": [3, 3]}, {"train": activities, "test": [3, 4]})
    data = load("har", tmp_path, recordings=True)
    assert data.notes == ()
    assert data.subjects is not None
    assert data.subjects.tolist() == [*np.repeat(np.arange(2 * len(runs)), 4), 18, 19]
    kept = []
    for seed in (0, 1):
        partition = divide(data, seed=seed, shares=[0.5, 0.25, 0.25], held_out=["3"])
        for client in (0, 1):
            lists = partition.train[client], partition.validation[client], partition.test[client]
            windows = [np.bincount(data.subjects[at], minlength=20) for at in lists]
            assert {count for counts in windows for count in counts.tolist()} == {0, 4}
            assert np.sum(windows, axis=0).tolist() == [4 * (k // 9 == client) for k in range(18)] + [0, 0]
            assert [len(at) for at in lists] == [20, 8, 8]
            assert len(set(data.y[partition.test[client]].tolist())) == 2  # of two recordings
        kept.append([at.tolist() for at in partition.test])
    assert kept[0] == kept[1]
    assert partition.kept.tolist() == sorted(sample for samples in kept[0] for sample in samples)


def test_har_refusals(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"UCI HAR Dataset is missing .*; unpack"):
        load("har", tmp_path)
    write_har(tmp_path, PEOPLE, ACTIVITIES)
    folder = tmp_path / "UCI HAR Dataset" / "train"
    signal = folder / "Inertial Signals" / "body_gyro_y_train.txt"
    whole = signal.read_text()
    for text, message in (
        (whole.replace("e", "?", 1), "body_gyro_y_train.txt: could not convert"),
        (whole[: whole.rindex("\n", 0, -1) + 1], "different numbers of rows"),
        ("1 2 3\n", "has rows of 3 numbers, not of 128"),
        (whole.replace(whole.split()[0], "nan", 1), "not of 128 finite ones"),
        ("", "body_gyro_y_train.txt"),
    ):
        signal.write_text(text)
        with pytest.raises(UserError, match=message):
            load("har", tmp_path)
    signal.unlink()
    with pytest.raises(UserError, match=r"FileNotFoundError: .*body_gyro_y_train\.txt"):
        load("har", tmp_path)


def write_news(root: Path, part: str, text: str) -> None:
    (root / "ag_news_csv").mkdir(exist_ok=True)
    (root / "ag_news_csv" / f"{part}.csv").write_text(text, encoding="utf-8")


TRAIN = '"3","Oil up","Oil, oil and ""gas""."\n"1","Peace","Talks up"\n'
TEST = '"4","Oil robots","talk"\n'


def test_ag_news_in_its_csv_files(tmp_path: Path) -> None:
    """Counts of the training part alone: oil 3, up 2, then the alphabet: and, gas, peace, talks."""
    write_news(tmp_path, "train", TRAIN)
    write_news(tmp_path, "test", TEST)
    data = load("ag_news", tmp_path, vocabulary=6, length=5)
    assert (data.shape, data.n_train, data.num_classes) == (TokenShape(5, 6), 2, 4)
    assert data.x.tolist() == [[2, 3, 2, 2, 4], [1, 1, 3, 0, 0], [2, 1, 1, 0, 0]]
    assert [data.classes[label] for label in data.y] == ["business", "world", "sci/tech"]
    whole = load("ag_news", tmp_path)
    assert whole.shape == TokenShape(64, 20_000)
    assert whole.x[0, :8].tolist() == [2, 3, 2, 2, 4, 5, 0, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"5","a","b"\n', "train.csv .*row 1 is not class"),
        (TRAIN + '"1","a"\n', "train.csv .*row 3 is not class"),
        ("", "train.csv .*it is empty"),
    ],
)
def test_ag_news_refusals(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=r"train\.csv is missing .*`--data-root`"):
        load("ag_news", tmp_path)
    write_news(tmp_path, "test", TEST)
    write_news(tmp_path, "train", text)
    with pytest.raises(UserError, match=message):
        load("ag_news", tmp_path)


def test_pamap2_in_uci_s_files(tmp_path: Path) -> None:
    """Windows within an activity, without what lies between; a lost reading is on the line between its neighbours."""
    folder = tmp_path / "PAMAP2_Dataset" / "Protocol"
    folder.mkdir(parents=True)
    with pytest.raises(UserError, match=r"pamap2: .*Protocol has no files subject\*\.dat"):
        load("pamap2", tmp_path)
    for person in (101, 102):
        rows = np.arange(14.0 * 54).reshape(14, 54) + person
        rows[:, 1] = [0, 0, *[1] * 5, *[0] * 3, *[24] * 4]
        rows[3, CHANNELS[5]] = np.nan
        np.savetxt(folder / f"subject{person}.dat", rows, fmt="%.10g")
    data = load("pamap2", tmp_path, window=2)
    assert (data.shape, len(data.y), data.n_train) == ((27, 2), 8, 8 - 4)  # half of two windows, rounded up, are tests
    assert (data.group_names, data.num_classes) == (("subject101", "subject102"), 12)
    assert data.floating
    first = [(whose, data.classes[y], x[5, 0]) for whose, y, x in zip(group_of_each(data), data.y, data.x, strict=True)]
    assert set(first) == {
        (f"subject{person}", activity, 54.0 * begin + CHANNELS[5] + person)
        for person in (101, 102)
        for begin, activity in ((2, "lying"), (4, "lying"), (10, "rope jumping"), (12, "rope jumping"))
    }
    lost = data.x[first.index(("subject101", "lying", 54 * 2 + CHANNELS[5] + 101)), 5]
    assert lost.tolist() == [54 * 2 + CHANNELS[5] + 101, 54 * 3 + CHANNELS[5] + 101]


def test_pamap2_refusals(tmp_path: Path) -> None:
    folder = tmp_path / "PAMAP2_Dataset" / "Protocol"
    folder.mkdir(parents=True)
    rows = np.zeros((4, 54))
    for change, message in (
        (rows[:, :5], "5 columns instead of 54"),
        (rows + 8, "the activity 8, which is not in the protocol"),
        (np.where(np.arange(54) == 1, 1.0, np.nan) * np.ones((4, 1)), "an activity without readings"),
        (rows, "no activity of .* lasts 2 readings"),
    ):
        np.savetxt(folder / "subject101.dat", change)
        with pytest.raises(UserError, match=message):
            load("pamap2", tmp_path, window=2)
    (folder / "subject101.dat").write_text("a b")
    with pytest.raises(UserError, match="could not convert"):
        load("pamap2", tmp_path)


LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=6)


def recordings(lengths: list[int]) -> tuple[Array, Array]:
    """Recordings whose readings say where they are from, [number of the recording, step in it], and their offsets."""
    series = np.concatenate([[(number, step) for step in range(n)] for number, n in enumerate(lengths)])
    return series.astype(np.float32), np.concatenate([[0], np.cumsum(lengths)])


@given(LENGTHS, st.integers(1, 12))
def test_a_window_is_of_one_recording_and_overlaps_no_other(lengths: list[int], steps: int) -> None:
    if max(lengths) < steps:
        with pytest.raises(UserError, match=f"no recording has {steps} readings; the longest has {max(lengths)}"):
            cut_windows(*recordings(lengths), steps)
        return
    x, numbers, place = cut_windows(*recordings(lengths), steps)
    assert x.shape == (sum(n // steps for n in lengths), 2, steps)
    assert (x[:, 0] == numbers[:, None]).all()  # of one recording
    assert (np.diff(x[:, 1], axis=1) == 1).all()  # readings after each other
    seen = {(int(number), int(step)) for window in x for number, step in window.T}
    assert len(seen) == x.shape[0] * steps
    for number in np.unique(numbers):
        assert (np.diff(place[numbers == number]) > 0).all()  # in time
    assert place.min() > 0
    assert place.max() < 1


needs_recordings = pytest.mark.skipif(packed_file() is None, reason="the package seglearn is not installed")


@pytest.fixture
def published() -> dict[str, Array]:
    packed = packed_file()
    assert packed is not None
    return unpacked(packed)


def write_watch(root: Path, recordings: dict[str, Array]) -> None:
    np.savez(root / "watch.npz", **recordings)


@needs_recordings
def test_watch_s_package_and_file_give_the_same_windows(tmp_path: Path, published: dict[str, Array]) -> None:
    assert checksum(published) == CHECKSUM
    packed = load("watch", tmp_path)
    write_watch(tmp_path, published)
    file = load("watch", tmp_path)
    assert (packed.checksum, packed.n_train, packed.group_names) == (file.checksum, file.n_train, file.group_names)
    assert packed.group_names == tuple(str(number) for number in range(1, 11))
    assert packed.shape == (6, 64)
    assert len(packed.classes) == packed.num_classes == 7


@needs_recordings
def test_watch_s_tests_lie_after_training_in_every_recording(tmp_path: Path, published: dict[str, Array]) -> None:
    """All windows of a recording by their place in time; those between are in neither part, and are the public ones."""
    data, between = load("watch", tmp_path), load("watch", tmp_path, part="between")
    whole, numbers, places = cut_windows(published["series"], published["offsets"], 64)
    where = {window.tobytes(): at for window, *at in zip(whole, numbers, places, strict=True)}
    kinds = [[window.tobytes() for window in part] for part in (data.x[: data.n_train], data.x[data.n_train :])]
    trained, tested = (np.array([where[window] for window in part]) for part in kinds)
    for number in range(140):
        assert trained[trained[:, 0] == number, 1].max() < tested[tested[:, 0] == number, 1].min()
    kinds.append([window.tobytes() for window in between.x])
    assert len(set().union(*kinds)) == sum(map(len, kinds)) == len(whole)  # none is in two of them
    assert between.mean == data.mean  # both normalised as the clients' training windows
    assert between.n_train == len(between.y)


def test_watch_refusals(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"shares = \[0.8, 0.4\] should add up to 1 at most"):
        load("watch", tmp_path, shares=(0.8, 0.4))
    series, offsets = recordings([30, 40])
    write_watch(tmp_path, {"series": series, "offsets": offsets, "labels": offsets[:2], "subjects": offsets[:2]})
    with pytest.raises(UserError, match=r"are not the published recordings; put watch\.npz under --data-root, or"):
        load("watch", tmp_path)
    np.savez(tmp_path / "watch.npz", series=np.zeros((3, 6), np.float32))
    with pytest.raises(UserError, match="are not the published recordings"):
        load("watch", tmp_path)
    (tmp_path / "watch.npz").write_bytes(b"no archive")
    with pytest.raises(UserError, match=r"watch\.npz cannot be read"):
        load("watch", tmp_path)
    other = tmp_path / "watch_dataset.npy"
    np.save(other, np.array({"X": []}, dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match=r"is not the file of seglearn 1\.2\.5"):  # a pickle of others is not opened
        unpacked(other)
    assert hashlib.sha256(other.read_bytes()).hexdigest() != watch.PACKED_SHA256


@needs_recordings
def test_windows_that_leave_no_part_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no recording has 5000 readings; the longest has 2618"):
        load("watch", tmp_path, window=5000)
    with pytest.raises(UserError, match="leave no windows of 2000 readings; take shorter windows"):
        load("watch", tmp_path, window=2000)
    with pytest.raises(UserError, match="leave no windows of 64 readings"):
        load("watch", tmp_path, part="between", shares=(0.6, 0.4))
