"""`npz`: a user's own arrays of images, features, series and tokens."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.errors import UserError
from datasets.assemble import assemble
from tests.datasets.helpers import divide, load_from, load_npz

Arrays = dict[str, npt.NDArray[Any]]
load = partial(load_from, "npz")


def save(folder: Path, arrays: Arrays, name: str = "mine.npz") -> Path:
    path = folder / name
    np.savez(path, **arrays)
    return path


def pictures(*shape: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture
def colour() -> Arrays:
    """Ten, two and four pictures, MedMNIST's way: channels last, labels `[n, 1]`."""
    sizes = {"train": 10, "val": 2, "test": 4}
    arrays: Arrays = {f"{part}_images": pictures(n, 5, 4, 3, seed=n) for part, n in sizes.items()}
    return arrays | {f"{part}_labels": (np.arange(n) % 2)[:, None].astype(np.uint8) for part, n in sizes.items()}


def test_validation_joins_training_and_channels_come_first(tmp_path: Path, colour: Arrays) -> None:
    data = load(save(tmp_path, colour), name="cells")
    whole = np.concatenate([colour[f"{part}_images"] for part in ("train", "val", "test")])
    assert (data.name, data.n_train, data.num_classes, data.shape) == ("cells", 12, 2, (3, 5, 4))
    for channel in range(3):
        np.testing.assert_array_equal(data.x[:, channel], whole[..., channel])
    assert data.y.tolist() == [0, 1] * 8
    assert data.x.flags.c_contiguous
    train = whole[:12] / 255
    np.testing.assert_allclose(data.mean, train.mean(axis=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(data.std, train.std(axis=(0, 1, 2)), rtol=1e-12)


def test_statistics_of_more_samples_than_are_summed_at_once(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(1e4, [1.0, 1e-2], (1000, 2)).astype(np.float32)
    data = load_npz(tmp_path, train_images=x, train_labels=np.arange(1000) % 5)
    train = data.x[: data.n_train].astype(np.float64)
    assert (data.shape, data.n_train) == ((2,), 750)
    np.testing.assert_allclose(data.mean, train.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(data.std, train.std(axis=0), rtol=1e-6)


def test_grey_images_get_a_channel_and_a_constant_one_the_deviation_1(tmp_path: Path) -> None:
    data = load_npz(tmp_path, train_images=np.full((8, 3, 3), 51, np.uint8), train_labels=np.zeros(8, int))
    assert (data.name, data.shape, data.n_train, data.mean, data.std) == ("mine", (1, 3, 3), 6, (0.2,), (1.0,))


def test_checksum_is_of_the_content(tmp_path: Path, colour: Arrays) -> None:
    before = load(save(tmp_path, colour)).checksum
    assert load(save(tmp_path, colour), name="other").checksum == before
    for key in ("train_images", "test_labels"):
        changed = {**colour, key: colour[key].copy()}
        changed[key].flat[0] ^= 1
        assert load(save(tmp_path, changed)).checksum != before


Y = np.zeros(4, int)
IMAGES = {"train_images": pictures(4, 4, 4)}
BAD: dict[str, tuple[dict[str, Any], str]] = {  # arrays beside the labels Y, or in place of them
    "no training part": (
        {"train_labels": None, "test_images": pictures(2, 4, 4), "test_labels": np.zeros(2, int)},
        "none of the arrays 'train_images'",
    ),
    "no labels": ({**IMAGES, "train_labels": None}, "no 'train_labels'"),
    "short labels": ({**IMAGES, "train_labels": np.zeros(3, int)}, "one integer or"),
    "several labels": ({**IMAGES, "train_labels": np.zeros((4, 2), int)}, "one integer"),
    "floating labels": ({**IMAGES, "train_labels": np.zeros(4)}, "float64"),
    "labels of bytes": ({**IMAGES, "train_labels": np.array([b"a", b"b"] * 2)}, "integer or text"),
    "numbers and texts": (
        {**IMAGES, "val_images": pictures(1, 4, 4), "val_labels": np.array(["1"])},
        "'val_labels' and 'train_labels' should both hold integers or both hold text",
    ),
    "another shape": (
        {**IMAGES, "test_images": pictures(4, 6, 6), "test_labels": Y}, "'test_images' holds samples of uint8"
    ),
    "groups of a part": ({**IMAGES, "train_groups": Y}, "array 'train_groups', which is not read.*name it 'groups'"),
    "another array": ({**IMAGES, "users": Y}, "has an array 'users', which is not read.*name it 'groups'"),
    "short groups": ({**IMAGES, "groups": np.arange(3)}, "one integer or text for each of the 4 samples"),
    "long groups": ({**IMAGES, "groups": np.arange(5)}, "one integer or text for each of the 4 samples"),
    "several groups": ({**IMAGES, "groups": np.zeros((4, 1), int)}, "one integer or text for each of the 4 samples"),
    "floating groups": ({**IMAGES, "groups": np.zeros(4)}, "one integer or text for each of the 4 samples"),
    "short subjects": ({**IMAGES, "subjects": np.arange(3)}, "'subjects' is .* one integer or text for each of the 4"),
    "channels first": ({"train_images": pictures(4, 3, 8, 8)}, r"\(4, 3, 8, 8\)"),
    "volumes": ({"train_images": pictures(4, 4, 4, 4, 1)}, "'train_images' is uint8"),
    "integer images": ({"train_images": np.zeros((4, 4, 4), int)}, "int64"),
    "integer features": ({"train_images": pictures(4, 4)}, "floating"),
    "nothing": ({"train_images": pictures(0, 4, 4), "train_labels": np.zeros(0, int)}, "'train_images' is uint8"),
    "NaN": ({"train_images": np.full((4, 4), np.nan)}, "NaN"),
    "objects": ({"train_images": np.array([{}]), "train_labels": np.zeros(1, int)}, "plain arrays"),
    "two kinds": ({"train_series": np.zeros((4, 1, 9)), "train_tokens": np.zeros((4, 9), int)}, "has 2 of the arrays"),
    "integer series": ({"train_series": np.zeros((4, 1, 9), int)}, r"should be floating \[n, channels, time\]"),
    "flat series": ({"train_series": np.zeros((4, 9))}, r"should be floating \[n, channels, time\]"),
    "NaN in series": ({"train_series": np.full((4, 1, 9), np.nan)}, "NaN"),
    "floating tokens": ({"train_tokens": np.zeros((4, 9))}, "integer token numbers"),
    "negative tokens": ({"train_tokens": np.full((4, 9), -1)}, "tokens from -1 to -1; they should be numbers from 0"),
    "huge tokens": ({"train_tokens": np.full((4, 9), 2**40)}, "below 1,000,000"),
    "ragged tokens": ({"train_tokens": np.array([[1], [1, 2], [], []], dtype=object)}, "Python objects"),
    "another length": (
        {"train_tokens": Y[:, None] + [1, 2], "test_tokens": Y[:, None], "test_labels": Y},
        r"'test_tokens' holds samples of int32 \(1,\), 'train_tokens' of int32 \(2,\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, case: str) -> None:
    arrays, message = BAD[case]
    given_arrays = {name: array for name, array in {"train_labels": Y, **arrays}.items() if array is not None}
    with pytest.raises(UserError, match=message):
        load_npz(tmp_path, **given_arrays)


def test_files_that_are_no_npz_are_refused_by_name(tmp_path: Path, colour: Arrays) -> None:
    with pytest.raises(UserError, match=r"there is no file .*absent\.npz; set the option `path`"):
        load(tmp_path / "absent.npz")
    whole = save(tmp_path, colour)
    whole.write_bytes(whole.read_bytes()[:-100])
    text, single = tmp_path / "text.npz", tmp_path / "single.npz"
    text.write_text("train_images")
    with single.open("wb") as stream:
        np.save(stream, np.zeros(3))
    objects = save(tmp_path, {**colour, "train_labels": np.array([None] * 4)}, "objects.npz")
    damaged = save(tmp_path, colour, "damaged.npz")
    content = bytearray(damaged.read_bytes())
    content[200] ^= 255  # within the first array: the CRC of the archive notices
    damaged.write_bytes(content)
    for path in (whole, text, single, objects, damaged):
        with pytest.raises(UserError, match=rf"{path.name} cannot be read as an \.npz file") as refused:
            load(path)
        assert "pickle" not in str(refused.value)  # NumPy's words, which go on to say how to run what is in there


# -- labels that occur are the classes --


def labelled(folder: Path, labels: npt.NDArray[Any], **more: npt.NDArray[Any]) -> Path:
    """A file whose features tell the samples apart."""
    x = np.arange(2.0 * len(labels)).reshape(-1, 2)
    return save(folder, {"train_images": x, "train_labels": labels, **more})


NAMED = [[0, 3, 7, 9], [1, 2, 3], [-1, 1], [5], [-(10**9), 10**9], ["cat", "dog", "owl"], [False, True], [0, 1, 2]]


@pytest.mark.parametrize("names", NAMED)
def test_labels_that_occur_are_the_classes_and_name_them(tmp_path: Path, names: list[Any]) -> None:
    labels = np.array(names)[np.arange(40) % len(names)]
    data = load(labelled(tmp_path, labels))
    assert data.num_classes == len(names)
    rows = data.rows
    assert rows is not None
    contiguous = data.classes or tuple(map(str, range(data.num_classes)))
    in_file = [str(label) for label in labels[rows].astype(int if labels.dtype == bool else labels.dtype).tolist()]
    assert [contiguous[label] for label in data.y] == in_file
    assert len(data.notes) == (names not in ([False, True], [0, 1, 2]))  # that is how they are numbered anyway
    assert all(str(name) in data.notes[0] for name in names if data.notes)


@pytest.mark.parametrize(
    ("partition", "alpha", "options"),
    [("classes", None, {"k": 2}), ("classes", None, {"k": 2, "same_classes": True}), ("exdir", 0.5, {"k": 2})],
)
def test_classes_without_samples_are_given_to_nobody(
    tmp_path: Path, partition: str, alpha: float | None, options: dict[str, Any]
) -> None:
    """Two of four classes for each client, whatever the numbers of the labels: the same lists as for 0 to 3."""
    lists = []
    for names in ([0, 1, 2, 3], [0, 3, 7, 9], [1, 2, 3, 4]):
        data = load(labelled(tmp_path, np.array(names)[np.arange(400) % 4]))
        made = divide(data, partition, 4, alpha=alpha, **options)
        assert [len(np.unique(data.y[own])) for own in made.train] == [2] * 4
        lists.append(made.hash)
    assert len(set(lists)) == 1


def test_a_label_of_one_part_only_is_a_class(tmp_path: Path) -> None:
    one = np.ones((1, 2))
    val, test = ({f"{part}_images": one, f"{part}_labels": np.array([n])} for part, n in (("val", 2), ("test", 7)))
    data = load(labelled(tmp_path, np.array([4, 4]), **val, **test))
    assert (data.classes, data.y.tolist(), data.n_train) == (("2", "4", "7"), [1, 1, 0, 2], 3)


@given(st.lists(st.integers(-5, 5), min_size=1))
def test_numbering_keeps_which_samples_are_alike_and_their_order(labels: list[int]) -> None:
    y = np.array(labels)
    data = assemble("any", np.zeros((len(y), 1), np.float32), y, len(y), mean=[0], std=[1])
    assert np.array_equal(np.unique(data.y), np.arange(data.num_classes))
    assert np.array_equal(np.sign(np.subtract.outer(data.y, data.y)), np.sign(np.subtract.outer(y, y)))


def test_labels_that_are_no_whole_numbers_are_refused_of_whoever_assembles() -> None:
    for bad in (0.5, np.nan):
        with pytest.raises(UserError, match="some labels are neither integers nor texts"):
            assemble("any", np.zeros((2, 1), np.float32), np.array([0, bad]), 2, mean=[0], std=[1])
