"""The official sets of images, from small files in the official on-disk formats.

The MD5 sums and sizes of the real files are replaced by those of the small ones; everything else is as in a real run.
"""

import bz2
import functools
import gzip
import hashlib
import http.server
import pickle
import struct
import tarfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.io import savemat

from bench.errors import UserError
from datasets import organamnist, torchvision_sets
from tests.datasets.helpers import group_of_each, load
from tests.later import Later

official = Later("torchvision.datasets")

Array = npt.NDArray[Any]


def draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def md5(file: Path) -> str:
    return hashlib.md5(file.read_bytes()).hexdigest()


def place_cifar(
    root: Path, monkeypatch: pytest.MonkeyPatch, factory: Any, batches: dict[str, Any], meta: dict[str, Any]
) -> Path:
    """Write batches by their files' names, as old as the official ones: dtype flags are the integers 0 and 1."""
    folder = root / str(factory.base_folder)
    folder.mkdir()
    for name, batch in batches.items():
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2).replace(b"\x89\x88", b"K\x00K\x01"))
    (folder / factory.meta["filename"]).write_bytes(pickle.dumps(meta, protocol=2))
    for part in ("train_list", "test_list"):
        monkeypatch.setattr(factory, part, [[name, md5(folder / name)] for name, _ in getattr(factory, part)])
    monkeypatch.setattr(factory, "meta", {**factory.meta, "md5": md5(folder / factory.meta["filename"])})
    return folder


@pytest.fixture
def cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Array, Array]:
    """Five batches of three pictures and a test batch of four: the folder, pictures `[19, 3, 32, 32]` and labels."""
    x, y = draw(19, 3 * 32 * 32), np.arange(19) % 10
    batches = {}
    for number, (name, _) in enumerate(official.CIFAR10.train_list + official.CIFAR10.test_list):
        rows = slice(3 * number, 3 * number + 3 if number < 5 else 19)
        batches[name] = {"data": x[rows], "labels": y[rows].tolist(), "batch_label": name}
    meta = {"label_names": [f"class {i}" for i in range(10)]}
    return place_cifar(tmp_path, monkeypatch, official.CIFAR10, batches, meta), x.reshape(19, 3, 32, 32), y


def test_cifar10(cifar10: tuple[Path, Array, Array]) -> None:
    folder, x, y = cifar10
    data = load("cifar10", folder.parent)
    np.testing.assert_array_equal(data.x, x)
    assert data.y.tolist() == y.tolist()
    assert (data.name, data.n_train, data.num_classes, data.classes[3]) == ("cifar10", 15, 10, "class 3")
    assert data.mean == (0.4914, 0.4822, 0.4465)
    assert load("cifar10", folder.parent, std=[1.0, 2.0, 3.0]).std == (1.0, 2.0, 3.0)


def test_a_cifar_file_that_is_missing_or_changed_is_named(cifar10: tuple[Path, Array, Array]) -> None:
    folder, _, _ = cifar10
    batch = folder / "data_batch_3"
    content = bytearray(batch.read_bytes())
    content[-20] ^= 1
    batch.write_bytes(content)
    with pytest.raises(UserError, match=r"data_batch_3 has a wrong checksum; add `--download`"):
        load("cifar10", folder.parent)
    batch.unlink()
    with pytest.raises(UserError, match=r"data_batch_3 is missing; add `--download` .* or set `--data-root`"):
        load("cifar10", folder.parent)


def test_download_unpacks_an_archive_that_lies_there(
    cifar10: tuple[Path, Array, Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, x, _ = cifar10
    archive = folder.parent / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, folder.name)
    monkeypatch.setattr(official.CIFAR10, "tgz_md5", md5(archive))
    (folder / "test_batch").unlink()
    np.testing.assert_array_equal(load("cifar10", folder.parent, download=True).x, x)


def test_cifar100_has_the_fine_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, fine = draw(7, 3 * 32 * 32), list(range(90, 97))
    batches = {
        name: {"data": x[rows], "fine_labels": fine[rows], "coarse_labels": [label % 2 for label in fine[rows]]}
        for name, rows in (("train", slice(0, 5)), ("test", slice(5, 7)))
    }
    meta = {"fine_label_names": [f"class {i}" for i in range(100)], "coarse_label_names": ["fish", "trees"]}
    place_cifar(tmp_path, monkeypatch, official.CIFAR100, batches, meta)
    data = load("cifar100", tmp_path)
    assert group_of_each(data) == [("fish", "trees")[y % 2] for y in data.y]
    np.testing.assert_array_equal(data.x, x.reshape(7, 3, 32, 32))
    assert (data.y.tolist(), data.n_train, data.num_classes) == (fine, 5, 100)


def idx(values: Array) -> bytes:
    """LeCun's format: two zero bytes, the type (8: unsigned byte), the number of axes, sizes big endian, values."""
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


def place_idx(root: Path, factory: str, x: Array, y: Array, n_train: int) -> list[Path]:
    """Write images `[n, 28, 28]` and labels as the unpacked files of a set: of its training part, then of its tests."""
    folder = root / factory / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / file.removesuffix(".gz") for file, _ in getattr(official, factory).resources]
    for file, values in zip(files, [x[:n_train], y[:n_train], x[n_train:], y[n_train:]], strict=True):
        file.write_bytes(idx(values))
    return files


def test_mnist_from_its_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = draw(9, 28, 28), (np.arange(9) % 10).astype(np.uint8)
    archives = []
    for file in place_idx(tmp_path, "MNIST", x, y, 6):
        archives.append(file.with_name(f"{file.name}.gz"))
        archives[-1].write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    monkeypatch.setattr(official.MNIST, "resources", [(archive.name, md5(archive)) for archive in archives])
    monkeypatch.setattr(official.MNIST, "mirrors", ["http://127.0.0.1:9/"])
    monkeypatch.setitem(torchvision_sets._SIZES, "mnist", (6, 3))
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte is missing; add `--download`"):
        load("mnist", tmp_path)

    data = load("mnist", tmp_path, download=True)
    np.testing.assert_array_equal(data.x, x[:, None])
    assert data.y.tolist() == y.tolist()
    assert (data.n_train, data.num_classes, data.mean, data.std) == (6, 10, (0.1307,), (0.3081,))

    labels = archives[3].with_suffix("")
    labels.write_bytes(labels.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"t10k-labels-idx1-ubyte has 10 bytes instead of 11; delete it"):
        load("mnist", tmp_path)
    labels.write_bytes(b"x" * 11)
    with pytest.raises(UserError, match=r"mnist: its labels go from 0 to 120, and 10 classes"):
        load("mnist", tmp_path)


def test_an_archive_with_a_wrong_checksum_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    monkeypatch.setattr(official.MNIST, "mirrors", ["http://127.0.0.1:9/"])
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(draw(6, 28, 28))))
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte is missing; the download did not help"):
        load("mnist", tmp_path, download=True)


@pytest.mark.parametrize(("split", "classes"), [("balanced", 47), ("byclass", 62)])
def test_emnist_is_upright(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str, classes: int) -> None:
    upright = np.zeros((5, 28, 28), np.uint8)
    upright[:, 2, 3:25] = 255  # a horizontal bar near the upper edge
    y = np.arange(classes - 5, classes).astype(np.uint8)
    folder = tmp_path / "EMNIST" / "raw"
    folder.mkdir(parents=True)
    for part, rows in (("train", slice(0, 3)), ("test", slice(3, 5))):
        stored = np.ascontiguousarray(upright[rows].swapaxes(1, 2))
        (folder / f"emnist-{split}-{part}-images-idx3-ubyte").write_bytes(idx(stored))
        (folder / f"emnist-{split}-{part}-labels-idx1-ubyte").write_bytes(idx(y[rows]))
    monkeypatch.setitem(torchvision_sets._SIZES, f"emnist-{split}", (3, 2))
    data = load("emnist", tmp_path, split=split)
    np.testing.assert_array_equal(data.x[:, 0], upright)
    assert data.y.tolist() == y.tolist()
    assert (data.name, data.n_train, data.num_classes) == (f"emnist-{split}", 3, classes)


@pytest.mark.parametrize(("name", "factory"), [("fashion_mnist", "FashionMNIST"), ("kmnist", "KMNIST")])
def test_sets_in_the_format_of_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, factory: str) -> None:
    """In folders of their own: one is never read for the other."""
    x, y = draw(9, 28, 28), (np.arange(9) % 10).astype(np.uint8)
    place_idx(tmp_path, factory, x, y, 6)
    monkeypatch.setitem(torchvision_sets._SIZES, name, (6, 3))
    data = load(name, tmp_path)
    np.testing.assert_array_equal(data.x, x[:, None])
    assert data.y.tolist() == y.tolist()
    assert (data.name, data.n_train, data.num_classes, data.mean, data.std) == (
        name,
        6,
        10,
        *torchvision_sets._KNOWN[name],
    )
    assert len(set(data.classes)) == 10
    with pytest.raises(UserError, match=r"mnist: .*ubyte is missing; add `--download`"):
        load("mnist", tmp_path)


def test_files_of_another_set_are_refused_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By checksum; and another split of a set, whose checksums nobody knows, by the mean of its pixels. What is neither
    is read with a note."""
    monkeypatch.setitem(torchvision_sets._SIZES, "fashion_mnist", (6, 3))
    y = (np.arange(9) % 10).astype(np.uint8)
    files = place_idx(tmp_path, "FashionMNIST", draw(9, 28, 28), y, 6)
    sums = tuple(md5(file) for file in files)
    (note,) = load("fashion_mnist", tmp_path).notes
    assert f"files in {files[0].parent} are not the published ones" in note
    monkeypatch.setitem(torchvision_sets._UNPACKED, "fashion_mnist", sums)
    assert load("fashion_mnist", tmp_path).notes == ()
    monkeypatch.setitem(torchvision_sets._UNPACKED, "fashion_mnist", ("another", *sums[1:]))
    monkeypatch.setitem(torchvision_sets._UNPACKED, "mnist", (sums[0], "c", "d", "e"))
    with pytest.raises(UserError, match=r"fashion_mnist: files in .*FashionMNIST.* are those of mnist, by their check"):
        load("fashion_mnist", tmp_path)

    bright = np.zeros((9, 28, 28), np.uint8)
    bright.reshape(9, -1)[:, :117] = 223  # mean 0.1305 and standard deviation 0.3114 in units of 255
    place_idx(tmp_path, "FashionMNIST", bright, y, 6)
    with pytest.raises(UserError, match=r"are those of mnist, .*mean 0\.1305; put those of fashion_mnist"):
        load("fashion_mnist", tmp_path)
    monkeypatch.setitem(torchvision_sets._SIZES, "mnist", (6, 3))
    place_idx(tmp_path, "MNIST", bright, y[::-1], 6)
    assert "not the published ones" in load("mnist", tmp_path).notes[0]


def test_usps_in_its_text_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels from 1, and 256 values from -1 to 1, each after its number and a colon."""
    x = draw(7, 16, 16)
    split_list = {}
    for part, rows in (("train", range(5)), ("test", range(5, 7))):
        file = tmp_path / official.USPS.split_list[part][1]
        lines = [
            f"{row + 1} " + " ".join(f"{k + 1}:{2 * v / 255 - 1:.6f}" for k, v in enumerate(x[row].ravel().tolist()))
            for row in rows
        ]
        file.write_bytes(bz2.compress("\n".join(lines).encode()))
        split_list[part] = ["http://127.0.0.1:9/", file.name, md5(file)]
    monkeypatch.setattr(official.USPS, "split_list", split_list)
    data = load("usps", tmp_path)
    assert np.abs(data.x[:, 0].astype(int) - x).max() <= 1  # torchvision truncates
    assert data.y.tolist() == list(range(7))
    assert (data.n_train, data.num_classes, data.shape) == (5, 10, (1, 16, 16))
    with (tmp_path / "usps.t.bz2").open("ab") as file:
        file.write(bz2.compress(b"\n"))
    with pytest.raises(UserError, match=r"usps\.t\.bz2 has a wrong checksum; add `--download`"):
        load("usps", tmp_path)
    (tmp_path / "usps.t.bz2").unlink()
    with pytest.raises(UserError, match=r"usps\.t\.bz2 is missing; add `--download`"):
        load("usps", tmp_path)


def test_svhn_in_matlab_s_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Channels before samples, and 10 for the digit 0."""
    x, y = draw(7, 32, 32, 3), np.array([10, 1, 2, 9, 10, 3, 4])
    split_list = dict(official.SVHN.split_list)
    for part, rows in (("train", slice(0, 5)), ("test", slice(5, 7))):
        file = tmp_path / official.SVHN.split_list[part][1]
        savemat(file, {"X": x[rows].transpose(1, 2, 3, 0), "y": y[rows, None]})
        split_list[part] = ["http://127.0.0.1:9/", file.name, md5(file)]
    monkeypatch.setattr(official.SVHN, "split_list", split_list)
    data = load("svhn", tmp_path)
    np.testing.assert_array_equal(data.x, x.transpose(0, 3, 1, 2))
    assert data.y.tolist() == [0, 1, 2, 9, 0, 3, 4]
    assert (data.n_train, data.num_classes) == (5, 10)
    (tmp_path / "test_32x32.mat").write_bytes(b"x")
    with pytest.raises(UserError, match=r"svhn: .*test_32x32\.mat has a wrong checksum"):
        load("svhn", tmp_path)


def test_stl10_by_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files hold columns first and labels from 1; the unlabelled part need not be there."""
    folder = tmp_path / official.STL10.base_folder
    folder.mkdir()
    x, y = draw(3, 3, 96, 96), np.array([1, 10, 2], np.uint8)
    lists: dict[str, list[list[str]]] = {}
    for part, rows in (("train", slice(0, 2)), ("test", slice(2, 3))):
        x[rows].swapaxes(2, 3).tofile(folder / f"{part}_X.bin")
        y[rows].tofile(folder / f"{part}_y.bin")
        lists[part] = [[name, md5(folder / name)] for name in (f"{part}_X.bin", f"{part}_y.bin")]
    monkeypatch.setattr(official.STL10, "train_list", [*lists["train"], ["unlabeled_X.bin", "0"]])
    monkeypatch.setattr(official.STL10, "test_list", lists["test"])
    data = load("stl10", tmp_path)
    np.testing.assert_array_equal(data.x, x)
    assert (data.y.tolist(), data.n_train, data.classes[9]) == ([0, 9, 1], 2, "truck")
    (folder / "test_y.bin").write_bytes(b"x")
    with pytest.raises(UserError, match=r"stl10: .*test_y\.bin has a wrong checksum"):
        load("stl10", tmp_path)


@pytest.fixture
def slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in MedMNIST's format of twelve, three and five slices: grey images `[n, 28, 28]`, labels `[n, 1]`."""
    rng = np.random.default_rng(0)
    arrays = {}
    for part, n in {"train": 12, "val": 3, "test": 5}.items():
        arrays[f"{part}_images"] = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        arrays[f"{part}_labels"] = (np.arange(n) % 11)[:, None].astype(np.uint8)
    file = tmp_path / "organamnist.npz"
    np.savez(file, **arrays)
    monkeypatch.setattr(organamnist, "MD5", md5(file))
    return file


def test_organamnist_s_validation_part_joins_training(slices: Path) -> None:
    data = load("organamnist", slices.parent)
    assert (data.name, data.n_train, data.num_classes, data.shape) == ("organamnist", 15, 11, (1, 28, 28))
    assert data.classes[10] == "spleen"
    assert data.y.tolist() == [*range(11), 0, *range(3), *range(5)]
    with np.load(slices) as arrays:
        np.testing.assert_array_equal(data.x[12:15, 0], arrays["val_images"])
    assert (data.mean, data.std) == ((0.5,), (0.5,))  # inputs in [-1, 1]


def test_an_organamnist_file_that_is_missing_or_changed_is_named(slices: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(organamnist, "MD5", "0" * 32)
    with pytest.raises(UserError, match=r"organamnist\.npz has a wrong checksum; add `--download` .* `--data-root`"):
        load("organamnist", slices.parent)
    slices.unlink()
    with pytest.raises(UserError, match=r"organamnist\.npz is missing; add `--download`"):
        load("organamnist", slices.parent)
    monkeypatch.setattr(organamnist, "URL", "http://127.0.0.1:9/organamnist.npz")  # nobody listens
    with pytest.raises(UserError, match=r"organamnist\.npz is missing; the download did not help \(.+\)"):
        load("organamnist", slices.parent, download=True)


def test_organamnist_is_downloaded(slices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(slices.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        monkeypatch.setattr(organamnist, "URL", f"http://127.0.0.1:{server.server_port}/organamnist.npz?download=1")
        elsewhere = tmp_path / "elsewhere"
        assert load("organamnist", elsewhere, download=True).checksum == load("organamnist", slices.parent).checksum
        server.shutdown()
    assert (elsewhere / "organamnist.npz").read_bytes() == slices.read_bytes()
