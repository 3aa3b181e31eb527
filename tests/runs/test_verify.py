"""`bench verify` accepts an unchanged run, and names the cell of any change."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from bench.results.results import load_run
from bench.store import store
from tests.runs.conftest import COMMON, Bench
from tests.warm import Start

METHODS = ["fedavg", "ditto", "local", "scaled"]
pytestmark = pytest.mark.long

METHOD = '''"""FedAvg whose uploads are scaled."""
from bench.method import METHODS, Hyperparameters, Method, Train, Upload, cross_entropy, hp


@METHODS.register("scaled")
class Scaled(Method):
    """FedAvg with a factor."""

    class Hyper(Hyperparameters):
        factor: float = hp(1.0)

    mean_of = ("model",)

    def client_round(self, client, down):
        trained = yield Train({"w": down["model"]}, loss=cross_entropy)
        yield Upload({"model": trained["w"]}, weight=client.n_train * self.hp.factor)
        return trained["w"]
'''


@pytest.fixture(scope="module")
def made(start_in: Start, arrays: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plug-in, and a run with four methods, one of them from the plug-in."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "scaled.py").write_text(METHOD, encoding="utf-8")
    data = {"name": "npz", "path": str(arrays), "label": "blobs"}
    grid = {**COMMON, "methods": METHODS, "plugins": ["scaled.py"], "datasets": [data], "alphas": [1.0], "seeds": [0]}
    (folder / "small.yaml").write_text(yaml.safe_dump({**grid, "rounds": 3}), encoding="utf-8")
    with start_in(["run", "--grid", "small.yaml", "--out", "run", "--quiet"], folder) as process:
        assert process.wait(120) == 0
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy of the run, with the plug-in next to it."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path / "run"


def folder_of(run: Path, label: str) -> Path:
    return next(cell.folder for cell in load_run(run).cells if cell.label == label)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def change_a_digit(folder: Path, name: str) -> None:
    """Change the last digit of a table and adjust the checksum, as a deliberate forger would."""
    table = folder / f"{name}.csv"
    text = table.read_text(encoding="utf-8").rstrip("\n")
    table.write_text(f"{text[:-1]}{(int(text[-1]) + 1) % 10}\n", encoding="utf-8")
    status = json.loads((folder / "status.json").read_text(encoding="utf-8"))
    status["checksums"][name] = store.checksum(table)
    store.write_json(folder / "status.json", status)


def test_a_run_and_its_packed_form_verify(run: Path, bench: Bench) -> None:
    out = bench("verify", run, "--cells", "9", "--seed", "1", "--plugin", "scaled.py").stdout
    assert out.count("the same bytes") == 4
    bench("pack", run, "--out", "one.tar.xz")
    bench("pack", run, "--out", "two.tar.xz")
    first, second = (run.with_name(name).read_bytes() for name in ("one.tar.xz", "two.tar.xz"))
    assert first == second
    shutil.rmtree(run)
    both = bench("verify", "one.tar.xz", "two.tar.xz", "--cells", "2", "--plugin", "scaled.py").stdout
    assert "8 cells, 2 computed again" in both  # the cells are drawn over all runs
    bench("unpack", "one.tar.xz", "again")
    assert "fedavg" in bench("results", "again").stdout


@pytest.mark.parametrize("name", ["metrics", "clients", "ledger", "work"])
def test_one_changed_digit_is_found(run: Path, bench: Bench, name: str) -> None:
    folder = folder_of(run, "ditto")
    change_a_digit(folder, name)
    out = bench("verify", run, "--cells", "9", "--plugin", "scaled.py", code=1).stdout
    wrong = [line for line in out.splitlines() if line.startswith("WRONG")]
    assert len(wrong) == 1
    assert folder.name in wrong[0]
    assert f"{name}.csv, line" in wrong[0]


def test_a_changed_default_is_found(run: Path, bench: Bench, tmp_path: Path) -> None:
    edit(tmp_path / "scaled.py", "hp(1.0)", "hp(2.0)")
    out = bench("verify", run, "--cells", "0", "--plugin", "scaled.py", code=1).stdout
    assert f"WRONG {folder_of(run, 'scaled').name}" in out
    assert "method's code" in out


def test_other_data_are_found(run: Path, bench: Bench, arrays: Path) -> None:
    before = arrays.read_bytes()
    try:
        arrays.write_bytes(before + b" ")
        out = bench("verify", run, "--cells", "0", "--plugin", "scaled.py", code=1).stdout
    finally:
        arrays.write_bytes(before)
    assert out.count("WRONG") == 4


def test_what_cannot_be_verified_is_said_in_one_line(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "garbage.tar.xz").write_bytes(b"no archive")
    assert "is not a packed run" in bench("verify", "garbage.tar.xz", code=2).stderr
    assert "has no run.json" in bench("verify", ".", code=2).stderr
    assert "has no run.json" in bench("pack", ".", code=2).stderr
