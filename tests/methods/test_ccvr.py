"""CCVR: FedAvg's body to the byte, pooled Gaussians against numpy, and a head that is the one of a discriminant."""

import numpy as np
import pytest
import torch

from bench.engine.anomalies import Diverged
from bench.model_call import Forward
from bench.params import Params
from methods.ccvr import gaussians
from tests.engine.problems import run, toy, toy_data
from tests.methods.by_autograd import features
from tests.methods.reference import PLAIN, local_data

SIZES = [9, 5]


def model(federation) -> Params:  # type: ignore[no-untyped-def]
    found = federation.evaluator.generic(federation.version, {})
    assert found is not None
    return found


def test_the_body_is_fedavgs() -> None:
    """To the byte, running statistics too, whatever the head is; without steps the whole model is."""
    fedavg = toy("fedavg", model="test_norm", participation=0.5)
    run(fedavg, 3)
    for steps in (0, 20):
        federation = toy("ccvr", hp={"calibration_steps": steps}, model="test_norm", participation=0.5)
        run(federation, 3)
        found, expected = model(federation), model(fedavg)
        assert torch.equal(found.without("head").weights, expected.without("head").weights)
        assert torch.equal(found.buffers, expected.buffers)
        assert torch.equal(federation.server.state["model"].weights, expected.weights)
        assert torch.equal(found.part("head").weights, expected.part("head").weights) == (steps == 0)


def test_statistics_are_those_of_all_samples_under_the_new_mean() -> None:
    """As if the samples lay in one place, by numpy's covariance; of the body of this round, not of the one before."""
    federation = toy("ccvr", sizes=SIZES, **PLAIN)
    run(federation, 2)
    state = federation.server.state
    data = [local_data(SIZES, i) for i in range(2)]
    x, y = (np.concatenate(parts) for parts in zip(*data, strict=True))
    z = features(state["model"].weights, torch.tensor(x)).numpy()
    center, root = gaussians(state["count"], state["sum"], state["outer"])
    for c in range(3):
        mine = z[y[:, c] == 1]
        np.testing.assert_allclose(center[c].numpy(), mine.mean(0), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose((root[c] @ root[c].T).numpy(), np.cov(mine.T), rtol=1e-9, atol=1e-12)


@pytest.mark.long
def test_the_head_becomes_that_of_a_discriminant() -> None:
    """On Gaussians of one covariance the best head is LDA's: its decisions, whatever head it begins with."""
    federation = toy("ccvr", hp={"calibration_steps": 1500}, model="test_norm", lr=0.3, momentum=0.0)
    run(federation, 1)
    rng = np.random.default_rng(0)
    half = rng.normal(size=(6, 6)) / 2 + np.eye(6)
    center, covariance = rng.normal(size=(3, 6)), half @ half.T
    federation.server.state.update(
        count=torch.full((3,), 50.0).double(),
        sum=50 * torch.tensor(center),
        outer=49 * torch.tensor(covariance).expand(3, 6, 6) + 50 * torch.tensor(center[:, :, None] * center[:, None]),
    )
    z = torch.tensor(center[np.arange(300) % 3] + rng.normal(size=(300, 6)) @ half.T)
    inverse = np.linalg.inv(covariance)
    scores = z.numpy() @ inverse @ center.T - ((center @ inverse) * center).sum(1) / 2
    agreed = {}
    for name, w in (("calibrated", model(federation)), ("fedavg", federation.server.state["model"])):
        agreed[name] = float((Forward().head(w, z).argmax(1).numpy() == scores.argmax(1)).mean())
    assert agreed["calibrated"] > 0.95 > agreed["fedavg"] + 0.1


def test_a_class_that_nobody_has_is_not_drawn() -> None:
    federation = toy("ccvr", hp={"calibration_steps": 300}, model="test_norm")
    run(federation, 1)
    before = model(federation)
    state = federation.server.state
    gone = torch.tensor([1.0, 0, 1]).double()
    kept = {"count": gone, "sum": gone.view(3, 1), "outer": gone.view(3, 1, 1)}
    state.update({name: state[name] * mask for name, mask in kept.items()})
    x = torch.from_numpy(toy_data().x).double()
    assert (Forward()(before, x, stats="frozen").argmax(1) == 1).any()
    assert not (Forward()(model(federation), x, stats="frozen").argmax(1) == 1).any()


def test_features_whose_squares_overflow_are_a_divergence_and_no_error() -> None:
    """Their covariance is not finite, for which LAPACK raises an error; the head's training on them diverges."""
    count, total = torch.tensor([3.0, 3.0]), torch.full((2, 2), 6e30)
    outer = torch.stack([torch.eye(2), torch.full((2, 2), torch.inf)])
    center, root = gaussians(count, total, outer)
    assert center.tolist() == (total / 3).tolist()
    assert root.isfinite().all()
    federation = toy("ccvr", dtype="float32", sizes=[13, 7, 9, 5], hp={"calibration_steps": 5})
    run(federation, 1)
    federation.server.state["sum"] *= 1e30
    federation.server.state["outer"] *= torch.inf
    with pytest.raises(Diverged):
        federation.evaluate()
