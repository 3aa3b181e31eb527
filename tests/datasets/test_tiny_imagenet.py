"""`tinyimagenet` on a small folder in the archive's layout; numbers and checksum are those of the small one."""

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest

from bench.errors import UserError
from datasets import tiny_imagenet
from tests.datasets.helpers import load, paint

WNIDS = ["n02124075", "n01443537"]  # in no order, as in the archive


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve pictures per class for training, of shades 0, 10, 20 ... and 130, 140, ..., and three to validate on."""
    folder = tmp_path / "tiny-imagenet-200"
    for label, wnid in enumerate(sorted(WNIDS)):
        for i in range(12):
            paint(folder / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", (10 * i + 130 * label,) * 3, (64, 64))
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text("")
    for i in range(3):
        paint(folder / "val" / "images" / f"val_{i}.JPEG", (50 * i,), (64, 64))
    (folder / "wnids.txt").write_text("\n".join(WNIDS))
    lines = [f"val_{i}.JPEG\t{WNIDS[i % 2]}\t0\t0\t62\t62\n" for i in range(3)]
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    monkeypatch.setattr(tiny_imagenet, "_SIZES", (24, 3))
    return tmp_path


def test_classes_order_and_the_validation_part_as_tests(root: Path) -> None:
    data = load("tinyimagenet", root)
    assert (data.n_train, data.shape, data.classes) == (24, (3, 64, 64), tuple(sorted(WNIDS)))
    assert data.y.tolist() == [0] * 12 + [1] * 12 + [1, 0, 1]
    shades = data.x[:, :, 32, 32].astype(int)
    expected = [10 * i + 130 * label for label in range(2) for i in range(12)] + [0, 50, 100]  # 2 before 10
    assert np.abs(shades - np.array(expected)[:, None]).max() <= 1
    assert data.mean == pytest.approx(data.x[:24].mean((0, 2, 3)) / 255)


def test_resized_once_and_read_from_the_file(root: Path) -> None:
    small, again = load("tinyimagenet", root, resize=32), load("tinyimagenet", root, resize=32)
    assert small.shape == (3, 32, 32)
    assert (root / "tiny-imagenet-200-32.images.npy").stat().st_size > 27 * 3 * 32**2
    assert small.checksum == again.checksum != load("tinyimagenet", root).checksum
    assert isinstance(small.x.base, np.memmap)


def test_what_is_missing_is_named(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = root / "tiny-imagenet-200"
    (folder / "train" / WNIDS[0] / "images" / f"{WNIDS[0]}_7.JPEG").unlink()
    with pytest.raises(UserError, match=r"train holds 23 pictures instead of 24; add `--download` .* `--data-root`"):
        load("tinyimagenet", root)
    (folder / "val" / "val_annotations.txt").unlink()
    with pytest.raises(UserError, match=r"val_annotations\.txt is missing; add `--download`"):
        load("tinyimagenet", root)
    monkeypatch.setattr(tiny_imagenet, "URL", "http://127.0.0.1:9/tiny-imagenet-200.zip")  # nobody listens
    with pytest.raises(UserError, match=r"wnids\.txt is missing; the download did not help \(.+\)"):
        load("tinyimagenet", tmp_path / "empty", download=True)


def test_download_unpacks_the_archive(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load("tinyimagenet", root, resize=8).checksum
    elsewhere = tmp_path / "elsewhere"
    shutil.make_archive(str(elsewhere / "tiny-imagenet-200"), "zip", root, "tiny-imagenet-200")
    archive = elsewhere / "tiny-imagenet-200.zip"
    monkeypatch.setattr(tiny_imagenet, "MD5", hashlib.md5(archive.read_bytes()).hexdigest())
    assert load("tinyimagenet", elsewhere, resize=8, download=True).checksum == whole
    monkeypatch.setattr(tiny_imagenet, "_SIZES", (25, 3))
    with pytest.raises(UserError, match=r"train holds 24 pictures instead of 25; delete the folder"):
        load("tinyimagenet", elsewhere, resize=8, download=True)
