"""Data that change while a Python session lives are read again, and only then."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import bench
from bench.config.identity import UNVERIFIED, declared_checksum
from bench.data import Dataset
from bench.plugin import DATASETS
from bench.settings import Settings


def arrays(path: Path, value: float) -> None:
    np.savez(path, train_images=np.full((8, 2), float(value)), train_labels=np.arange(8) % 2)


def pictures(folder: Path, shade: int) -> None:
    (folder / "a").mkdir(parents=True, exist_ok=True)
    Image.new("L", (2, 2), shade).save(folder / "a" / "1.png")


def leaf(root: Path, value: float) -> None:
    for part in ("train", "test"):
        (root / "femnist" / "data" / part).mkdir(parents=True, exist_ok=True)
        content = {"users": ["u"], "user_data": {"u": {"x": [[value] * 784], "y": [0]}}}
        (root / "femnist" / "data" / part / "all.json").write_text(json.dumps(content))


def news(folder: Path, words: int) -> None:
    folder.mkdir(exist_ok=True)
    for part in ("train", "test"):
        (folder / f"{part}.csv").write_text(f'"1","","{".a"[words]}"\n')


def own(file: str, data_root: Path, download: bool) -> Dataset:
    rows = np.loadtxt(file, ndmin=2).astype(np.float32)
    y = np.arange(len(rows))
    return Dataset("mine", rows, y, len(rows), len(rows), (0.0,), (1.0,), str(rows.sum()))


def read(name: str, root: Path, **options: str) -> Dataset:
    return bench.load_dataset(Settings(method="fedavg", dataset=name, dataset_options=options), root)


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> None:
    DATASETS.names()
    monkeypatch.setitem(DATASETS._items, "mine", own)


@pytest.mark.parametrize("kind", ["npz", "image_folder", "femnist", "ag_news", "mine"])
def test_a_changed_file_is_read_again_and_an_unchanged_one_is_not(kind: str, tmp_path: Path, mine: None) -> None:
    """Even if size and time of modification are as before, as after unpacking another archive over the first."""
    names = {"npz": "a.npz", "image_folder": "set", "mine": "a.txt"}
    path = tmp_path / (UNVERIFIED[kind][0] if kind in UNVERIFIED else names[kind])

    def write(value: int) -> None:
        if kind == "npz":
            arrays(path, value)
        elif kind == "image_folder":
            pictures(path, value)
        elif kind == "femnist":
            leaf(tmp_path, value)
        elif kind == "ag_news":
            news(path, value)
        else:
            path.write_text(f"{value}\n0\n")
        for file in [path, *path.rglob("*")]:
            os.utime(file, ns=(10**18, 10**18))

    placed = kind in UNVERIFIED
    options: dict[str, str] = {} if placed else {"file" if kind == "mine" else "path": str(path)}
    cell = Settings(method="fedavg", dataset=kind, dataset_options=options)
    write(0)
    first, checksum = read(kind, tmp_path, **options), declared_checksum(cell)
    assert read(kind, tmp_path, **options) is first
    write(1)
    second = read(kind, tmp_path, **options)
    assert second.x.max() > first.x.max() == 0
    assert (declared_checksum(cell) != checksum) == ("path" in options)  # of the others no id knows the content


def test_another_folder_of_the_same_relative_path_is_another_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it is a copy of equal size and time, and so is the data root."""
    for folder, value in (("one", 0), ("two", 1)):
        (tmp_path / folder).mkdir()
        arrays(tmp_path / folder / "a.npz", value)
        leaf(tmp_path / folder / "data", value)
    read_here = []
    for folder in ("one", "two"):
        monkeypatch.chdir(tmp_path / folder)
        read_here.append([read("npz", Path("data"), path="a.npz"), read("femnist", Path("data"))])
    assert [[data.x.max() > 0 for data in both] for both in read_here] == [[False, False], [True, True]]


def test_a_picture_that_is_added_or_removed_counts(tmp_path: Path) -> None:
    pictures(tmp_path / "set", 0)
    options = {"path": str(tmp_path / "set")}
    assert len(read("image_folder", tmp_path, **options).y) == 1
    shutil.copy(tmp_path / "set" / "a" / "1.png", tmp_path / "set" / "a" / "2.png")
    assert len(read("image_folder", tmp_path, **options).y) == 2
    (tmp_path / "set" / "a" / "1.png").unlink()
    assert len(read("image_folder", tmp_path, **options).y) == 1


def test_a_data_set_registered_anew_replaces_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a notebook's cell is run again."""
    DATASETS.names()
    for value in (0, 1):

        def made(data_root: Path, download: bool, value: int = value) -> Dataset:
            return Dataset("x", np.full((2, 1), value, np.float32), np.arange(2), 2, 2, (0.0,), (1.0,), str(value))

        monkeypatch.setitem(DATASETS._items, "notebook", made)
        assert read("notebook", tmp_path).x.max() == value


def test_a_column_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty option is not the current directory, and a column of sites not the folder `site` that is there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site").mkdir()
    (tmp_path / "own.csv").write_text(
        "age,site,ill\n" + "".join(f"{age % 7},{'ab'[age % 2]},{age // 20}\n" for age in range(40))
    )
    columns = {"label_column": "ill", "site_column": "site", "subject_column": ""}
    first = read("csv", tmp_path / "data", path="own.csv", **columns)
    (tmp_path / "site" / "of a run.txt").write_text("written meanwhile")
    assert read("csv", tmp_path / "data", path="own.csv", **columns) is first
