"""Methods against plain PyTorch: real modules in training mode, torch.optim.SGD with momentum and decay, two rounds.

The numpy references have a linear net without BatchNorm and without momentum. Here a CNN and a net with BatchNorm train
with both, in float64; what coincides is weights and running statistics, to 1e-9.
"""

import copy
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.federation.federation import Federation
from bench.method import Feed
from bench.models.factory import build
from bench.params import Params
from bench.plugin import MODELS
from tests.conftest import ROOT
from tests.engine.problems import toy
from tests.methods.images import SIZES, images
from tests.methods.reference import batches

BATCH, LR, MOMENTUM, DECAY, ROUNDS, EPOCHS, SEED = 4, 0.05, 0.9, 0.01, 2, 2, 3
STEPS = [EPOCHS * n // BATCH for n in SIZES]
Batch = tuple[Tensor, Tensor]
Term = Callable[[nn.Module], Tensor]

DATA = images()


def federation(method: str, model: str, hp: dict[str, Any]) -> Federation:
    """Two clients of eight and twelve samples."""
    return toy(
        method, data=DATA, sizes=SIZES, hp=hp, model=model, model_options={"hidden": 8} if model == "cnn" else {},
        rounds=ROUNDS, seed=SEED, epochs=EPOCHS, batch_size=BATCH, lr=LR, momentum=MOMENTUM,
        weight_decay=0.0 if method == "scaffold" else DECAY,
    )  # fmt: skip


class Client:
    """A client in plain PyTorch."""

    def __init__(self, number: int, start: nn.Module) -> None:
        self.number, self.own = number, copy.deepcopy(start)
        self.control = [torch.zeros_like(p) for p in start.parameters()]

    def batches(self, round: int) -> Iterator[Batch]:
        """The same samples as in the harness, which draws them by address."""
        n, first = SIZES[self.number], self.number * SIZES[0]
        for at in batches(Feed(), n, max(SIZES), STEPS[self.number], round, self.number):
            yield torch.from_numpy(DATA.x[first + at]).double(), torch.from_numpy(DATA.y[first + at])


def train(model: nn.Module, data: Iterable[Batch], term: Term = lambda model: torch.zeros(())) -> nn.Module:
    """A copy of the model after SGD on cross-entropy and a term, with a fresh momentum."""
    model = copy.deepcopy(model).train()
    optimizer = sgd(model)
    for batch in data:
        descend(model, optimizer, batch, term)
    return model


def sgd(model: nn.Module, lr: float = LR) -> torch.optim.Optimizer:
    """The cell's optimizer."""
    return torch.optim.SGD(model.parameters(), lr, momentum=MOMENTUM, weight_decay=DECAY)


def descend(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, term: Term) -> None:
    """One step of the model."""
    optimizer.zero_grad()
    (nn.functional.cross_entropy(model(batch[0]), batch[1]) + term(model)).backward()
    optimizer.step()


def pull(strength: float, center: nn.Module) -> Term:
    """strength / 2 times the squared distance to a model."""
    fixed = nn.utils.parameters_to_vector(center.parameters()).detach()
    return lambda model: strength / 2 * (nn.utils.parameters_to_vector(model.parameters()) - fixed).square().sum()


def average(models: list[nn.Module], keep: str = "", sizes: list[int] = SIZES) -> nn.Module:
    """Weighted by training samples, parameters and running statistics; entries under `keep` stay the first one's."""
    result = copy.deepcopy(models[0])
    states = [model.state_dict() for model in models]
    for name, entry in result.state_dict().items():
        if entry.is_floating_point() and not (keep and name.startswith(keep)):
            entry.copy_(sum(n / sum(sizes) * state[name] for n, state in zip(sizes, states, strict=True)))
    return result


def fedavg(server: nn.Module, clients: list[Client], round: int) -> nn.Module:
    return average([train(server, client.batches(round)) for client in clients])


def fedprox(server: nn.Module, clients: list[Client], round: int) -> nn.Module:
    return average([train(server, client.batches(round), pull(0.5, server)) for client in clients])


def ditto(server: nn.Module, clients: list[Client], round: int) -> nn.Module:
    for client in clients:
        client.own = train(client.own, client.batches(round), pull(0.5, server))
    return fedavg(server, clients, round)


def local(server: nn.Module, clients: list[Client], round: int) -> nn.Module:
    for client in clients:
        client.own = train(client.own, client.batches(round))
    return server


def fedper(server: nn.Module, clients: list[Client], round: int) -> nn.Module:
    trained = []
    for client in clients:
        start = copy.deepcopy(server)
        start.head.load_state_dict(client.own.head.state_dict())  # type: ignore[operator, union-attr]
        trained.append(train(start, client.batches(round)))
    mean = average(trained, keep="head")
    for client, model in zip(clients, trained, strict=True):
        client.own = copy.deepcopy(mean)
        client.own.head.load_state_dict(model.head.state_dict())  # type: ignore[operator, union-attr]
    return mean


def pfedme(server: nn.Module, clients: list[Client], round: int) -> nn.Module:
    """Algorithm 1 with the settings below and beta = 1; running statistics are the personalized model's."""
    copies = []
    for client in clients:
        w, theta = copy.deepcopy(server), copy.deepcopy(server).train()
        optimizer = sgd(theta, lr=0.03)
        for batch in client.batches(round):
            for _ in range(3):
                descend(theta, optimizer, batch, pull(2.0, w))
            with torch.no_grad():
                for of_w, of_theta in zip(w.parameters(), theta.parameters(), strict=True):
                    of_w -= 0.1 * 2.0 * (of_w - of_theta)
        for of_w, of_theta in zip(w.buffers(), theta.buffers(), strict=True):
            of_w.copy_(of_theta)
        client.own = theta
        copies.append(w)
    return average(copies)


def scaffold(server: nn.Module, clients: list[Client], round: int) -> nn.Module:
    """Algorithm 1, option II as printed, c_i - c + (x - y) / (K eta) from displacements; clients count equally.

    There is no decay in it: the displacement would contain that, and the controls of the harness do not.
    """
    trained, common = [], [sum(c) / len(clients) for c in zip(*(client.control for client in clients), strict=True)]
    for client, steps in zip(clients, STEPS, strict=True):
        y = copy.deepcopy(server).train()
        for inputs, labels in client.batches(round):
            slopes = torch.autograd.grad(nn.functional.cross_entropy(y(inputs), labels), list(y.parameters()))
            with torch.no_grad():
                for p, g, c_i, c in zip(y.parameters(), slopes, client.control, common, strict=True):
                    p -= LR * (g - c_i + c)
        moved = [(a - b).detach() for a, b in zip(server.parameters(), y.parameters(), strict=True)]
        client.control = [c_i - c + d / (steps * LR) for c_i, c, d in zip(client.control, common, moved, strict=True)]
        trained.append(y)
    return average(trained, sizes=[1, 1])


REFERENCES: dict[str, tuple[Any, dict[str, Any]]] = {
    "fedavg": (fedavg, {}),
    "fedprox": (fedprox, {"mu": 0.5}),
    "ditto": (ditto, {"lam": 0.5}),
    "local": (local, {}),
    "fedper": (fedper, {}),
    "pfedme": (pfedme, {"K": 3, "lam": 2.0, "eta": 0.1, "eta_p": 0.03}),
    "scaffold": (scaffold, {}),
}


def module(w: Params, name: str) -> nn.Module:
    """A real module with the values of a model value."""
    MODELS.get(name)
    found = build(name, (1, 16, 16), 3, {"hidden": 8} if name == "cnn" else {}).to_empty(device="cpu").double()
    tensors = w.tensors()
    for name_, entry in [*found.named_parameters(), *found.named_buffers()]:
        with torch.no_grad():
            entry.copy_(tensors[name_])
    return found


def assert_near(found: Params, expected: nn.Module) -> None:
    """All tensors to 1e-9."""
    tensors = found.tensors()
    for name, entry in [*expected.named_parameters(), *expected.named_buffers()]:
        torch.testing.assert_close(tensors[name], entry.detach(), rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("model", ["test_norm", pytest.param("cnn", marks=pytest.mark.long)])
@pytest.mark.parametrize("method", REFERENCES)
def test_follows_plain_pytorch(method: str, model: str) -> None:
    """Generic and personalized models after two rounds, running statistics included."""
    step, hp = REFERENCES[method]
    ours = federation(method, model, hp)
    server = module(ours.server.initial_model(), model)
    clients = [Client(i, server) for i in range(2)]
    for round in range(ROUNDS):
        server = step(server, clients, round)
        ours.advance()
    kind = ours.method.trains
    personal = ours.evaluator.personal(ours.version) if kind != "gm" else {}
    if kind != "pm":
        generic = ours.evaluator.generic(ours.version, personal)
        assert generic is not None
        assert_near(generic, server)
    for i, found in personal.items():
        assert_near(found, clients[i].own)


def test_the_audit_names_the_references_in_plain_torch() -> None:
    page = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
    for name in REFERENCES:
        assert re.search(rf"^\| `{name}` \| \S+ \| [^|]*plain torch", page, re.M), name
