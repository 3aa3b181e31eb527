"""Folders as Hugging Face's `datasets` leaves them, written here by pyarrow in its layouts and schema.

With the package itself (5.2.0) the pixels of `load_dataset(...)` and of this reader were equal in all of them.
"""

import io
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from bench.api.data_source import cells_of
from bench.errors import UserError
from tests.datasets.helpers import group_of_each, load_from
from tests.later import Later

pa, pq = Later("pyarrow"), Later("pyarrow.parquet")
Rows = dict[str, list[Any]]
NAMES = ["dog", "cat", "ant"]
load = partial(load_from, "hugging_face")


def pixels(rows: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (rows, 5, 4, 3), dtype=np.uint8)


def png(image: npt.NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def of_pictures(images: npt.NDArray[np.uint8], labels: list[int | None]) -> Rows:
    image = [{"bytes": png(pixels), "path": None} for pixels in images]
    return {"image": image, "label": labels, "site": [f"s{row % 2}" for row in range(len(labels))]}


def write(file: Path, rows: Rows) -> None:
    """A shard: Parquet, or a stream of Arrow, with the features in the schema."""
    image = {"_type": "Image"}
    known = {"label": {"_type": "ClassLabel", "names": NAMES}, "image": image, "mask": image}
    info = {"info": {"features": {column: known.get(column, {"_type": "Value"}) for column in rows}}}
    table = pa.table(rows).replace_schema_metadata({"huggingface": json.dumps(info)})
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".parquet":
        pq.write_table(table, file)
        return
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


LAYOUTS = {
    "a download": [f"data/{part}-00000-of-00001.parquet" for part in ("train", "validation", "test")],
    "converted": [f"default/{part}/0000.parquet" for part in ("train", "validation", "test")],
    "save_to_disk": [f"{part}/data-00000-of-00001.arrow" for part in ("train", "validation", "test")],
    "the cache": [f"0.0.0/1a2b/test_of_dogs-{part}.arrow" for part in ("train", "validation", "test")],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pictures_in_each_layout(tmp_path: Path, layout: str) -> None:
    """Training, validation and test part in this order; classes by the schema's order, also one without samples."""
    x, y = pixels(9), [0, 1, 0, 1, 0, 1, 1, 0, 0]
    cuts = [slice(0, 4), slice(4, 6), slice(6, 9)]
    for file, rows in zip(LAYOUTS[layout], cuts, strict=True):
        write(tmp_path / file, of_pictures(x[rows], y[rows]))
    data = load(tmp_path, site_column="site")
    np.testing.assert_array_equal(data.x, x.transpose(0, 3, 1, 2))
    assert (data.y.tolist(), data.n_train, data.classes, data.num_classes) == (y, 6, tuple(NAMES), 3)
    assert group_of_each(data) == ["s0", "s1", "s0", "s1", "s0", "s1", "s0", "s1", "s0"]
    assert load(tmp_path, size=8).x.shape == (9, 3, 8, 8)


def test_a_file_with_a_column_of_clients(tmp_path: Path) -> None:
    """As users of Flower Datasets have it: pictures of bytes and path, whole numbers that say whose they are, and a
    schema that says nothing of Hugging Face. The clients are in the order of their numbers."""
    rows = of_pictures(pixels(48), [row % 3 for row in range(48)]) | {"client": [row % 12 for row in range(48)]}
    pq.write_table(pa.table(rows), tmp_path / "clients.parquet")
    data = load(tmp_path / "clients.parquet", site_column="client")
    assert (data.name, data.num_classes, data.shape) == ("clients", 3, (3, 5, 4))
    assert data.group_names == tuple(map(str, range(12)))
    assert data.groups is not None
    assert data.rows is not None
    assert data.groups.tolist() == (data.rows % 12).tolist()
    with pytest.raises(UserError, match=r"there is no file .*absent\.parquet"):
        load(tmp_path / "absent.parquet")


def test_without_labelled_tests_a_part_is_held_out(tmp_path: Path) -> None:
    """Labels of a competition's tests are -1; files of an unknown part are named."""
    write(tmp_path / "train-00000-of-00002.parquet", of_pictures(pixels(8), [0] * 8))
    write(tmp_path / "train-00001-of-00002.parquet", of_pictures(pixels(8, seed=1), [1] * 8))
    write(tmp_path / "test-00000-of-00001.parquet", of_pictures(pixels(4, seed=2), [-1] * 4))
    write(tmp_path / "unsupervised-00000-of-00001.parquet", of_pictures(pixels(4, seed=3), [-1] * 4))
    data = load(tmp_path)
    assert (len(data.y), data.n_train) == (16, 12)
    assert data.rows is not None
    np.testing.assert_array_equal(data.x[0], pixels(8)[data.rows[0]].transpose(2, 0, 1))
    assert "1 files of no known part are not read: unsupervised-00000-of-00001.parquet" in data.notes[0]


def test_pictures_that_are_files(tmp_path: Path) -> None:
    """In the cache of an image folder, a picture is the path of its file; one relative to the shard is found, too."""
    images = pixels(6)
    for row, image in enumerate(images):
        (tmp_path / f"{row}.png").write_bytes(png(image))
    paths = [str(tmp_path / f"{row}.png") if row % 2 else f"{row}.png" for row in range(6)]
    rows = {"image": [{"bytes": None, "path": path} for path in paths], "label": [0, 1] * 3}
    write(tmp_path / "train.parquet", rows)
    write(tmp_path / "test.parquet", rows)
    np.testing.assert_array_equal(load(tmp_path).x[:6], images.transpose(0, 3, 1, 2))


def test_a_table_has_the_names_of_classes_and_the_parts_of_its_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for part, n in (("train", 40), ("test", 12)):
        ages = rng.normal(50, 10, n).tolist()
        write(tmp_path / part / "data-00000-of-00001.arrow", {"age": ages, "label": [0, 1] * (n // 2), "id": ages})
    data = load(tmp_path, leave_out=("id",))
    assert (data.n_train, data.classes, data.features, data.shape) == (40, ("cat", "dog"), ("age",), (1,))
    assert data.y.tolist() == [1, 0] * 26
    with pytest.raises(UserError, match="no column of pictures, which `size`"):
        load(tmp_path, size=8)


def test_shards_are_no_sites(tmp_path: Path) -> None:
    """`bench data FOLDER` takes a download for what it is, and `parquet` does not take its parts for sites."""
    for part in ("train", "test"):
        write(tmp_path / f"{part}-00000-of-00001.parquet", {"age": [1.0, 2.5] * 20, "label": [0, 1] * 20})
    (tmp_path / "cache-1a2b.arrow").touch()  # as the package leaves what it has computed
    (cell,) = cells_of(str(tmp_path), tmp_path, label="label", site="", subject="", part="")
    assert cell.dataset == "hugging_face"
    with pytest.raises(UserError, match="a file for each part, not for each site: use the data set `hugging_face`"):
        load_from("parquet", tmp_path, label_column="label")


ROWS = of_pictures(pixels(4), [0, 1, 0, 1])
FIRST = ROWS["image"][:3]


@pytest.mark.parametrize(
    ("changed", "options", "message"),
    [
        ({}, {"label_column": "lable"}, r"no column 'lable'\. Did you mean 'label'"),
        ({"site": ["a", None, "a", "a"]}, {"site_column": "site"}, r"'site' is empty in 1 rows \(the first: row 2\)"),
        ({"image": [None, *FIRST]}, {}, r"the column 'image' is empty in 1 rows \(the first: row 1\)"),
        ({"label": [0, 1, 0, 3]}, {}, "the column 'label' has label 3, but its schema has 3 classes"),
        ({"label": [[0], [1], [0], [1, 2]]}, {}, "the column 'label' is in `leave_out`, or holds lists or structures"),
        ({"mask": ROWS["image"]}, {}, "image and mask hold pictures; add all but one to `leave_out`"),
        (
            {"image": [*FIRST, {"bytes": b"no picture", "path": None}]},
            {},
            "train-00000-of-00001.parquet, row 4 cannot be read as a picture",
        ),
        (
            {"image": [*FIRST, {"bytes": png(pixels(1)[0, :3]), "path": None}]},
            {},
            "row 4: a picture of 4 x 3 pixels, others have 4 x 5; set the option `size`",
        ),
    ],
)
def test_rows_that_cannot_be_read_are_named(tmp_path: Path, changed: Rows, options: Any, message: str) -> None:
    write(tmp_path / "train-00000-of-00001.parquet", ROWS | changed)
    with pytest.raises(UserError, match=message):
        load(tmp_path, **options)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    file = tmp_path / "en" / "train-00000-of-00001.parquet"
    write(file, {**ROWS, "mask": ROWS["image"]})
    assert load(tmp_path, leave_out=("mask",)).shape == (3, 5, 4)
    write(tmp_path / "de" / "train-00000-of-00001.parquet", ROWS)
    with pytest.raises(UserError, match=r"has several data sets; set `path` to one of .*de, .*en"):
        load(tmp_path)
    file.write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"en.train-00000-of-00001.parquet cannot be read \("):
        load(tmp_path / "en")
    with pytest.raises(UserError, match=r"no files that end in .parquet or .arrow"):
        load(Path(__file__).parent)
