"""Elastic Aggregation against plain torch, FedAvg for equal sensitivities, and what a sensitivity is."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.engine.batches import steps_per_epoch
from bench.federation.federation import Federation
from bench.method import Feed
from bench.model_call import Forward
from bench.settings import Settings
from methods.elastic import elasticity
from tests.engine.problems import generic, run, toy, toy_data, toy_partition
from tests.methods.by_autograd import logits
from tests.methods.reference import BATCH, DATA, PLAIN, batches, descend, initial, local_batches, local_data, near

SIZES = [9, 5, 7]
TAU, MU = 0.4, 0.7


def test_follows_the_algorithm() -> None:
    """Three clients, four rounds; sensitivities go on from the client's last round."""
    federation = toy("elastic", sizes=SIZES, hp={"tau": TAU, "mu": MU, "share": 1.0}, **PLAIN)
    run(federation, 4)
    w, omega = initial(federation), [np.zeros(21)] * 3
    for t in range(4):
        for i in range(3):
            x, _ = local_data(SIZES, i)
            steps = steps_per_epoch(len(x), BATCH, batch_statistics=False)
            for at in batches(Feed(stream=1), len(x), max(SIZES), steps, t, i):
                v = torch.tensor(w, requires_grad=True)
                slope = torch.autograd.grad((logits(v, torch.tensor(x[at])) ** 2).sum() / len(at), v)[0].abs()
                omega[i] = MU * omega[i] + (1 - MU) * slope.numpy()
        models = [descend(w, local_batches(SIZES, t, i)) for i in range(3)]
        average, mean = np.average(models, axis=0, weights=SIZES), np.average(omega, axis=0, weights=SIZES)
        ratio = np.concatenate([part / part.max() for part in (mean[:12], mean[12:])])
        w = w + (1 + TAU - ratio) * (average - w)
    near(generic(federation), w)


def test_a_last_batch_of_one_sample_counts_with_batchnorm() -> None:
    """Nine samples in batches of four, mu 0: the sensitivity is what the last batch says, whose one sample is some."""
    federation = toy("elastic", sizes=[9], hp={"mu": 0.0, "share": 1.0}, model="test_norm", batch_size=4)
    start = federation.server.initial_model()
    federation.advance()
    measured, x = federation.clients[0].state["sensitivity"], torch.from_numpy(toy_data().x[:9]).double()

    def norm(weights: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        return Forward()(start.with_weights(weights), sample.unsqueeze(0), stats="frozen").square().sum()

    of_each = [torch.func.grad(norm)(start.weights, sample).abs() for sample in x]
    assert sum(bool(torch.allclose(measured, one, rtol=1e-9, atol=1e-12)) for one in of_each) == 1


def test_labels_do_not_count_in_sensitivities() -> None:
    """In the first round, before models differ by them."""
    found = []
    for classes in ([0, 1, 2], [2, 0, 1]):
        data = replace(DATA, y=np.array(classes)[DATA.y])
        settings = Settings(method="elastic", model="test_linear", dtype="float64", clients=3, batch_size=4, seed=3)
        federation = Federation(settings, dataset=data, partition=toy_partition(data, SIZES), public=None)
        federation.advance()
        found.append(torch.stack([federation.clients[i].state["sensitivity"] for i in range(3)]))
    assert torch.equal(*found)


@given(st.lists(st.floats(0, 100), min_size=21, max_size=21), st.floats(0, 1))
def test_steps_lie_between_tau_and_one_more(values: list[float], tau: float) -> None:
    """And in each tensor the more sensitive parameter takes the smaller step."""
    w = toy("fedavg", sizes=[4, 4]).server.initial_model()
    omega = torch.tensor(values, dtype=torch.float64)
    factor = elasticity(omega, w, tau)
    assert float(factor.min()) >= tau - 1e-12
    assert float(factor.max()) <= 1 + tau + 1e-12
    for part in (slice(0, 12), slice(12, 21)):
        order = omega[part].argsort()
        assert (factor[part][order].diff() <= 1e-12).all()
