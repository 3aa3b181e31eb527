"""What is refused, with one line, before anything is written."""

import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bench.cluster.connect import remedy
from tests.cluster.nodes import Nodes, can_be_apart
from tests.conftest import ROOT
from tests.runs.conftest import Bench, Grid
from tests.warm import PATIENCE, Start

needs_namespaces = pytest.mark.skipif(not can_be_apart(), reason="needs unshare and its rights")


@pytest.fixture
def refused(bench: Bench, grid: Grid, tmp_path: Path) -> Callable[..., str]:
    """Run a small grid in a way that is refused; returns the one line of the message."""

    def run(*arguments: object, methods: tuple[str, ...] = ("fedavg",)) -> str:
        found = bench(
            "run", "--grid", grid(methods=list(methods)), "--out", tmp_path / "run", "--quiet", *arguments, code=2
        )
        assert found.stderr.count("\n") == 1, found.stderr
        assert not (tmp_path / "run").exists()
        return found.stderr

    return run


@pytest.mark.long
def test_nobody_at_an_address(refused: Callable[..., str]) -> None:
    pytest.importorskip("ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    assert f"--ray {address}: nothing answers there" in refused("--ray", address)


@pytest.mark.parametrize(
    ("text", "remedied"),
    [
        ("Could not find any running Ray instance", "this machine is no node of a cluster"),
        ("no room in /dev/shm", "Ray says: no room in /dev/shm. Its logs are in "),
    ],
)
def test_rays_words_have_a_remedy(text: str, remedied: str) -> None:
    assert remedy(text).startswith(remedied)


@pytest.mark.long
def test_a_gpu_that_no_node_has(refused: Callable[..., str], nodes: Nodes) -> None:
    said = refused("--ray", nodes.address, "--device", "cuda")
    assert "no node of the cluster has 1 CPU and 1 GPU for a cell. There are first (" in said
    assert "1 CPU, 0 GPU" in said


@pytest.mark.long
def test_another_package_or_torch(refused: Callable[..., str], nodes: Nodes, environment: dict[str, str],
                                  tmp_path: Path) -> None:  # fmt: skip
    """One node has a copy of the package with an additional line, another node has another version of torch."""
    copy = tmp_path / "copy"
    for package in ("bench", "methods", "datasets"):
        shutil.copytree(ROOT / package, copy / package)
    (copy / "bench" / "rng.py").write_text((ROOT / "bench" / "rng.py").read_text() + "\nOTHER = 1\n")
    node = nodes.add("changed", environment={"PYTHONPATH": f"{copy}:{environment['PYTHONPATH']}"})
    said = refused("--ray", nodes.address, "--device", "cpu")
    nodes.kill(node)
    assert "node changed (" in said
    assert f"in {copy} has other source files than where the command was given" in said
    info = tmp_path / "old" / "torch-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.0\n", encoding="utf-8")
    node = nodes.add("old", environment={"PYTHONPATH": f"{info.parent}:{environment['PYTHONPATH']}"})
    said = refused("--ray", nodes.address, "--device", "cpu")
    nodes.kill(node)
    assert "node old (" in said
    assert "torch is 1.0, and " in said


@pytest.mark.long
@needs_namespaces
def test_other_data_or_another_plugin(refused: Callable[..., str], nodes: Nodes, arrays: Path, tmp_path: Path) -> None:
    """A node has another file under the name of a file on the command's machine."""
    other, plugins = tmp_path / "other", tmp_path / "plugins"
    other.mkdir()
    plugins.mkdir()
    with np.load(arrays) as found:
        np.savez(other / arrays.name, **{**found, "train_images": found["train_images"][:, ::-1]})
    node = nodes.add("third", (other, arrays.parent))
    said = refused("--ray", nodes.address, "--device", "cpu")
    nodes.kill(node)
    assert "node third (" in said
    assert "data set 'npz' has checksum" in said
    own = (ROOT / "docs" / "examples" / "plugin" / "mine.py").read_text()
    (plugins / "mine.py").write_text(own)
    (other / "mine.py").write_text(own + "\nOTHER = 1\n")
    node = nodes.add("fourth", (other, plugins))
    said = refused("--ray", nodes.address, "--device", "cpu", "--plugin", plugins / "mine.py", methods=("half_fedavg",))
    nodes.kill(node)
    assert "node fourth (" in said
    assert "mine.py is another version than where the command was given" in said


@pytest.mark.long
def test_a_method_of_a_package_that_a_node_lacks(
    fresh: Start, grid: Grid, nodes: Nodes, environment: dict[str, str], tmp_path: Path
) -> None:
    """The package is installed only where the command runs."""
    site = tmp_path / "site"
    info = site / "own-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[bench.methods]\nown = own_methods\n", encoding="utf-8")
    text = "from bench.method import METHODS\nfrom methods.fedavg import FedAvg\n\n\n"
    text += '@METHODS.register("own_method")\nclass Own(FedAvg):\n    pass\n'
    (site / "own_methods.py").write_text(text)
    arguments = ["run", "--grid", str(grid(methods=["own_method"])), "--ray", nodes.address, "--device", "cpu"]
    with fresh(arguments, tmp_path, {"PYTHONPATH": f"{site}:{environment['PYTHONPATH']}"}) as one:
        _, err = one.communicate(timeout=PATIENCE)
    assert one.returncode == 2, err
    assert "node first (" in err
    assert "method 'own_method' is not known here: install its package on this node, too" in err
    assert not (tmp_path / "runs").exists()
