"""Files of features: shared by the cells of a run, checked by their content, and removed when no cell uses them."""

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.data import Array
from bench.results.results import load_run
from bench.store.features import FeatureFiles, unused_files
from tests.runs.conftest import Bench, Grid
from tests.runs.helpers import cells

FEATURES = np.arange(6.0).reshape(3, 2)


class Computing:
    """Computes features, and counts how often."""

    def __init__(self, values: Array = FEATURES) -> None:
        self.values = values
        self.calls = 0

    def __call__(self) -> Array:
        self.calls += 1
        return self.values.copy()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda file: file.write_bytes(b""),
    "no array": lambda file: file.write_bytes(b"no array"),
    "shortened": lambda file: file.write_bytes(file.read_bytes()[:-8]),
    "pickled": lambda file: file.write_bytes(pickle.dumps(1)),
    "other values": lambda file: np.save(file, FEATURES + 1),
    "a flipped bit": lambda file: file.write_bytes(file.read_bytes()[:-1] + bytes([file.read_bytes()[-1] ^ 1])),
    "another type": lambda file: np.save(file, FEATURES.astype(np.float32)),
    "of another key": lambda file: shutil.copyfile(file.with_name("other.npy"), file),
    "of another key, with its lock": lambda file: [
        shutil.copyfile(file.with_name(f"other.{kind}"), file.with_suffix(f".{kind}")) for kind in ("npy", "lock")
    ],
    "another digest": lambda file: file.with_suffix(".lock").write_bytes(b"\xff\x00\n"),
    "no digest": lambda file: file.with_suffix(".lock").write_bytes(b"\n\n"),
    "no lock": lambda file: file.with_suffix(".lock").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_exchanged_file_is_named_and_made_again(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shelf, compute = FeatureFiles(tmp_path / "cell"), Computing()
    for _ in range(2):
        assert np.array_equal(shelf("key", (3, 2), compute), FEATURES)
    shelf("other", (3, 2), Computing(-FEATURES))
    assert compute.calls == 1
    assert not caplog.records
    DAMAGES[damage](tmp_path / "features" / "key.npy")
    for _ in range(2):
        assert np.array_equal(shelf("key", (3, 2), compute), FEATURES)
    assert compute.calls == 2
    known = damage not in ("no digest", "no lock")  # else there was no file, for all that is known
    said = [str(tmp_path / "features" / "key.npy") in record.getMessage() for record in caplog.records]
    assert said == [True] * known


def test_a_view_is_no_way_to_the_file(tmp_path: Path) -> None:
    shelf, compute = FeatureFiles(tmp_path / "cell"), Computing()
    shelf("key", (3, 2), compute)[:] = 0
    assert np.array_equal(shelf("key", (3, 2), compute), FEATURES)
    assert compute.calls == 1


def test_a_folder_that_cannot_be_made_keeps_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As in a run folder that may only be read."""
    (tmp_path / "features").write_text("no folder")
    compute = Computing()
    assert np.array_equal(FeatureFiles(tmp_path / "cell")("key", (3, 2), compute), FEATURES)
    assert "features are kept in memory" in caplog.text


def test_files_are_unused_when_all_of_their_cells_are_gone(tmp_path: Path) -> None:
    for cell, key in (("a", "of_a"), ("a", "of_both"), ("b", "of_both"), ("a", "of_both")):
        FeatureFiles(tmp_path / cell)(key, (3, 2), Computing())
    (tmp_path / "features" / "earlier.lock").touch()
    (tmp_path / "features" / "earlier.npy").touch()

    earlier, of_a = ["earlier.lock", "earlier.npy"], ["of_a.lock", "of_a.npy"]
    for used, unused in (("a", earlier), ("ab", earlier), ("b", [*earlier, *of_a]),
                         ("c", [*earlier, *of_a, "of_both.lock", "of_both.npy"])):  # fmt: skip
        assert [file.name for file in unused_files(tmp_path, list(used))] == unused
    assert unused_files(tmp_path / "nowhere", []) == []


@pytest.mark.long
def test_features_of_removed_cells_are_removed(bench_here: Bench, grid: Grid, tmp_path: Path) -> None:
    """Cells of another seed have another body; a cell without frozen layers has no features at all."""
    run = tmp_path / "run"
    common = ("run", "--out", run, "--device", "cpu", "--jobs", 1, "--quiet")
    frozen = {"methods": ["fedavg"], "rounds": 1, "model": "mlp", "frozen": ["body"]}
    bench_here(*common, "--grid", grid(**frozen, seeds=[0, 1]))
    files = {file.name for file in (run / "features").iterdir()}
    assert len(files) == 4
    bench_here(*common, "--grid", grid(**frozen, seeds=[1]))
    assert "1 cells and 2 files of features would be removed" in bench_here("clean", run).stdout
    assert {file.name for file in (run / "features").iterdir()} == files
    assert "1 cells and 2 files of features removed" in bench_here("clean", run, "--yes").stdout
    assert len(list((run / "features").iterdir())) == 2
    bench_here(*common, "--grid", grid(methods=["fedavg"], rounds=1, model="mlp"))
    bench_here("clean", run, "--yes")
    assert [folder.name for folder in run.iterdir() if folder.is_dir()] == [cells(run)["fedavg"].id]
    assert "nothing to remove" in bench_here("clean", run).stdout


@pytest.mark.long
def test_kept_models_take_the_files_of_their_run(
    bench_here: Bench, grid: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cell.model()` and `bench evaluate` send no sample of the cell through the body again."""
    run = tmp_path / "run"
    file = grid(methods=["fedavg"], rounds=1, model="mlp", frozen=["body"])
    bench_here("run", "--grid", file, "--out", run, "--device", "cpu", "--jobs", 1, "--quiet", "--keep", "best")
    (cell,) = load_run(run).cells
    (kept,) = (run / "features").glob("*.npy")
    before = kept.stat().st_mtime_ns, kept.stat().st_ino
    pictures = list[int]()
    linear = torch.nn.functional.linear

    def counted(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        pictures.append(len(x) if len(x) > 1 and x.shape[1] == 6 * 6 else 0)  # one alone tries the shapes
        return linear(x, *weights)

    monkeypatch.setattr(torch.nn.functional, "linear", counted)
    cell.model(data_root=tmp_path)
    assert sum(pictures) == 0
    bench_here("evaluate", run, "--tests", "global", "--device", "cpu", "--quiet")
    assert sum(pictures) == 60  # the test's own
    assert (kept.stat().st_mtime_ns, kept.stat().st_ino) == before


def test_other_code_of_the_user_has_other_files(tmp_path: Path) -> None:
    """An own model whose code changed computes other features of the same values and samples."""
    first, second = Computing(), Computing(-FEATURES)
    for code, compute in ((["1"], first), (["2"], second), (["1"], first)):
        shelf = FeatureFiles(tmp_path / "cell", code)
        assert np.array_equal(shelf("key", (3, 2), compute), compute.values)
    assert (first.calls, second.calls) == (1, 1)


@pytest.mark.long
def test_a_run_s_features_are_of_the_model_as_it_is(tmp_path: Path, bench: Bench) -> None:
    """After the body of an own model was edited, a run in the same folder has the scores of a run in a new one."""
    plugin, grid = tmp_path / "mine.py", tmp_path / "grid.yaml"
    code = """
from torch import nn
from bench.plugin import MODELS
@MODELS.register("scaled")
class Scaled(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.body = nn.Linear(64, 8)
        self.head = nn.Linear(8, classes)
    def features(self, x):
        return SCALE * self.body(x.flatten(1))
    def forward(self, x):
        return self.head(self.features(x))
"""
    grid.write_text(
        "{methods: [fedavg], datasets: [{name: digits}], alphas: [1.0], seeds: [0], clients: 4, rounds: 1,"
        " model: scaled, frozen: [body]}",
        encoding="utf-8",
    )
    for scale, run in ((3, "run"), (0.1, "run"), (0.1, "new")):
        plugin.write_text(code.replace("SCALE", str(scale)), encoding="utf-8")
        bench("run", "--grid", grid, "--plugin", plugin, "--out", tmp_path / run, "--device", "cpu", "--fresh")
    (new,) = (tmp_path / "new").glob("*/metrics.csv")
    assert (tmp_path / "run" / new.parent.name / new.name).read_bytes() == new.read_bytes()
