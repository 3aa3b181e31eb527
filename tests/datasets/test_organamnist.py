"""`organamnist` from a small file in MedMNIST's format; the checksum is that of the small file."""

import functools
import hashlib
import http.server
import threading
from pathlib import Path

import numpy as np
import pytest

from bench.errors import UserError
from datasets import organamnist
from tests.datasets.helpers import load


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve, three and five slices: grey images `[n, 28, 28]`, labels `[n, 1]`."""
    rng = np.random.default_rng(0)
    arrays = {}
    for part, n in {"train": 12, "val": 3, "test": 5}.items():
        arrays[f"{part}_images"] = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        arrays[f"{part}_labels"] = (np.arange(n) % 11)[:, None].astype(np.uint8)
    file = tmp_path / "organamnist.npz"
    np.savez(file, **arrays)
    monkeypatch.setattr(organamnist, "MD5", hashlib.md5(file.read_bytes()).hexdigest())
    return file


def test_validation_joins_training(file: Path) -> None:
    data = load("organamnist", file.parent)
    assert (data.name, data.n_train, data.num_classes, data.shape) == ("organamnist", 15, 11, (1, 28, 28))
    assert data.classes[10] == "spleen"
    assert data.y.tolist() == [*range(11), 0, *range(3), *range(5)]
    with np.load(file) as arrays:
        np.testing.assert_array_equal(data.x[12:15, 0], arrays["val_images"])
    assert (data.mean, data.std) == ((0.5,), (0.5,))  # inputs in [-1, 1]


def test_a_file_that_is_missing_or_changed_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(organamnist, "MD5", "0" * 32)
    with pytest.raises(UserError, match=r"organamnist\.npz has a wrong checksum; add `--download` .* `--data-root`"):
        load("organamnist", file.parent)
    file.unlink()
    with pytest.raises(UserError, match=r"organamnist\.npz is missing; add `--download`"):
        load("organamnist", file.parent)
    monkeypatch.setattr(organamnist, "URL", "http://127.0.0.1:9/organamnist.npz")  # nobody listens
    with pytest.raises(UserError, match=r"organamnist\.npz is missing; the download did not help \(.+\)"):
        load("organamnist", file.parent, download=True)


def test_download(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(file.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        monkeypatch.setattr(organamnist, "URL", f"http://127.0.0.1:{server.server_port}/organamnist.npz?download=1")
        elsewhere = tmp_path / "elsewhere"
        assert load("organamnist", elsewhere, download=True).checksum == load("organamnist", file.parent).checksum
        server.shutdown()
    assert (elsewhere / "organamnist.npz").read_bytes() == file.read_bytes()
