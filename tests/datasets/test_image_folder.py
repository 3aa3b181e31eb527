"""`image_folder`: a user's own pictures."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bench.data import Dataset
from bench.errors import UserError
from bench.plugin import DATASETS
from datasets.image_folder import natural

RED, GREEN = (255, 0, 0), (0, 255, 0)


def load(path: Path, **options: Any) -> Dataset:
    data: Dataset = DATASETS.get("image_folder")(data_root=path, download=False, path=str(path), **options)
    return data


def paint(file: Path, colour: tuple[int, ...] = RED, size: tuple[int, int] = (6, 4), **save: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB" if len(colour) == 3 else "L", size, colour if len(colour) == 3 else colour[0]).save(file, **save)


def test_natural_order() -> None:
    names = ["img10", "img2", "img02", "b", "1", "img", "10", "2x", ""]
    assert sorted(names, key=natural) == ["", "1", "2x", "10", "b", "img", "img02", "img2", "img10"]


def test_train_and_test_folders_in_natural_order(tmp_path: Path) -> None:
    for shade, name in ((30, "img10.png"), (20, "img9.PNG"), (10, "img1.png")):  # written in another order
        paint(tmp_path / "train" / "c10" / name, (shade, 0, 0))
    paint(tmp_path / "train" / "c9" / "a.png", GREEN)
    paint(tmp_path / "test" / "c10" / "a.png", (40, 0, 0))
    (tmp_path / "train" / "c9" / "notes.txt").write_text("not a picture")
    (tmp_path / "train" / ".hidden").mkdir()
    data = load(tmp_path, name="mine")
    assert (data.name, data.classes, data.n_train, data.shape) == ("mine", ("c9", "c10"), 4, (3, 4, 6))
    assert data.y.tolist() == [0, 1, 1, 1, 1]
    assert data.x[:, 0, 0, 0].tolist() == [0, 10, 20, 30, 40]
    assert data.x[0, :, 0, 0].tolist() == list(GREEN)


def test_without_a_test_folder_a_quarter_of_each_class_is_held_out(tmp_path: Path) -> None:
    for shade in range(8):
        paint(tmp_path / "train" / f"{shade}.png", (shade, shade, shade))  # `train` alone is a class as any other
        paint(tmp_path / "other" / f"{shade}.jpg", (200,))
    data = load(tmp_path)
    assert (data.name, data.classes, data.n_train) == (tmp_path.name, ("other", "train"), 12)
    assert np.bincount(data.y[12:]).tolist() == [2, 2]
    assert set(data.x[data.y == 1].reshape(8, -1)[:, 0]) == set(range(8))


def test_pictures_are_resized(tmp_path: Path) -> None:
    paint(tmp_path / "a" / "1.png", size=(6, 4))
    paint(tmp_path / "a" / "2.png", size=(9, 9))
    with pytest.raises(UserError, match=r"2\.png: a picture of 9 x 9 pixels, others have 6 x 4; set the option `size`"):
        load(tmp_path)
    data = load(tmp_path, size=5)
    assert data.x.shape == (2, 3, 5, 5)
    assert (data.x == np.array(RED)[:, None, None]).all()


def test_photographs_are_turned_upright(tmp_path: Path) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6  # orientation: rotate by 90 degrees
    paint(tmp_path / "a" / "1.jpg", size=(8, 4), exif=turned)
    assert load(tmp_path).shape == (3, 8, 4)


def test_test_pictures_of_another_size_are_refused(tmp_path: Path) -> None:
    paint(tmp_path / "train" / "a" / "1.png")
    paint(tmp_path / "test" / "a" / "1.png", size=(9, 9))
    with pytest.raises(UserError, match="test: a picture of 9 x 9 pixels"):
        load(tmp_path)


def test_damaged_pictures_and_empty_folders_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere is no folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(UserError, match="has no class folders"):
        load(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(UserError, match="a holds no pictures"):
        load(tmp_path)
    paint(tmp_path / "a" / "1.png", size=(50, 50))
    whole = (tmp_path / "a" / "1.png").read_bytes()
    for content in (b"no picture", whole[: len(whole) // 2]):
        (tmp_path / "a" / "1.png").write_bytes(content)
        with pytest.raises(UserError, match=r"1\.png cannot be read as a picture"):
            load(tmp_path)


def test_a_test_class_without_training_pictures_is_refused(tmp_path: Path) -> None:
    paint(tmp_path / "train" / "a" / "1.png")
    paint(tmp_path / "test" / "b" / "1.png")
    with pytest.raises(UserError, match="b is a class without a folder in"):
        load(tmp_path)


def test_a_size_of_zero_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="size = 0"):
        load(tmp_path, size=0)
