"""PGFed against its formulas."""

import numpy as np
import pytest
import torch

from bench.federation.federation import Federation
from tests.engine.problems import generic, personal, run, toy
from tests.methods.reference import LR, PLAIN, Array, cross_entropy, gradient, initial, local_batches, local_data, near

SIZES = [9, 5, 4, 7]
N, D = len(SIZES), 21
MU, LAM = 0.4, 0.05


class Reference:
    """PGFed in numpy, one round at a time."""

    def __init__(self, federation: Federation, beta: float, on_server: bool) -> None:
        self.generic, self.personal = initial(federation), dict.fromkeys(range(N), initial(federation))
        self.beta, self.on_server = beta, on_server
        self.alpha: Array | None = None
        self.kept: dict[int, Array] = {}
        self.risks: dict[int, tuple[Array, float]] = {}  # gradient and constant of those who took part last

    def auxiliary(self, i: int) -> Array:
        assert self.alpha is not None
        new = MU * sum(self.alpha[i, j] * g for j, (g, _) in self.risks.items())
        self.kept[i] = (1 - self.beta) * new + self.beta * self.kept[i] if i in self.kept else new
        return self.kept[i]

    def descend_alpha(self, i: int, w: Array) -> None:
        if not self.risks:
            return
        assert self.alpha is not None
        mean = MU / len(self.risks) * sum(g for g, _ in self.risks.values())
        for j, (_, c) in self.risks.items():
            self.alpha[i, j] = max(0.0, self.alpha[i, j] - LAM * (MU * c + mean @ w))

    def round(self, t: int, selected: list[int]) -> None:
        if self.alpha is None:
            self.alpha = np.full((N, N), 1 / len(selected))
        sent = {}
        for i in selected:
            w = self.generic
            auxiliary = self.auxiliary(i) if self.risks else np.zeros(D)
            for x, y in local_batches(SIZES, t, i):
                before, w = w, w - LR * (gradient(w, x, y) + auxiliary)
                if not self.on_server:
                    self.descend_alpha(i, before)
            if self.on_server:
                self.descend_alpha(i, w)
            x, y = local_data(SIZES, i)
            g = gradient(w, x, y)
            sent[i] = g, cross_entropy(w, x, y) - float(g @ w)
            self.personal[i] = w
        self.risks = sent
        self.generic = np.average([self.personal[i] for i in selected], axis=0, weights=[SIZES[i] for i in selected])


@pytest.mark.parametrize("participation", [pytest.param(1.0, marks=pytest.mark.long), 0.5])
@pytest.mark.parametrize(("method", "beta"), [("pgfed", 0.0), ("pgfedmo", 0.3), ("pgfed_ce", 0.0)])
def test_follows_the_formulas(method: str, beta: float, participation: float) -> None:
    hp = {"mu": MU, "lam": LAM, "beta": beta}
    federation = toy(method, sizes=SIZES, hp=hp, participation=participation, **PLAIN)
    reference = Reference(federation, beta, on_server=method == "pgfed_ce")
    for t in range(4):
        federation.advance()
        reference.round(t, federation.server.selected)
    near(generic(federation), reference.generic)
    for i, w in personal(federation).items():
        near(w, reference.personal[i])
    assert reference.alpha is not None
    known = federation.server.state["alphas"]
    for i, alpha in known.items():
        near(alpha, reference.alpha[i])
    near(federation.method.relations(federation.server)["coefficients"], reference.alpha)
    learned = np.stack([alpha.numpy() for alpha in known.values()])
    assert learned.std() > 0
    assert (learned >= 0).all()


@pytest.mark.parametrize("method", ["pgfed", "pgfed_ce"])
def test_coefficients_stop_at_zero(method: str) -> None:
    """A large step size drives some of them there; none is negative, whoever takes the step."""
    federation = toy(method, hp={"lam": 50.0})
    run(federation, 3)
    found = torch.cat(list(federation.server.state["alphas"].values()))
    assert (found == 0).any()
    assert (found >= 0).all()


def test_new_clients_fine_tune_the_generic_model() -> None:
    """The poster's figure: clients without coefficients of their own start from theta_G."""
    federation = toy("pgfed", new_clients=2, new_client_epochs=(0, 2), rounds=3)
    scores = run(federation, 3)
    assert {row["metric"] for row in scores.metrics} >= {"new0", "new2"}
    newcomer = federation.new[0]
    assert newcomer not in federation.server.sizes
    program = federation.method.adapt(federation.server, federation.clients.copy(newcomer), {}, 2)
    assert torch.equal(next(program).values["w"].weights, generic(federation))
    program.close()
