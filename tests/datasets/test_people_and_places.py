"""Data sets of people and places, such as LEAF's, from small files in the official layout."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from bench.data import TokenShape
from bench.errors import UserError
from datasets.leaf import ALPHABET
from tests.datasets.helpers import divide, group_of_each, load, paint


def leaf_file(root: Path, part: str, users: dict[str, tuple[Any, Any]], name: str = "all_data_0.json") -> Path:
    """A file as LEAF's scripts write it; of each user inputs and labels."""
    folder = root / "data" / part
    folder.mkdir(parents=True, exist_ok=True)
    own = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    sizes = [len(y) for _, y in users.values()]
    (folder / name).write_text(json.dumps({"users": list(users), "num_samples": sizes, "user_data": own}))
    return folder / name


def images(n: int, seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (n, 28, 28)) / 255


def test_femnist_in_leaf_s_files(tmp_path: Path) -> None:
    """Two files of writers, of whom some have tests."""
    x = images(9, 0)
    flat, folder = x.reshape(9, -1).tolist(), tmp_path / "femnist"
    leaf_file(folder, "train", {"f01": (flat[:3], [0, 10, 61]), "f02": (flat[3:5], [1, 2])})
    leaf_file(folder, "train", {"f03": (flat[5:6], [4])}, "all_data_1.json")
    leaf_file(folder, "test", {"f02": (flat[6:7], [3]), "f01": (flat[7:9], [5, 6])})
    data = load("femnist", tmp_path)
    np.testing.assert_array_equal(data.x[:, 0], np.rint(255 * x))
    assert data.y.tolist() == [0, 10, 61, 1, 2, 4, 3, 5, 6]
    assert (data.n_train, data.num_classes, data.classes[10], data.classes[61]) == (6, 62, "A", "z")
    assert group_of_each(data) == ["f01"] * 3 + ["f02"] * 2 + ["f03", "f02", "f01", "f01"]


LINE = "to be, or not to be: that is the question: whether 'tis nobler in the mind to su"
SAMPLES: dict[str, tuple[Any, Any]] = {  # of one user of each of LEAF's sets: two inputs, two labels
    "femnist": (images(2, 0).reshape(2, -1).tolist(), [3, 61]),
    "shakespeare": ([LINE, LINE], ["b", "c"]),
    "sent140": ([[0, 0, 0, "u", "good day"], [0, 0, 0, "u", "bad day"]], [1, 0]),
    "celeba": (["1.jpg", "2.jpg"], [0, 1]),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_users_without_samples_in_a_part(name: str, tmp_path: Path) -> None:
    """In the files with empty lists, or not at all; another file has no users."""
    for picture in ("1.jpg", "2.jpg"):
        paint(tmp_path / "celeba" / "data" / "raw" / "img_align_celeba" / picture)
    x, y = SAMPLES[name]
    both, none = (x, y), ([], [])
    for part, users in (
        ("train", {"empty": none, "no test": both, "trains": both, "tests": none, "whole": both}),
        ("test", {"no test": none, "tests": both, "whole": both, "empty": none}),
    ):
        leaf_file(tmp_path / name, part, users)
        leaf_file(tmp_path / name, part, {}, "all_data_1.json")
    data = load(name, tmp_path)
    named = ["no test"] * 2 + ["trains"] * 2 + ["whole"] * 2 + ["tests"] * 2 + ["whole"] * 2
    assert (group_of_each(data), data.n_train, data.y.tolist()) == (named, 6, [*data.y[:2]] * 5)

    def sizes(clients: int, **options: Any) -> dict[str, tuple[int, int]]:
        split = divide(data, clients=clients, protocol="paper", **options)
        return {user: (len(a), len(b)) for user, a, b in zip(split.names, split.train, split.test, strict=True)}

    assert sizes(3) == {"no test": (2, 0), "trains": (2, 0), "whole": (2, 2)}  # who has nothing to train on is none
    cut = {"no test": (1, 1), "tests": (1, 1), "trains": (1, 1), "whole": (2, 2)}
    assert sizes(4, shares=[0.5, 0, 0.5]) == cut


def test_shakespeare_in_leaf_s_files(tmp_path: Path) -> None:
    """A character's number is its place among LEAF's 80; a role's tests are its own."""
    assert (len(LINE), len(ALPHABET), len(set(ALPHABET))) == (80, 80, 80)
    users = {"HAMLET": ([LINE, LINE[1:] + "f"], ["f", "f"]), "GHOST": (["}" * 80], ["\n"])}
    leaf_file(tmp_path / "shakespeare", "train", users)
    leaf_file(tmp_path / "shakespeare", "test", {"HAMLET": ([LINE[2:] + "ff"], ["e"])})
    data = load("shakespeare", tmp_path)
    assert "share 79 of their 80 characters" in data.notes[0]
    assert (data.shape, data.n_train, data.num_classes) == (TokenShape(80, 80), 3, 80)
    assert "".join(ALPHABET[token] for token in data.x[3]) == LINE[2:] + "ff"
    assert [data.classes[label] for label in data.y] == ["f", "f", "\n", "e"]
    assert (data.x[2].tolist(), ALPHABET[0], ALPHABET[79]) == ([79] * 80, "\n", "}")
    assert group_of_each(data) == ["HAMLET", "HAMLET", "GHOST", "HAMLET"]


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_part_in_which_nobody_has_samples_is_refused(part: str, tmp_path: Path) -> None:
    for each in ("train", "test"):
        leaf_file(tmp_path / "femnist", each, {"a": ([], []) if each == part else SAMPLES["femnist"]})
    with pytest.raises(UserError, match=f"data/{part} has no JSON file with samples; make the files with LEAF"):
        load("femnist", tmp_path)
    leaf_file(tmp_path / "femnist", part, {}).write_text("{}")
    with pytest.raises(UserError, match="KeyError: 'users'"):
        load("femnist", tmp_path)


PIXELS = [0.5] * 784


@pytest.mark.parametrize(
    ("name", "x", "y", "message"),
    [
        ("femnist", [], [1], "user a: 0 images, 1 labels"),
        ("femnist", [PIXELS, PIXELS], [0], "user a: 2 images, 1 labels"),
        ("femnist", [[2.5] * 784], [0], "outside 0"),
        ("femnist", [PIXELS[:140]], [0], "not as it was published"),
        ("shakespeare", [LINE], ["é"], "user a: 'é' is none of LEAF's 80 characters"),
        ("shakespeare", [LINE[:-1] + "€"], ["a"], "'€' is none"),
        ("shakespeare", [LINE[:-1]], ["a"], "has not 80 characters"),
        ("shakespeare", [LINE], ["a", "b"], "1 texts and 2 characters"),
        ("shakespeare", [LINE], ["ab"], "not as it was published"),
        ("sent140", [[0, 0, 0, "u", "x"]], [4], "1 samples, 1 labels, or a label that is neither 0 nor 1"),
        ("sent140", [["short"]], [1], "not as it was published"),
    ],
)
def test_samples_that_do_not_fit_are_refused(name: str, x: Any, y: Any, message: str, tmp_path: Path) -> None:
    leaf_file(tmp_path / name, "test", {"b": SAMPLES[name]})
    with pytest.raises(UserError, match="has no JSON file with samples; make the files with LEAF"):
        load(name, tmp_path)
    leaf_file(tmp_path / name, "train", {"a": (x, y)})
    with pytest.raises(UserError, match=message):
        load(name, tmp_path)


def emnist_file(root: Path, **changed: Any) -> Path:
    """Five and three images in EMNIST's layout: rows of pixels column by column, columns of labels and writers."""
    pixels = np.rint(255 * images(8, 1)).astype(np.uint8)
    codes = [*range(48, 58), *range(65, 91), *range(97, 123)]

    def part(rows: slice, labels: list[int], writers: list[int]) -> dict[str, Any]:
        columns = [np.ravel(image, order="F") for image in pixels[rows]]
        values = {"images": np.stack(columns), "labels": np.uint8([labels]).T, "writers": np.float64([writers]).T}
        return values | {key: value for key, value in changed.items() if key in values}

    file = root / "EMNIST" / "matlab" / "emnist-byclass.mat"
    file.parent.mkdir(parents=True, exist_ok=True)
    dataset = {
        "train": part(slice(5), [0, 10, 61, 35, 36], [200, 3000, 200, 7, 7]),
        "test": part(slice(5, 8), [1, 2, 3], [3000, 200, 3000]),
        "mapping": np.float64([[label, code] for label, code in enumerate(codes)]),
    }
    savemat(file, {"dataset": dataset})
    return file


def test_emnist_s_file_with_writers(tmp_path: Path) -> None:
    """Upright images, though the file has them column by column; each writer is a client."""
    emnist_file(tmp_path)
    data = load("emnist_writers", tmp_path)
    np.testing.assert_array_equal(data.x[:, 0], np.rint(255 * images(8, 1)))
    assert (data.x.dtype, data.y.tolist(), data.n_train) == (np.uint8, [0, 10, 61, 35, 36, 1, 2, 3], 5)
    assert [data.classes[label] for label in data.y[:5]] == ["0", "A", "z", "Z", "a"]
    assert (data.num_classes, data.group_names) == (62, ("7", "200", "3000"))
    assert group_of_each(data) == ["200", "3000", "200", "7", "7", "3000", "200", "3000"]


def test_emnist_s_file_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"emnist-byclass\.mat is missing .*; unpack EMNIST's MATLAB archive"):
        load("emnist_writers", tmp_path)
    for changed, message in (
        ({"labels": np.uint8([[0]])}, "5 images of uint8, 1 labels, 5 writers"),
        ({"writers": np.float64([[0]])}, "5 images of uint8, 5 labels, 1 writers"),
        ({"images": np.zeros((5, 784))}, "5 images of float64"),
        ({"images": np.zeros((5, 700), np.uint8)}, "is missing or not as it was published"),
    ):
        emnist_file(tmp_path, **changed)
        with pytest.raises(UserError, match=message):
            load("emnist_writers", tmp_path)
    file = emnist_file(tmp_path)
    for content in (file.read_bytes()[:5000], b"no file of MATLAB"):
        file.write_bytes(content)
        with pytest.raises(UserError, match="is missing or not as it was published") as found:
            load("emnist_writers", tmp_path)
        assert "\n" not in str(found.value)
    savemat(file, {"dataset": {"train": 1}})
    with pytest.raises(UserError, match="is missing or not as it was published"):
        load("emnist_writers", tmp_path)


def test_camelyon17_in_wilds_layout(tmp_path: Path) -> None:
    """Every hospital and label has a quarter of its patches in the test part."""
    folder = tmp_path / "camelyon17_v1.0"
    lines = [",patient,node,x_coord,y_coord,tumor,slide,center,split"]
    for i in range(48):
        centre, tumour = i % 3, i // 3 % 2
        place = f"patient_{centre:03}_node_{tumour}"
        lines.append(f"{i},{centre:03},{tumour},{i},7,{tumour},0,{centre},0")
        patch = folder / "patches" / place / f"patch_{place}_x_{i}_y_7.png"
        paint(patch, (i, 100 + centre, 200 + tumour), (6, 6))
    (folder / "metadata.csv").write_text("\n".join(lines))
    data = load("camelyon17", tmp_path, size=6)
    assert (data.shape, data.n_train, data.classes, data.group_names) == (
        (3, 6, 6), 36, ("normal", "tumour"), ("0", "1", "2")
    )  # fmt: skip
    assert data.groups is not None
    assert np.array_equal(data.x[:, 1, 0, 0], 100 + data.groups)
    assert np.array_equal(data.x[:, 2, 0, 0], 200 + data.y)
    assert sorted(data.x[:, 0, 0, 0].tolist()) == list(range(48))
    assert np.bincount(2 * data.groups[36:] + data.y[36:]).tolist() == [2] * 6
    next((folder / "patches").rglob("*.png")).unlink()
    with pytest.raises(UserError, match=r"camelyon17: .*\.png is missing"):
        load("camelyon17", tmp_path, size=6)
    (folder / "metadata.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match=r"columns expected but not found: .*patient"):
        load("camelyon17", tmp_path)
    with pytest.raises(UserError, match=r"metadata\.csv is missing .*; fetch the data with WILDS"):
        load("camelyon17", tmp_path / "elsewhere")


def test_iwildcam_in_wilds_layout(tmp_path: Path) -> None:
    """Parts of the training cameras only, the test part last, whatever the order of the list."""
    folder = tmp_path / "iwildcam_v2.0"
    lines = ["split,location_remapped,location,y,datetime,filename"]
    parts = ["id_test", "train", "test", "id_val", "val", "train"]
    for i, part in enumerate(parts):
        lines.append(f"{part},{10 + i % 2},{i % 2},{180 - i},2013-06-05 05:44:19.000,{i}.jpg")
        paint(folder / "train" / f"{i}.jpg", (40 * i,) * 3, (9, 6), quality=100)
    (folder / "metadata.csv").write_text("\n".join(lines))
    data = load("iwildcam", tmp_path, size=4)
    assert data.x[:, 0, 0, 0].tolist() == [40, 120, 200, 0]
    assert (data.y.tolist(), data.n_train, data.num_classes) == ([179, 177, 175, 180], 3, 182)
    assert group_of_each(data) == ["11", "11", "11", "10"]
    for rows, message in (
        ([*lines, "train,11,1,deer,2013,5.jpg"], ".*metadata.csv .*deer"),
        (lines[:2], ".* no rows of the parts train or id_val"),
        ([lines[0], "train,11,1,3,2013,gone.jpg"], r".*gone\.jpg is missing"),
    ):
        (folder / "metadata.csv").write_text("\n".join(rows))
        with pytest.raises(UserError, match=f"iwildcam: {message}"):
            load("iwildcam", tmp_path, size=4)


def test_sent140_in_leaf_s_files(tmp_path: Path) -> None:
    """Words are counted in the training part; of a row only the text is read."""

    def row(text: str) -> list[str]:
        return ["1467", "Mon Apr 06", "NO_QUERY", "somebody", text, "training"]

    leaf_file(tmp_path / "sent140", "train", {"ann": ([row("good GOOD day"), row("bad day, good")], [1, 0])})
    leaf_file(tmp_path / "sent140", "test", {"ann": ([row("a good day")], [1])})
    data = load("sent140", tmp_path, vocabulary=4, length=4)
    assert data.x.tolist() == [[2, 2, 3, 0], [1, 3, 2, 0], [1, 2, 3, 0]]  # good: 2, day: 3, others unknown
    assert (data.y.tolist(), data.n_train, data.group_names, data.vocabulary) == ([1, 0, 1], 2, ("ann",), 4)


def test_celeba_in_leaf_s_files(tmp_path: Path) -> None:
    """Another division of the same pictures is not read from the cache of the first one."""
    pictures = tmp_path / "celeba" / "data" / "raw" / "img_align_celeba"
    names = [f"{i:06}.png" for i in range(4)]
    for i, name in enumerate(names):
        paint(pictures / name, (50 * i, 7, 9))
    for train, test in (((0, 2), (1, 3)), ((1, 3), (0, 2))):
        leaf_file(tmp_path / "celeba", "train", {"7": ([names[i] for i in train], [0, 1])})
        leaf_file(tmp_path / "celeba", "test", {"12": ([names[i] for i in test], [1, 0])})
        data = load("celeba", tmp_path, size=4)
        assert data.x[:, 0, 0, 0].tolist() == [50 * i for i in (*train, *test)]
        assert (data.y.tolist(), data.n_train, data.group_names) == ([0, 1, 1, 0], 2, ("12", "7"))
    (pictures / names[0]).unlink()
    with pytest.raises(UserError, match=r"celeba: .*000000\.png is missing"):
        load("celeba", tmp_path, size=4)


def test_traffic_signs(tmp_path: Path) -> None:
    folder = tmp_path / "gtsrb"
    for label, k in ((0, 0), (0, 1), (41, 0)):
        paint(folder / "GTSRB" / "Training" / f"{label:05}" / f"00000_{k:05}.ppm", (label, k, 0), (9 + k, 7))
    with pytest.raises(UserError, match=r"gtsrb: .*GT-final_test\.csv is missing"):
        load("gtsrb", tmp_path)
    paint(test := folder / "GTSRB" / "Final_Test" / "Images" / "00000.ppm", (200, 0, 0), (5, 5))
    (folder / "GT-final_test.csv").write_text("Filename;Width;Height;ClassId\n00000.ppm;5;5;16\n")
    data = load("gtsrb", tmp_path, size=8)
    assert (data.x[:, 0, 0, 0].tolist(), data.y.tolist(), data.n_train) == ([0, 0, 41, 200], [0, 0, 41, 16], 3)
    assert (data.shape, data.num_classes) == ((3, 8, 8), 43)
    test.unlink()
    with pytest.raises(UserError, match=r"gtsrb: .*00000\.ppm is missing; add `--download`"):
        load("gtsrb", tmp_path)


def test_flowers(tmp_path: Path) -> None:
    """Pictures are numbered from 1, and so are their labels; the validation part is for training."""
    folder = tmp_path / "flowers-102"
    with pytest.raises(UserError, match=r"flowers102: .*flowers-102 is missing or not"):
        load("flowers102", tmp_path)
    for i in range(1, 5):
        paint(folder / "jpg" / f"image_{i:05}.jpg", (50 * i,) * 3, (8, 8), quality=100)
    savemat(folder / "imagelabels.mat", {"labels": [[77, 5, 102, 1]]})
    savemat(folder / "setid.mat", {"trnid": [[4]], "valid": [[2]], "tstid": [[3, 1]]})
    data = load("flowers102", tmp_path, size=4)
    assert np.rint(data.x[:, 0, 0, 0] / 50).tolist() == [4, 2, 3, 1]
    assert (data.y.tolist(), data.n_train, data.num_classes) == ([0, 4, 101, 76], 2, 102)
