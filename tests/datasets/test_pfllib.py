"""`pfllib`: folders as PFLlib's generators write them, and pickles of which nothing is executed.

The form of the files is that of `save_file` in `dataset/utils/dataset_utils.py` of PFLlib at d832e76, and of
`generate_data.py` of FL-bench at 06e658b.
"""

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from bench.data import Dataset, Partition
from bench.errors import UserError
from datasets.arrays import read_pickled
from tests.datasets.folders import RNG, Part, images, write
from tests.datasets.helpers import divide, load_from

load = partial(load_from, "pfllib")


def texts(labels: list[int]) -> Part:
    """Each text with its length, as of AG News: an array `[n, 2]` of objects."""
    rows = np.array([([1, label, 0, 0], 2) for label in labels], dtype=object)
    assert rows.shape == (len(labels), 2)
    return rows, np.array(labels)


def divided(data: Dataset, **options: Any) -> Partition:
    return divide(data, "natural", "all", 3, "paper", **options)


def of_images(clients: int = 12) -> list[tuple[Part, Part]]:
    """More than ten clients, so that an order of texts would be another one; labels of one client are of one class."""
    return [(images([n % 3] * (n + 1)), images([n % 3] * (n % 4))) for n in range(clients)]


def test_the_division_is_that_of_the_folder(tmp_path: Path) -> None:
    clients = of_images()
    data = load(write(tmp_path / "MNIST", clients))
    partition = divided(data)
    assert (data.name, data.num_classes, data.shape, data.classes) == ("MNIST", 3, (1, 6, 5), ())
    assert partition.names == tuple(map(str, range(12)))
    for number, parts in enumerate(clients):
        for lists, (x, y) in zip((partition.train, partition.test), parts, strict=True):
            np.testing.assert_array_equal(data.x[lists[number]], x)
            np.testing.assert_array_equal(data.y[lists[number]], y)
    assert not len(partition.global_test)


def test_values_are_left_as_they_are(tmp_path: Path) -> None:
    """PFLlib trains on what its generators wrote, bytes among it."""
    x = RNG.integers(0, 256, (4, 3, 2, 2), dtype=np.uint8)
    data = load(write(tmp_path, [((x, np.array([0, 1, 0, 1])), (x[:2].astype(float), [0, 1]))]))
    assert (data.mean, data.std, data.x.dtype) == ((0.0,) * 3, (1.0,) * 3, np.float32)
    np.testing.assert_array_equal(data.x[:4], x)


def test_the_first_clients(tmp_path: Path) -> None:
    folder = write(tmp_path, of_images())
    assert divided(load(folder, first=5)).names == tuple("01234")
    held = divided(load(folder, first=5), held_out=(3, 4))
    assert (held.names, held.new) == (tuple("01234"), (3, 4))
    with pytest.raises(UserError, match="has 12 clients, and `first` asks for 13"):
        load(folder, first=13)


def test_texts_are_tokens(tmp_path: Path) -> None:
    clients = [(texts([2, 1, 0]), texts([1])), (texts([0, 0]), texts([2]))]
    data = load(write(tmp_path / "AGNews", clients))
    assert (data.x.dtype, data.vocabulary, data.x[0].tolist()) == (np.int32, 3, [1, 2, 0, 0])
    assert load(tmp_path / "AGNews", vocabulary=32000).vocabulary == 32000
    with pytest.raises(UserError, match=r"tokens go from 0 to 2; they should be 0 \.\. 1"):
        load(tmp_path / "AGNews", vocabulary=2)


def test_without_config_clients_are_counted(tmp_path: Path) -> None:
    """As of Shakespeare, whose generator writes none and whose tokens have no lengths."""
    clients = [((RNG.integers(0, 80, (3, 80)), np.array([0, 1, 2])), (RNG.integers(0, 80, (1, 80)), np.array([1])))] * 2
    data = load(write(tmp_path, clients, config=False))
    assert (data.shape[0], data.group_names, data.n_train) == (80, ("0", "1"), 6)


def test_sensors_are_series_and_matrices_are_features(tmp_path: Path) -> None:
    sensors = RNG.normal(size=(4, 9, 1, 16))
    data = load(write(tmp_path / "HAR", [((sensors, [0, 1, 0, 1]), (sensors[:1], [0]))]))
    assert (data.shape, data.x.dtype) == ((9, 16), np.float32)
    features = RNG.normal(size=(4, 7)).view(np.matrix)
    data = load(write(tmp_path / "Amazon", [((features, np.array([0, 1, 0, 1])), (features[:1], np.array([0])))]))
    assert data.shape == (7,)


def _left_over(folder: Path) -> None:
    """A folder for six clients, and the files of an earlier one for twelve, of which one was not replaced."""
    earlier = (folder / "train" / "2.npz").read_bytes()
    write(folder, [(images([0, 1, 2]), images([0]))] * 6)
    (folder / "train" / "2.npz").write_bytes(earlier)


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-40])


def _save(folder: Path, **content: Any) -> None:
    np.savez(folder / "train" / "1.npz", data=np.array(content))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (_left_over, r"client 2 has samples by label .* and .* in config.json; are some files of an earlier division"),
        (lambda folder: _cut(folder / "test" / "3.npz"), r"3.npz is damaged, or holds more than arrays"),
        (
            lambda folder: _save(folder, x=np.zeros((2, 1, 6, 6), np.float32), y=[1, 1]),
            r"should hold samples of one shape and type, and holds float32 \(1, 6, 5\) and float32 \(1, 6, 6",
        ),
        (
            lambda folder: _save(folder, x=np.full((2, 1, 6, 5), np.nan, np.float32), y=[1, 1]),
            r"1.npz: 'x' holds NaN or infinite values",
        ),
        (lambda folder: (folder / "test" / "0.npz").unlink(), r"there is no file .*0.npz"),
        (lambda folder: (folder / "config.json").write_text("[]"), "config.json is missing or not as it was published"),
        (lambda folder: np.savez(folder / "train" / "0.npz", data=np.zeros(3)), "'data' is no array of objects"),
        (lambda folder: _save(folder, x=[[1.0]]), "KeyError: 'y'"),
    ],
)
def test_damaged_folders(tmp_path: Path, harm: Any, message: str) -> None:
    harm(write(tmp_path, of_images()))
    with pytest.raises(UserError, match=message):
        load(tmp_path)


class _Touch:
    """An object whose pickle makes a file when it is read."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_in_a_pickle_is_executed(tmp_path: Path, protocol: int) -> None:
    made = tmp_path / "made"
    file = tmp_path / "partition.pkl"
    for content in (_Touch(made), {"data_indices": [{"train": _Touch(made)}]}, np.array([_Touch(made)], object)):
        file.write_bytes(pickle.dumps(content, protocol))
        with pytest.raises(UserError, match="holds more than arrays"):
            read_pickled(file)
    write(tmp_path / "folder", of_images())
    np.savez(tmp_path / "folder" / "train" / "0.npz", data=np.array({"x": _Touch(made), "y": [0]}))
    with pytest.raises(UserError, match="holds more than arrays"):
        load(tmp_path / "folder")
    assert not made.exists()
    pickle.loads(file.read_bytes())  # what it would have done
    assert made.exists()


@pytest.mark.parametrize("text", [b"cnumpy\nload\n(S'x'\ntR.", b"cnumpy.f2py\ncompile\n(S'x'\ntR.", b"garbage", b""])
def test_other_functions_of_numpy_are_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "a.pkl").write_bytes(text)
    with pytest.raises(UserError, match="holds more than arrays"):
        read_pickled(tmp_path / "a.pkl")


ANY = arrays_of.arrays(
    st.one_of(
        arrays_of.integer_dtypes(endianness="?"), arrays_of.unsigned_integer_dtypes(endianness="?"),
        arrays_of.floating_dtypes(endianness="?", sizes=(32, 64)), arrays_of.boolean_dtypes(),
        arrays_of.unicode_string_dtypes(endianness="?", max_len=3),
    ),
    arrays_of.array_shapes(min_dims=1, min_side=0, max_dims=3, max_side=3),
)  # fmt: skip


@given(array=ANY, fortran=st.booleans(), protocol=st.sampled_from([3, 4, 5]))
def test_arrays_come_back_as_they_are(
    tmp_path_factory: pytest.TempPathFactory, array: npt.NDArray[Any], fortran: bool, protocol: int
) -> None:
    if fortran:
        array = np.asfortranarray(array)
    file = tmp_path_factory.getbasetemp() / "array.pkl"
    file.write_bytes(pickle.dumps({"a": array, "twice": [array, (array.ravel()[:1].tolist(), None)]}, protocol))
    content = read_pickled(file)
    for read in (content["a"], content["twice"][0]):
        np.testing.assert_array_equal(read, array)
        assert (np.asarray(read).dtype, np.shape(read)) == (array.dtype, array.shape)


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_numbers_of_numpy_and_arrays_of_lists(tmp_path: Path, protocol: int) -> None:
    nested = np.array([[np.int64(3), None], ["a", 2.5]], dtype=object)
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([np.float32(1.5), nested], protocol))
    number, array = read_pickled(tmp_path / "a.pkl")
    assert (number, array.tolist()) == (1.5, [[3, None], ["a", 2.5]])
