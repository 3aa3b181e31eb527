"""`image_folder`: a user's own pictures."""

import struct
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bench.errors import UserError
from datasets.image_folder import natural
from tests.datasets.helpers import GREEN, RED, load_from, paint

load = partial(load_from, "image_folder")


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


def test_pictures_are_resized_and_photographs_turned_upright(tmp_path: Path) -> None:
    paint(tmp_path / "sizes" / "a" / "1.png", size=(6, 4))
    paint(tmp_path / "sizes" / "a" / "2.png", size=(9, 9))
    data = load(tmp_path / "sizes", size=5)
    assert data.x.shape == (2, 3, 5, 5)
    assert (data.x == np.array(RED)[:, None, None]).all()
    turned = Image.Exif()
    turned[0x0112] = 6  # orientation: rotate by 90 degrees
    paint(tmp_path / "turned" / "a" / "1.jpg", size=(8, 4), exif=turned)
    assert load(tmp_path / "turned").shape == (3, 8, 4)


@pytest.mark.parametrize(
    ("pictures", "options", "message"),
    [
        ("", {}, "has no class folders"),
        ("a/1 a/9x9", {}, r"9x9\.png: a picture of 9 x 9 pixels, others have 6 x 4; set the option `size`"),
        ("train/a/1 test/a/9x9", {}, r"test/a/9x9\.png: a picture of 9 x 9 pixels"),
        ("a/1", {"size": 0}, "size = 0"),
        ("train/a/1 test/b/1", {}, "b is a class without a folder in"),
        # as two sites may call it: each would be measured on classes that the other has not
        ("A/Tumor/1 A/normal/1 B/tumor/1 B/normal/1", {"groups": True}, "'Tumor' and 'tumor' differ only in spelling"),
        ("train/Cat/1 train/dog/1 val/cat/1 test/dog/1", {}, "'Cat' and 'cat' differ only in spelling"),
        ("hospital/a/1", {}, r"hospital holds no pictures.*if its folders are classes, set `groups: true`"),
    ],
)
def test_folders_that_do_not_fit_are_refused(
    tmp_path: Path, pictures: str, options: dict[str, Any], message: str
) -> None:
    for name in pictures.split():
        paint(tmp_path / f"{name}.png", size=(9, 9) if name.endswith("9x9") else (6, 4))
    with pytest.raises(UserError, match=message):
        load(tmp_path, **options)


def test_damaged_pictures_and_empty_folders_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no folder \S+/nowhere; set the option `path`"):
        load(tmp_path / "nowhere")
    (tmp_path / "a").mkdir()
    with pytest.raises(UserError, match="a holds no pictures"):
        load(tmp_path)
    paint(tmp_path / "a" / "1.png", size=(50, 50))
    whole = (tmp_path / "a" / "1.png").read_bytes()
    for content in (b"no picture", whole[: len(whole) // 2]):
        (tmp_path / "a" / "1.png").write_bytes(content)
        with pytest.raises(UserError, match=r"1\.png cannot be read as a picture"):
            load(tmp_path)


def test_small_and_capital_letters_may_be_classes(tmp_path: Path) -> None:
    """Whoever has both in one folder means both."""
    for place in ("train/A", "train/a", "test/A", "test/a"):
        paint(tmp_path / place / "1.png")
    assert load(tmp_path).classes == ("A", "a")


# -- what is read, and what is said of the rest --


@pytest.mark.parametrize("name", ["val", "valid", "validation", "Val"])
@pytest.mark.parametrize("tested", [True, False])
def test_a_validation_part_joins_training(tmp_path: Path, name: str, tested: bool) -> None:
    """As in an .npz file; its classes need not be in `train`."""
    for part, classes in {"train": "ab", name: "abc", **({"test": "c"} if tested else {})}.items():
        for label in classes:
            for number in range(4):
                shade = 10 * ord(label) - 960 + number + 4 * (part == name)
                paint(tmp_path / part / label / f"{number}.png", (shade, 0, 0))
    data = load(tmp_path)
    assert (data.classes, len(data.y), data.notes) == (("a", "b", "c"), 24 if tested else 20, ())
    assert np.bincount(data.y[: data.n_train]).tolist() == ([8, 8, 4] if tested else [6, 6, 3])
    assert (data.x[:, 0, 0, 0] // 10 - 1 == data.y).all()


def test_groups_have_a_validation_part_too(tmp_path: Path) -> None:
    for place in ("train/h1/a", "train/h2/b", "val/h3/a", "test/h1/b"):
        paint(tmp_path / place / "1.png")
    data = load(tmp_path, groups=True)
    assert (data.n_train, len(data.y), data.group_names) == (3, 4, ("h1", "h2", "h3"))


@pytest.mark.parametrize("ending", [".PNG", ".jpeg", ".JPG", ".bmp", ".gif", ".tif", ".TIFF", ".webp", ".ppm", ".tga"])
def test_endings_that_pillow_reads(tmp_path: Path, ending: str) -> None:
    paint(tmp_path / "a" / "1.png")
    paint(tmp_path / "a" / f"2{ending}")
    data = load(tmp_path)
    assert len(data.y) == 2
    assert np.abs(data.x[1] - data.x[0].astype(float)).max() <= 2


def test_what_is_skipped_is_counted_and_named(tmp_path: Path) -> None:
    paint(tmp_path / "train" / "a" / "1.png")
    paint(tmp_path / "train" / "a" / "deeper" / "2.png")
    paint(tmp_path / "test" / "a" / "1.png", GREEN)
    paint(tmp_path / "extra" / "a" / "1.png")
    for skipped in ("readme.md", "train/labels.csv", "test/a/2.svg", "test/a/3.svg"):
        (tmp_path / skipped).write_text("no picture")
    (tmp_path / "train" / "a" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "train" / "a" / ".DS_Store").write_text("hidden")
    data = load(tmp_path, name="mine")
    assert data.notes == ("mine: files and folders that are skipped (7): extra, readme.md, test/a/2.svg, ...",)
    assert len(data.y) == 2


# -- depth and alpha --


def grey(file: Path, values: Any, dtype: str = "uint16") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.array(values, dtype)).save(file)


@pytest.mark.parametrize(
    ("dtype", "ending", "values", "white"),
    [
        ("uint16", "png", [0, 17, 2000, 4000], 4095),  # 12-bit data
        ("uint16", "png", [0, 1, 257, 65535], 65535),
        ("uint16", "tif", [0, 10, 300, 1000], 1023),
        ("int32", "tif", [0, 70000, 900, 9000], 131071),
        ("float32", "tif", [0, 0.25, 0.5, 1], 1),
        ("float32", "tif", [0, 0.5, 99.5, 200], 255),
    ],
)
def test_deep_pictures_have_one_white(tmp_path: Path, dtype: str, ending: str, values: list[float], white: int) -> None:
    """A dark picture stays dark beside a bright one, and one in the test part counts, too."""
    for number, value in enumerate(values):
        grey(tmp_path / ("test" if number == 3 else "train") / "a" / f"{number}.{ending}", [[value, 0]], dtype)
    data = load(tmp_path, name="mine")
    assert data.x[:, 0, 0, 0].tolist() == np.rint(np.array(values) * 255 / white).astype(int).tolist()
    assert (data.x == data.x[:, :1]).all()
    many = sum(value > 255 for value in values) if dtype != "float32" else 4
    assert data.notes == (f"mine: pictures of more than 8 bits ({many}): {white} is white in all of them",)


def test_a_picture_is_the_same_in_8_and_in_16_bits(tmp_path: Path) -> None:
    """65535 is 257 times 255. Values up to 255 in a file of 16 bits are 8-bit values, and were read so ever since."""
    values = np.random.default_rng(0).integers(0, 256, (5, 7))
    values[0, 0] = 255
    for name, unit, dtype in (("8", 1, "uint8"), ("16", 257, "uint16"), ("8 in 16", 1, "uint16")):
        grey(tmp_path / name / "a" / "1.png", values * unit, dtype)
    loaded = [load(tmp_path / name, name="x") for name in ("8", "16", "8 in 16")]
    assert len({data.checksum for data in loaded}) == 1


@pytest.mark.parametrize("values", [[-1.0, 2.0], [np.nan, 1.0]])
def test_values_without_a_black_are_refused(tmp_path: Path, values: list[float]) -> None:
    grey(tmp_path / "a" / "1.tif", [values], "float32")
    with pytest.raises(UserError, match=r"1\.tif has values that are negative or not finite"):
        load(tmp_path)


def shape(mode: str, level: int) -> Image.Image:
    """A bar of one grey level whose shape is in the alpha channel only."""
    alpha = np.zeros((4, 6), np.uint8)
    alpha[:, 2:4] = 255
    if mode != "P":
        return Image.fromarray(np.dstack([np.full((4, 6, 3), level, np.uint8), alpha])).convert(mode)
    flat = Image.fromarray((alpha == 0).astype(np.uint8), "L").convert("P")
    flat.putpalette([level, level, level] * 2)
    flat.info["transparency"] = 1
    return flat


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
@pytest.mark.parametrize(("level", "background"), [(0, 255), (100, 255), (255, 0), (200, 0)])
def test_a_shape_in_the_alpha_channel_is_seen(tmp_path: Path, mode: str, level: int, background: int) -> None:
    (tmp_path / "a").mkdir()
    picture = shape(mode, level)
    picture.save(tmp_path / "a" / "1.png", **({"transparency": 1} if mode == "P" else {}))
    paint(tmp_path / "a" / "2.png", (7, 8, 9))  # an opaque one beside it
    data = load(tmp_path, name="mine")
    bar = data.x[data.x[:, 1, 0, 0] != 8][0]
    assert (bar == np.where([False, False, True, True, False, False], level, background)).all()
    shade = "black" if background == 0 else "white"
    assert data.notes == (f"mine: pictures that are transparent in part (1): put on {shade}",)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "L", "1", "P", "CMYK", "RGB"])
def test_opaque_pictures_are_as_they_were(tmp_path: Path, mode: str) -> None:
    """Bytes and ids, with an alpha channel or without: as Pillow makes RGB of them."""
    values = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    picture = Image.fromarray(values).convert(mode)
    file = tmp_path / "a" / ("1.jpg" if mode == "CMYK" else "1.png")
    file.parent.mkdir()
    picture.save(file)
    data = load(tmp_path)
    np.testing.assert_array_equal(data.x[0], np.asarray(Image.open(file).convert("RGB")).transpose(2, 0, 1))
    assert data.notes == ()


def test_of_several_pictures_in_a_file_the_first_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    frames = [Image.new("RGB", (3, 3), colour) for colour in (RED, GREEN)]
    for ending in ("gif", "tif"):
        frames[0].save(tmp_path / "a" / f"1.{ending}", save_all=True, append_images=frames[1:])
    data = load(tmp_path, name="mine")
    assert (data.x == np.array(RED)[:, None, None]).all()
    assert data.notes == (
        "mine: files of several pictures (2): only the first is read",
        "mine: 1 picture for tests equals pictures for training (the first: a/1.gif)",
    )


def test_16_bit_colours_of_which_pillow_reads_the_upper_half_are_said(tmp_path: Path) -> None:
    rows = b"".join(b"\0" + np.full((2, 3), 4000, ">u2").tobytes() for _ in range(2))
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", 2, 2, 16, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + b"".join(struct.pack(">I", len(c)) + n + c + struct.pack(">I", zlib.crc32(n + c)) for n, c in chunks)
    )
    data = load(tmp_path, name="mine")
    assert data.notes == ("mine: colour pictures of 16 bits (1): only the upper 8 bits of their values are read",)
    assert (data.x == 4000 // 256).all()
