"""Data that change while a Python session lives are read again, and only then; and another content is another cell."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import bench
from bench.config.identity import declared_checksum
from bench.data import Dataset
from bench.federation.cell_identity import Identities
from bench.plugin import DATASETS
from bench.settings import Settings


def arrays(path: Path, value: float) -> None:
    np.savez(path, train_images=np.full((8, 2), float(value)), train_labels=np.arange(8) % 2)


def pictures(folder: Path, shade: int) -> None:
    (folder / "a").mkdir(parents=True, exist_ok=True)
    Image.new("L", (2, 2), shade).save(folder / "a" / "1.png")


def leaf(folder: Path, value: float) -> None:
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True, exist_ok=True)
        content = {"users": ["u"], "user_data": {"u": {"x": [[value] * 784], "y": [0]}}}
        (folder / part / "all.json").write_text(json.dumps(content))


def text(path: Path, value: float) -> None:
    path.write_text(f"{value}\n0\n")


def own(file: str, data_root: Path, download: bool) -> Dataset:
    rows = np.loadtxt(file, ndmin=2).astype(np.float32)
    y = np.arange(len(rows))
    return Dataset("mine", rows, y, len(rows), len(rows), (0.0,), (1.0,), str(rows.sum()))


def read(name: str, root: Path, **options: str) -> Dataset:
    return bench.load_dataset(Settings(method="fedavg", dataset=name, dataset_options=options), root)


@pytest.mark.parametrize(
    ("kind", "write", "name", "option"),
    [
        ("npz", arrays, "a.npz", "path"),
        ("image_folder", pictures, "set", "path"),
        ("femnist", leaf, "femnist/data", ""),
        ("mine", text, "a.txt", "file"),
    ],
)
def test_a_changed_file_is_read_again_and_an_unchanged_one_is_not(
    kind: str, write: Callable[[Path, int], None], name: str, option: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Even if size and time of modification are as before, as after unpacking another archive over the first."""
    DATASETS.names()
    monkeypatch.setitem(DATASETS._items, "mine", own)
    path = tmp_path / name
    options = {option: str(path)} if option else {}
    cell = Settings(method="fedavg", dataset=kind, dataset_options=options)
    found, checksums, ids = [], [], []
    for value in (0, 1, 0):
        write(path, value)
        for file in [path, *path.rglob("*")]:
            os.utime(file, ns=(10**18, 10**18))
        found.append(read(kind, tmp_path, **options))
        assert read(kind, tmp_path, **options) is found[-1]
        checksums.append(declared_checksum(cell))
        ids.append(Identities(tmp_path).of(cell))
    assert [data.x.max() > 0 for data in found] == [False, True, False]
    assert (checksums[1] != checksums[0]) == ("path" in options)  # of the others only reading tells the content
    assert ids[0] == ids[2] != ids[1]


def test_another_folder_of_the_same_relative_path_is_another_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it is a copy of equal size and time, and so is the data root."""
    for folder, value in (("one", 0), ("two", 1)):
        (tmp_path / folder).mkdir()
        arrays(tmp_path / folder / "a.npz", value)
        leaf(tmp_path / folder / "data" / "femnist" / "data", value)
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
