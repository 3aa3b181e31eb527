"""FedRoD with a hyper-network, and with a head after the upload; the linear one is held against PGFed's authors'."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from methods.fedrod import Hyper
from tests.engine.problems import generic, personal, run, toy
from tests.methods.reference import (
    LR,
    PLAIN,
    Array,
    backward,
    initial,
    local_batches,
    local_data,
    logits,
    near,
    softmax,
)

SIZES = [9, 5]
GAMMA = 0.6


def balanced(w: Array, x: Array, target: Array, log_counts: Array) -> Array:
    """Gradient of CE(logits + gamma log n, y)."""
    return backward(w, x, (softmax(logits(w, x) + GAMMA * log_counts) - target) / len(x))


def second(w: Array, head: Array, x: Array, target: Array) -> Array:
    """Gradient of CE(logits + head(features), y) with respect to the flat second head."""
    z = x @ w[:12].reshape(3, 4).T
    return ((softmax(logits(w, x) + z @ head.reshape(3, 3).T) - target).T @ z / len(x)).ravel()


def test_hyper_network_follows_the_formulas() -> None:
    """It is trained, uploaded and averaged like the model."""
    federation = toy("fedrod", sizes=SIZES, hp={"gamma": GAMMA, "head": "hyper", "hidden": 4}, **PLAIN)
    w, hyper = initial(federation), federation.server.state["hyper"].weights.numpy()
    run(federation, 2)
    cuts = np.cumsum([12, 4, 36])

    def head_of(hyper: Array, share: Array) -> tuple[Array, Array, Array]:
        w1, b1, w2, b2 = np.split(hyper, cuts)
        hidden = np.maximum(w1.reshape(4, 3) @ share + b1, 0)
        return w2.reshape(9, 4) @ hidden + b2, hidden, w2.reshape(9, 4)

    shares = [local_data(SIZES, i)[1].mean(0) for i in range(2)]
    for t in range(2):
        sent = []
        for i in range(2):
            log_counts = np.log(np.maximum(local_data(SIZES, i)[1].sum(0), 1e-8))
            local, own = w, hyper
            for x, y in local_batches(SIZES, t, i):
                head, hidden, w2 = head_of(own, shares[i])
                slope = second(local, head, x, y)
                inner = (w2.T @ slope) * (hidden > 0)
                moved = [np.outer(inner, shares[i]).ravel(), inner, np.outer(slope, hidden).ravel(), slope]
                local, own = local - LR * balanced(local, x, y, log_counts), own - LR * np.concatenate(moved)
            sent.append(np.concatenate([local, own]))
        w, hyper = np.split(np.average(sent, axis=0, weights=SIZES), [21])
    near(generic(federation), w)
    near(federation.server.state["hyper"].weights, hyper)
    for i in range(2):
        near(personal(federation)[i], w + np.concatenate([np.zeros(12), head_of(hyper, shares[i])[0]]))


@pytest.mark.parametrize("head", ["linear", "hyper"])
def test_generic_model_does_not_see_the_personal_head(head: str) -> None:
    """Bit for bit the same for every learning rate of the second head, which the personalized models do see."""
    slow, fast = (toy("fedrod", hp={"head": head, "personal_lr": lr}) for lr in (0.01, 0.5))
    run(slow, 3)
    run(fast, 3)
    assert torch.equal(generic(slow), generic(fast))
    assert any(not torch.allclose(w, personal(fast)[i]) for i, w in personal(slow).items())


def test_the_head_after_the_upload_follows_the_formula() -> None:
    """One epoch of one batch: a step down the gradient of CE(logits + head(features)) at the updated model."""
    hp = {"head_phase": "after", "personal_epochs": 1}
    federation = toy("fedrod", sizes=[8], hp=hp, epochs=2, batch_size=8, momentum=0.0)
    run(federation, 1)
    (positions,) = federation.device_data.partition.train
    pool = federation.device_data.local
    x, y = pool.take(torch.from_numpy(positions))
    local = federation.local_models[0].tensors()
    z = x.flatten(1) @ local["inner.weight"].T
    shares = (z @ local["head.weight"].T).softmax(1)
    gradient = (shares - torch.nn.functional.one_hot(y, 3)).T @ z / len(y)
    torch.testing.assert_close(federation.clients[0].state["head"].weights, (-0.1 * gradient).reshape(-1))


def test_a_hyper_network_cannot_wait() -> None:
    with pytest.raises(ValidationError, match="needs head 'linear'"):
        Hyper(head="hyper", head_phase="after")
