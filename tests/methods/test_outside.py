"""Ours against rounds that public libraries computed, in float64 from the same start.

tests/methods/outside has the numbers: numbers.json is what compute.py makes of FedLab, Flower and FedJAX; pfllib.json
and pgfed.json are what the code of PFLlib and of PGFed's authors came to, with how it was called.
"""

import json
import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bench.data import Dataset, Partition
from bench.federation.federation import Federation
from bench.method import Message
from bench.models.network import Network
from bench.plugin import MODELS
from bench.settings import Settings
from methods.server_rules import AsyncHyper, FedAsync
from tests.conftest import ROOT
from tests.engine.problems import generic, personal

FOLDER = Path(__file__).parent / "outside"
NAMES = ["numbers.json", "pfllib.json", "pgfed.json"]
FILES = [json.loads((FOLDER / name).read_text(encoding="utf-8")) for name in NAMES]
PROBLEM = FILES[0]["problem"]
NUMBERS = {name: one for file in FILES for name, one in file.items() if "library" in one}
STARTS = [torch.tensor(start, dtype=torch.float64) for start in PROBLEM["starts"]]
ROUNDS = NUMBERS.keys() - {"fedasync", "hypcluster"}


def of_the_file(layer: nn.Module, name: str, _: np.random.Generator) -> np.ndarray:
    """The initial values of a layer: its part of the first start, which is known by its shape."""
    hidden, classes, features = PROBLEM["hidden"], PROBLEM["classes"], len(PROBLEM["x"][0])
    shapes = [(hidden, features), (hidden,), (classes, hidden), (classes,)]
    cuts = np.cumsum([np.prod(shape) for shape in shapes])[:-1]
    parts = dict(zip(shapes, np.split(STARTS[0].numpy(), cuts), strict=True))
    shape = tuple(layer.get_parameter(name).shape)
    return parts[shape].reshape(shape)


class Outside(Network):
    """A net with ReLU and biases that begins where theirs did."""

    rules: ClassVar[Any] = {nn.Linear: of_the_file}


@MODELS.register("test_outside")
def outside(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Their network."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(shape[0], PROBLEM["hidden"]), nn.ReLU())
    return Outside(body, nn.Linear(PROBLEM["hidden"], classes))


def federation(method: str, hp: dict[str, Any]) -> Federation:
    """Their problem: full batches, so that nothing is drawn at random."""
    sizes, x, y = PROBLEM["sizes"], np.array(PROBLEM["x"], np.float32), np.array(PROBLEM["y"])
    data = Dataset("outside", x, y, len(y), PROBLEM["classes"], (0.0,) * x.shape[1], (1.0,) * x.shape[1], "outside")
    train = tuple(np.split(np.arange(len(y)), np.cumsum(sizes)[:-1]))
    none = (np.zeros(0, np.int64),) * len(train)
    settings = Settings(
        method=method, hp=hp, model="test_outside", dtype="float64", clients=len(train), epochs=PROBLEM["steps"],
        batch_size=max(sizes), lr=PROBLEM["lr"], momentum=0.0, rounds=PROBLEM["rounds"],
    )  # fmt: skip
    return Federation(settings, dataset=data, partition=Partition(train, none, train, np.arange(len(y))), public=None)


def near(found: Tensor, expected: Any) -> None:
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", sorted(ROUNDS))
def test_rounds_of_a_library(name: str) -> None:
    """Three rounds of all clients: models, FedDBE's personal means, PGFed's coefficients, the models of FedCross."""
    theirs = NUMBERS[name]
    ours = federation(theirs.get("method", name), theirs["hp"])
    for _ in range(PROBLEM["rounds"]):
        ours.advance()
    if "gm" in theirs:
        near(generic(ours), theirs["gm"])
    for i, expected in enumerate(theirs.get("pm", [])):
        near(personal(ours)[i], expected)
    for i, expected in enumerate(theirs.get("means", [])):
        near(ours.clients[i].state["mean"], expected)
    """Three rounds of all clients: models, FedDBE's personal means, PGFed's coefficients, the models of FedCross."""


def test_arrivals_at_the_server_of_fedasync() -> None:
    """Uploads that are 0, 1, 1 and 3 versions old."""
    theirs, w = NUMBERS["fedasync"], STARTS[0]
    for version, (which, downloaded) in enumerate(theirs["arrivals"]):
        upload = Message(0, {"model": STARTS[which]}, 1.0, 0, staleness=version - downloaded)
        w = FedAsync(AsyncHyper(**theirs["hp"])).combine(w, [upload], "model")
    near(w, theirs["gm"])


def test_clusters_of_fedjax() -> None:
    """Three models from their starts: who chooses which, and what becomes of them; nobody chooses the first."""
    theirs = NUMBERS["hypcluster"]
    ours = federation("hypcluster", theirs["hp"])
    for k, start in enumerate(STARTS):
        ours.server.state[f"model{k}"] = ours.server.state["model0"].with_weights(start)
    for _ in range(PROBLEM["rounds"]):
        ours.advance()
    for k, expected in enumerate(theirs["models"]):
        near(ours.server.state[f"model{k}"].weights, expected)
    assert {model for choices in theirs["choices"] for model in choices} == {1, 2}


def test_the_audit_names_the_library() -> None:
    page = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
    names = {"flwr": "Flower", "fedlab": "FedLab", "fedjax": "FedJAX"}
    for name, theirs in NUMBERS.items():
        row = re.search(rf"^\| `{theirs.get('method', name)}` \|.*$", page, re.M)
        assert row
        assert names.get(theirs["library"], theirs["library"]) in row[0].split("|")[6]
