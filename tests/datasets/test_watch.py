"""`watch`: windows that cross no recording, tests after training in time, people; the file and the package alike."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.errors import UserError
from datasets import watch
from datasets.watch import CHECKSUM, Recordings, cut_windows
from tests.datasets.helpers import load

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=6)


def recordings(lengths: list[int]) -> Recordings:
    """Recordings whose readings say where they are from: [number of the recording, step in it]."""
    series = np.concatenate([[(number, step) for step in range(n)] for number, n in enumerate(lengths)])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    numbers = np.arange(len(lengths))
    return Recordings(series.astype(np.float32), offsets, numbers % 3, 10 + numbers)


@given(LENGTHS, st.integers(1, 12))
def test_a_window_is_of_one_recording_and_overlaps_no_other(lengths: list[int], steps: int) -> None:
    if max(lengths) < steps:
        with pytest.raises(UserError, match=f"no recording has {steps} readings; the longest has {max(lengths)}"):
            cut_windows(recordings(lengths), steps)
        return
    cut = cut_windows(recordings(lengths), steps)
    assert cut.x.shape == (sum(n // steps for n in lengths), 2, steps)
    assert (cut.x[:, 0] == cut.x[:, 0, :1]).all()  # of one recording
    assert (np.diff(cut.x[:, 1], axis=1) == 1).all()  # readings after each other
    seen = {(int(number), int(step)) for window in cut.x for number, step in window.T}
    assert len(seen) == cut.x.shape[0] * steps
    assert (cut.people == 10 + cut.x[:, 0, 0]).all()
    assert (cut.y == cut.x[:, 0, 0] % 3).all()
    for number in np.unique(cut.people):
        assert (np.diff(cut.place[cut.people == number]) > 0).all()  # in time
    assert cut.place.min() > 0
    assert cut.place.max() < 1


needs_recordings = pytest.mark.skipif(watch._packed() is None, reason="the package seglearn is not installed")


@pytest.fixture
def published() -> Recordings:
    packed = watch._packed()
    assert packed is not None
    return watch._unpacked(packed)


def write(root: Path, recordings: Recordings) -> None:
    names = dict(zip(("series", "offsets", "labels", "subjects"), vars(recordings).values(), strict=True))
    np.savez(root / "watch.npz", **names)


@needs_recordings
def test_the_package_and_the_file_give_the_same_windows(tmp_path: Path, published: Recordings) -> None:
    assert published.checksum == CHECKSUM
    packed = load("watch", tmp_path)
    write(tmp_path, published)
    file = load("watch", tmp_path)
    assert (packed.checksum, packed.n_train, packed.group_names) == (file.checksum, file.n_train, file.group_names)
    assert packed.group_names == tuple(str(number) for number in range(1, 11))
    assert packed.shape == (6, 64)
    assert len(packed.classes) == packed.num_classes == 7


@needs_recordings
def test_tests_lie_after_training_in_every_recording(tmp_path: Path, published: Recordings) -> None:
    """All windows of a recording by their place in time; those between are in neither part, and are the public ones."""
    data, between = load("watch", tmp_path), load("watch", tmp_path, part="between")
    whole = cut_windows(published, 64)
    numbers = [number for number, n in enumerate(np.diff(published.offsets)) for _ in range(n // 64)]
    where = {window.tobytes(): at for window, *at in zip(whole.x, numbers, whole.place, strict=True)}
    kinds = [[window.tobytes() for window in part] for part in (data.x[: data.n_train], data.x[data.n_train :])]
    trained, tested = (np.array([where[window] for window in part]) for part in kinds)
    for number in range(140):
        assert trained[trained[:, 0] == number, 1].max() < tested[tested[:, 0] == number, 1].min()
    kinds.append([window.tobytes() for window in between.x])
    assert len(set().union(*kinds)) == sum(map(len, kinds)) == len(whole.x)  # none is in two of them
    assert between.mean == data.mean  # both normalised as the clients' training windows
    assert between.n_train == len(between.y)


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"shares = \[0.8, 0.4\] should add up to 1 at most"):
        load("watch", tmp_path, shares=(0.8, 0.4))
    write(tmp_path, recordings([30, 40]))
    with pytest.raises(UserError, match=r"are not the published recordings; put watch\.npz under --data-root, or"):
        load("watch", tmp_path)
    np.savez(tmp_path / "watch.npz", series=np.zeros((3, 6), np.float32))
    with pytest.raises(UserError, match=r"watch.npz has no array 'offsets'"):
        load("watch", tmp_path)
    (tmp_path / "watch.npz").write_bytes(b"no archive")
    with pytest.raises(UserError, match=r"watch\.npz cannot be read"):
        load("watch", tmp_path)
    other = tmp_path / "watch_dataset.npy"
    np.save(other, np.array({"X": []}, dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match=r"is not the file of seglearn 1\.2\.5"):  # a pickle of others is not opened
        watch._unpacked(other)
    assert hashlib.sha256(other.read_bytes()).hexdigest() != watch.PACKED_SHA256


@needs_recordings
def test_windows_that_leave_no_part_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no recording has 5000 readings; the longest has 2618"):
        load("watch", tmp_path, window=5000)
    with pytest.raises(UserError, match="leave no windows of 2000 readings; take shorter windows"):
        load("watch", tmp_path, window=2000)
    with pytest.raises(UserError, match="leave no windows of 64 readings"):
        load("watch", tmp_path, part="between", shares=(0.6, 0.4))
