"""`inaturalist2017` on a small folder in torchvision's layout; the real archive has 186 GB."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.engine.device_data import Pool
from bench.errors import UserError
from bench.federation.cell_identity import Identities
from bench.settings import Settings
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
    with pytest.raises(UserError, match=r"inaturalist2017: .*2017 is missing; add `--download`"):
        load("inaturalist2017", empty)
    (root / "2017/Aves/Pica pica/1.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"Pica pica/1\.png cannot be read as a picture"):
        load("inaturalist2017", root, size=4)
    assert ([*empty.iterdir()], {file.name for file in root.iterdir()}) == ([], {"2017", "empty"})
