"""`inaturalist2017` and `tinyimagenet` on small folders in the archives' layouts, resized once into a file."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.engine.device_data import Pool
from bench.errors import UserError
from bench.federation.cell_identity import Identities
from bench.settings import Settings
from datasets import photographs
from tests.datasets.helpers import load, paint

SPECIES = {"Aves/Pica pica": 5, "Aves/Corvus corax": 4, "Plantae/Bellis perennis": 8}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shade = 0
    for name, count in SPECIES.items():
        for i in range(count):
            shade += 10
            paint(tmp_path / "2017" / name / f"{i}.png", (shade, 0, 255), (7 + i, 9))
    return tmp_path


def test_super_categories_and_categories_share_the_cache(root: Path) -> None:
    groups = load("inaturalist2017", root, size=4)
    cache = root / "2017-4.images.npy"
    written = cache.stat().st_mtime_ns
    species = load("inaturalist2017", root, size=4, labels="full")
    assert cache.stat().st_mtime_ns == written
    assert groups.classes == ("Aves", "Plantae")
    assert species.classes == ("Aves/Corvus corax", "Aves/Pica pica", "Plantae/Bellis perennis")
    assert (groups.shape, groups.n_train) == ((3, 4, 4), 17 - 4)
    assert np.array_equal(groups.y, (species.y == 2).astype(int))
    assert groups.checksum != species.checksum
    assert np.bincount(species.y[species.n_train :]).tolist() == [1, 1, 2]
    for label, shades in enumerate([{60, 70, 80, 90}, {10, 20, 30, 40, 50}, set(range(100, 180, 10))]):
        assert set(species.x[species.y == label][:, 0, 0, 0].tolist()) == shades
    assert groups.mean == pytest.approx(groups.x[: groups.n_train].mean((0, 2, 3)) / 255)


def test_pictures_stay_in_the_file_and_batches_are_read_from_it(root: Path) -> None:
    data = load("inaturalist2017", root, size=4)
    cache = np.load(root / "2017-4.images.npy", mmap_mode="r+")
    before = Pool.of(data, torch.device("cpu"), torch.float32)
    stored = torch.from_numpy(data.x)[3].clone()
    cache[3] = 7
    cache.flush()
    assert (torch.from_numpy(data.x)[3] == 7).all()
    assert not (stored == 7).all()
    assert before.take(torch.tensor([[3]]))[0].shape == (1, 1, 3, 4, 4)


def test_photographs_that_change_places_make_a_new_cache(root: Path) -> None:
    """Though names, sizes and times of modification are as before."""
    one, two = (root / "2017" / place / "0.bmp" for place in ("Aves/Pica pica", "Plantae/Bellis perennis"))
    for file, shade in ((one, 1), (two, 2)):
        paint(file, (shade, 0, 0), (9, 9))
        os.utime(file, ns=(10**18, 10**18))
    settings = Settings(method="fedavg", dataset="inaturalist2017", dataset_options={"size": 4}, model="cnn", clients=2)
    old, known = load("inaturalist2017", root, size=4), Identities(root).of(settings)
    first, second = (int(np.flatnonzero(old.x[:, 0, 0, 0] == shade)[0]) for shade in (1, 2))
    one.rename(root / "between")
    two.rename(one)
    (root / "between").rename(two)
    new = load("inaturalist2017", root, size=4)
    assert new.x[[second, first], 0, 0, 0].tolist() == [1, 2]
    assert new.checksum != old.checksum
    assert Identities(root).of(settings) != known


def test_a_cache_that_was_cut_off_is_made_again(root: Path) -> None:
    whole = load("inaturalist2017", root, size=4).checksum
    cache = root / "2017-4.images.npy"
    cache.write_bytes(cache.read_bytes()[:-5])
    assert load("inaturalist2017", root, size=4).checksum == whole
    assert json.loads((root / "2017-4.images.json").read_text())["cache_bytes"] == cache.stat().st_size


def test_photographs_that_are_missing_or_damaged_are_named_and_leave_no_cache(root: Path) -> None:
    empty = root / "empty"
    with pytest.raises(UserError, match=r"inaturalist2017: .*2017 is missing.*; add `--download`"):
        load("inaturalist2017", empty)
    (root / "2017/Aves/Pica pica/1.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"Pica pica/1\.png cannot be read as a picture"):
        load("inaturalist2017", root, size=4)
    assert {file.name for file in root.iterdir()} == {"2017"}


WNIDS = ["n02124075", "n01443537"]  # in no order, as in the archive


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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
    monkeypatch.setattr(photographs, "TINY_SIZES", (24, 3))
    return tmp_path


def test_tiny_imagenet_s_classes_order_and_validation_part_as_tests(tiny: Path) -> None:
    data = load("tinyimagenet", tiny)
    assert (data.n_train, data.shape, data.classes) == (24, (3, 64, 64), tuple(sorted(WNIDS)))
    assert data.y.tolist() == [0] * 12 + [1] * 12 + [1, 0, 1]
    shades = data.x[:, :, 32, 32].astype(int)
    expected = [10 * i + 130 * label for label in range(2) for i in range(12)] + [0, 50, 100]  # 2 before 10
    assert np.abs(shades - np.array(expected)[:, None]).max() <= 1
    assert data.mean == pytest.approx(data.x[:24].mean((0, 2, 3)) / 255)


def test_tiny_imagenet_is_resized_once_and_read_from_the_file(tiny: Path) -> None:
    small, again = load("tinyimagenet", tiny, resize=32), load("tinyimagenet", tiny, resize=32)
    assert small.shape == (3, 32, 32)
    assert (tiny / "tiny-imagenet-200-32.images.npy").stat().st_size > 27 * 3 * 32**2
    assert small.checksum == again.checksum != load("tinyimagenet", tiny).checksum
    assert isinstance(small.x.base, np.memmap)


def test_what_tiny_imagenet_lacks_is_named(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny / "tiny-imagenet-200"
    (folder / "train" / WNIDS[0] / "images" / f"{WNIDS[0]}_7.JPEG").unlink()
    with pytest.raises(UserError, match=r"train holds 23 pictures instead of 24; add `--download` .* `--data-root`"):
        load("tinyimagenet", tiny)
    (folder / "val" / "val_annotations.txt").unlink()
    with pytest.raises(UserError, match=r"val_annotations\.txt is missing; add `--download`"):
        load("tinyimagenet", tiny)
    monkeypatch.setattr(photographs, "TINY_URL", "http://127.0.0.1:9/tiny-imagenet-200.zip")  # nobody listens
    with pytest.raises(UserError, match=r"wnids\.txt is missing; the download did not help \(.+\)"):
        load("tinyimagenet", tmp_path / "empty", download=True)


def test_download_unpacks_tiny_imagenet_s_archive(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load("tinyimagenet", tiny, resize=8).checksum
    elsewhere = tmp_path / "elsewhere"
    shutil.make_archive(str(elsewhere / "tiny-imagenet-200"), "zip", tiny, "tiny-imagenet-200")
    archive = elsewhere / "tiny-imagenet-200.zip"
    monkeypatch.setattr(photographs, "TINY_MD5", hashlib.md5(archive.read_bytes()).hexdigest())
    assert load("tinyimagenet", elsewhere, resize=8, download=True).checksum == whole
    monkeypatch.setattr(photographs, "TINY_SIZES", (25, 3))
    with pytest.raises(UserError, match=r"train holds 24 pictures instead of 25; delete it"):
        load("tinyimagenet", elsewhere, resize=8, download=True)
