"""A client's bytes do not depend on its lane: with another number of threads, clients are in other lanes."""

import os
import subprocess
import sys

import pytest
import torch

from tests.conftest import ROOT
from tests.engine.problems import METHOD_NAMES, everything, run, toy, toy_data


def weights(method: str, threads: int) -> dict[str, torch.Tensor]:
    """The state after two rounds in float32, for a network whose layer sizes are no multiples of the CPU's vector
    length."""
    federation = toy(
        method,
        data=toy_data(samples=420, features=64, classes=10),
        public=toy_data(samples=60, features=64, classes=10, seed=9),
        sizes=[31, 31, 31, 31, 27, 23, 19, 17, 13, 11, 7, 3, 1],
        model="mlp",
        model_options={"hidden": 37},
        dtype="float32",
        batch_size=50,
        threads=threads,
    )
    run(federation, 2)
    return everything(federation)


@pytest.mark.long
@pytest.mark.parametrize("method", sorted(METHOD_NAMES))
def test_threads_change_no_byte(method: str) -> None:
    """Without `MKL_CBWR` (see `bench/__init__.py`) this failed for every method; for MOON with softplus it failed
    even with it."""
    one, two = weights(method, 1), weights(method, 2)
    assert one.keys() == two.keys()
    assert [name for name in one if not torch.equal(one[name], two[name])] == []


@pytest.mark.long
def test_where_products_were_made_before_the_path_says_so() -> None:
    """MKL reads the variable that `bench` sets only once, at its first product. On some processors lanes agree without
    it: then the path has nothing to say."""
    before = "import torch; torch.ones(5, 5) @ torch.ones(5, 5); "
    then = "from bench.engine.device import cpu_kernels; print('lanes-differ' in cpu_kernels())"
    environment = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    lanes = "import torch; x = torch.linspace(-1, 1, 371).square().repeat(5, 1)[:, :370].view(5, 10, 37); "
    alone = f"{lanes}y = x @ x.transpose(1, 2); print(not bool((y == y[0]).all()))"  # without `bench`
    strict, late, differ = (
        subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True).stdout
        for code in (then, before + then, alone)
    )
    assert strict == "False\n"
    assert late == differ
