"""A client's bytes do not depend on its lane: with another number of threads, clients are in other lanes."""

import dataclasses
import functools
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from bench.data import Dataset, Partition
from bench.federation.cell_data import load_all
from bench.federation.federation import Federation
from bench.method import METHODS
from bench.settings import Settings
from tests.conftest import ROOT
from tests.engine.problems import METHOD_NAMES, QUICK, needed


@functools.cache
def few(alpha: float, clients: int) -> tuple[Dataset, Partition]:
    """Digits, unequally divided, of which each client has at most 31."""
    data, partition, _ = load_all(Settings(method="fedavg", alpha=alpha, clients=clients))
    return data, dataclasses.replace(partition, train=tuple(samples[:31] for samples in partition.train))


def weights(method: str, threads: int) -> dict[str, torch.Tensor]:
    """The state after two rounds in float32, for a network whose layer sizes are no multiples of the CPU's vector
    length."""
    cell = Settings(
        method=method,
        alpha=0.5,
        clients=13,
        rounds=3,
        model="mlp",
        model_options={"hidden": 37},
        lr=0.05,
        hp=METHODS.get(method).Hyper(**QUICK.get(method, {})).model_dump(),
        **needed(method),
    )
    data, partition = few(cell.alpha or 0.0, cell.clients)
    public = data.subset(np.arange(60), 60)
    federation = Federation(
        cell, dataset=data, partition=partition, public=public, device="cpu", executor="cohort", threads=threads
    )
    for _ in range(2):
        federation.advance()
    return dict(federation.state()[0])


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
