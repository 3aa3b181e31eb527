"""Ours against rounds that public libraries computed, in float64 from the same start.

tests/methods/outside has the numbers: numbers.json is what compute.py makes of FedLab, Flower and FedJAX; the other
files are what the code of PFLlib, HtFLlib and the authors of FedAP, FLoRA and PGFed came to, with how it was called.
The rounds of three methods that no library has as their paper says are computed here, in NumPy.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor, nn

from bench.data import Dataset, Partition
from bench.federation.federation import Federation
from bench.method import Message
from bench.models.network import Network
from bench.params import Params
from bench.plugin import MODELS
from bench.settings import Settings
from methods.server_rules import AsyncHyper, FedAsync
from tests.conftest import ROOT
from tests.engine.problems import generic, personal
from tests.methods.reference import Array

FOLDER = Path(__file__).parent / "outside"
NAMES = ["numbers.json", "fedap.json", "flora.json", "htfllib.json", "pfllib.json", "pgfed.json"]
FILES = [json.loads((FOLDER / name).read_text(encoding="utf-8")) for name in NAMES]
PROBLEM = FILES[0]["problem"]
NUMBERS = {name: one for file in FILES for name, one in file.items() if "library" in one}
STARTS = [torch.tensor(start, dtype=torch.float64) for start in PROBLEM["starts"]]
ROUNDS = NUMBERS.keys() - {"fedasync", "hypcluster"}
COMPARED = {"gm", "pm", "means", "running", "models", "coefficients", "relations", "state", "tensors"}
CALLED = {"library", "method", "hp", "settings", "start", "client_start", "as_it_is", "drawn"}
"""How a library was called, and what its code computes where we differ on purpose."""


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


@MODELS.register("test_outside_norm")
def outside_norm(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Their network with BatchNorm."""
    hidden = PROBLEM["hidden"]
    body = nn.Sequential(nn.Flatten(), nn.Linear(shape[0], hidden), nn.BatchNorm1d(hidden), nn.ReLU())
    return Outside(body, nn.Linear(hidden, classes))


def federation(method: str, hp: dict[str, Any], **changes: Any) -> Federation:
    """Their problem: full batches, so that nothing is drawn at random."""
    sizes, x, y = PROBLEM["sizes"], np.array(PROBLEM["x"], np.float32), np.array(PROBLEM["y"])
    data = Dataset("outside", x, y, len(y), PROBLEM["classes"], (0.0,) * x.shape[1], (1.0,) * x.shape[1], "outside")
    train = tuple(np.split(np.arange(len(y)), np.cumsum(sizes)[:-1]))
    none = (np.zeros(0, np.int64),) * len(train)
    chosen: dict[str, Any] = {
        "model": "test_outside", "dtype": "float64", "clients": len(train), "epochs": PROBLEM["steps"],
        "batch_size": max(sizes), "lr": PROBLEM["lr"], "momentum": 0.0, "rounds": PROBLEM["rounds"], **changes,
    }  # fmt: skip
    settings = Settings(method=method, hp=hp, **chosen)
    return Federation(settings, dataset=data, partition=Partition(train, none, train, np.arange(len(y))), public=None)


def near(found: Tensor, expected: Any) -> None:
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", sorted(ROUNDS))
def test_rounds_of_a_library(name: str) -> None:
    """Three rounds of all clients: models, FedDBE's personal means, FedAP's shares and running statistics,
    FedL2G's vectors, FedCross's models, PGFed's coefficients."""
    theirs = NUMBERS[name]
    assert theirs.keys() <= COMPARED | CALLED
    ours = federation(theirs.get("method", name), theirs["hp"], **theirs.get("settings", {}))
    for entry, start in theirs.get("start", {}).items():
        ours.server.state[entry] = torch.tensor(start, dtype=torch.float64)
    for entry, start in theirs.get("client_start", {}).items():
        for i in ours.clients.ids:
            state, value = ours.clients[i].state, torch.tensor(start, dtype=torch.float64)
            state[entry] = state[entry].with_weights(value) if isinstance(state[entry], Params) else value
    for _ in range(PROBLEM["rounds"]):
        ours.advance()
    if "gm" in theirs:
        near(generic(ours), theirs["gm"])
    for i, expected in enumerate(theirs.get("pm", [])):
        near(personal(ours)[i], expected)
    for i, expected in enumerate(theirs.get("means", [])):
        near(ours.clients[i].state["mean"], expected)
    for i, expected in enumerate(theirs.get("running", [])):
        near(ours.clients[i].state["norm"].buffers, expected)
    for w, expected in zip(ours.server.state["models"], theirs["models"], strict=True) if "models" in theirs else ():
        near(w.weights, expected)
    if "coefficients" in theirs:
        near(ours.method.relations(ours.server)["coefficients"], theirs["coefficients"])
    for relation, expected in theirs.get("relations", {}).items():
        near(ours.method.relations(ours.server)[relation], expected)
    for entry, expected in theirs.get("state", {}).items():
        near(ours.server.state[entry], expected)
    for tensor, expected in theirs.get("tensors", {}).items():
        near(ours.server.state["model"].tensors()[tensor], expected)


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


# Methods that no public library has as their paper says, by their equations once more: in numpy, with slopes by complex
# steps and relations by scipy. Nothing is shared with the engine but the start.

SIZES = PROBLEM["sizes"]
SHAPES = [(PROBLEM["hidden"], 4), (PROBLEM["hidden"],), (PROBLEM["classes"], PROBLEM["hidden"]), (PROBLEM["classes"],)]
CUTS = np.cumsum([int(np.prod(shape)) for shape in SHAPES])[:-1]
HEAD = CUTS[1]
CLIENTS = list(zip(*(np.split(np.array(PROBLEM[name]), np.cumsum(SIZES)[:-1]) for name in ("x", "y")), strict=True))
START = STARTS[0].numpy()


def logits(w: Array, x: Array) -> Array:
    inner, shift, outer, last = (p.reshape(s) for p, s in zip(np.split(w, CUTS), SHAPES, strict=True))
    hidden = np.float32(x) @ inner.T + shift
    return np.asarray(np.where(hidden.real > 0, hidden, 0) @ outer.T + last)


def entropy(w: Array, x: Array, y: Array) -> complex:
    z = logits(w, x)
    return complex((np.log(np.exp(z).sum(1)) - z[np.arange(len(y)), y]).mean())


def slope(function: Callable[[Array], complex], w: Array) -> Array:
    """The gradient to the last digit: no difference is taken, so nothing cancels."""
    steps = np.eye(len(w)) * 1e-40j
    return np.array([function(w + step).imag / 1e-40 for step in steps])


def trained(w: Array, client: int, penalty: Callable[[Array], complex] = lambda _: 0.0) -> Array:
    x, y = CLIENTS[client]
    for _ in range(PROBLEM["steps"]):
        w = w - PROBLEM["lr"] * slope(lambda v: entropy(v, x, y) + penalty(v), w)
    return w


def test_elastic_aggregation() -> None:
    """All samples are measured on, so that nothing is drawn."""
    tau, mu = 0.4, 0.6
    ours = federation("elastic", {"tau": tau, "mu": mu, "share": 1.0})
    w, omega = START, [np.zeros(len(START))] * 4
    for _ in range(PROBLEM["rounds"]):
        ours.advance()
        for i, (x, _) in enumerate(CLIENTS):
            moves = slope(lambda v, x=x: complex((logits(v, x) ** 2).sum(1).mean()), w)  # type: ignore[misc]
            omega[i] = mu * omega[i] + (1 - mu) * abs(moves)
        towards = np.average([trained(w, i) - w for i in range(4)], axis=0, weights=SIZES)
        sensitivity = np.average(omega, axis=0, weights=SIZES)
        zeta = [1 + tau - part / part.max() for part in np.split(sensitivity, CUTS)]
        w = w + np.concatenate(zeta) * towards
    near(generic(ours), w)


@pytest.mark.parametrize("relation", ["learned", "laplacian"])
def test_fedmtl(relation: str) -> None:
    """Down the slope of tr(W' Omega W) itself, one client's row after the other's."""
    lam = 0.3
    ours = federation("fedmtl", {"lam": lam, "relation": relation})
    models = np.tile(START, (4, 1))
    for _ in range(PROBLEM["rounds"]):
        ours.advance()
        omega = np.eye(4) - 1 / 4
        if relation == "learned":
            root = scipy.linalg.sqrtm(models @ models.T + 1e-15 * np.eye(4)).real
            omega = scipy.linalg.inv(root / np.trace(root) + np.eye(4) / 4) / 4
        after = []
        for i in range(4):

            def penalty(v: Array, i: int = i, omega: Array = omega, models: Array = models) -> complex:
                rows = models.astype(complex)
                rows[i] = v
                return complex(lam / 2 * np.trace(rows.T @ omega @ rows))

            after.append(trained(models[i], i, penalty))
        models = np.array(after)
    for i, w in personal(ours).items():
        close = 1e-7 if relation == "learned" else 1e-12  # a root of a matrix that is nearly singular at first
        np.testing.assert_allclose(w.numpy(), models[i], rtol=close, atol=close)


def test_pfedsim() -> None:
    """One round of FedAvg, and two by the likeness of heads."""
    ours = federation("pfedsim", {"warmup": 1})
    common = np.average([trained(START, i) for i in range(4)], axis=0, weights=SIZES)
    starts = np.tile(common, (4, 1))
    ours.advance()
    near(ours.server.state["model"].weights, common)
    for _ in range(2):
        ours.advance()
        models = np.array([trained(w, i) for i, w in enumerate(starts)])
        starts = models.copy()
        for i in range(4):
            shares = np.zeros(4)
            for j in range(4):
                a, b = models[i, HEAD:], models[j, HEAD:]
                cosine = (a @ b) / np.sqrt((a @ a) * (b @ b))
                shares[j] = 1.0 if i == j else max(0.0, -np.log(1 - cosine))
            starts[i, :HEAD] = shares @ models[:, :HEAD] / shares.sum()
    for i, w in personal(ours).items():
        near(w, models[i])
    for i, body in ours.server.state["bodies"].items():
        near(body.weights, starts[i, :HEAD])
