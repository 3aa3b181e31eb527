"""Optimizers: steps equal torch's own, clipping and the learning-rate schedule; and the optimizer of a cell."""

from typing import Any

import pytest
import torch

from bench.optim import SGD, Adam, learning_rates
from tests.engine.problems import generic, personal, run, toy
from tests.methods.reference import PLAIN, initial, local_batches

SIZES = [9]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SGD(0.1, 0.0, 0.0, False), lambda w: torch.optim.SGD(w, 0.1)),
        (SGD(0.1, 0.9, 0.01, False), lambda w: torch.optim.SGD(w, 0.1, momentum=0.9, weight_decay=0.01)),
        (SGD(0.1, 0.9, 0.0, True), lambda w: torch.optim.SGD(w, 0.1, momentum=0.9, nesterov=True)),
        (Adam(0.1, weight_decay=0.02), lambda w: torch.optim.Adam(w, 0.1, weight_decay=0.02)),
    ],
)
def test_optimizers_are_torchs(ours: SGD | Adam, theirs: object) -> None:
    w = torch.linspace(-1, 1, 5, dtype=torch.float64)
    leaf = w.clone().requires_grad_()
    reference = theirs([leaf])  # type: ignore[operator]
    state = ours.init(w)
    for k in range(6):
        g = torch.sin(w + k)
        w, state = ours.update(w, g, state, torch.tensor(0.1, dtype=torch.float64))
        leaf.grad = g.clone()
        reference.step()
    torch.testing.assert_close(w, leaf.detach(), rtol=1e-12, atol=1e-12)


def test_clip_and_schedule() -> None:
    g = torch.tensor([3.0, 4.0], dtype=torch.float64)
    new, _ = SGD(1.0, 0.0, 0.0, False, clip=1.0).update(torch.zeros(2, dtype=torch.float64), g, {}, torch.tensor(1.0))
    torch.testing.assert_close(new, -g / 5, rtol=1e-6, atol=0)
    rates = learning_rates(SGD(0.2, schedule="cosine"), 4)
    assert rates == pytest.approx([0.2, 0.1 * (1 + 0.5**0.5), 0.1, 0.1 * (1 - 0.5**0.5)])


def by_torch(kind: Any, start: Any, rounds: int, **settings: Any) -> torch.Tensor:
    """The linear model trained by an optimizer of torch, which starts anew in every round."""
    w = torch.nn.Parameter(torch.tensor(start))
    for t in range(rounds):
        optimizer = kind([w], **settings)
        for x, target in local_batches(SIZES, t, 0):
            logits = torch.tensor(x) @ w[:12].view(3, 4).T @ w[12:].view(3, 3).T
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(logits, torch.tensor(target)).backward()
            optimizer.step()
    return w.detach()


@pytest.mark.parametrize(("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
@pytest.mark.parametrize("executor", ["cohort", "sequential"])
def test_it_is_torchs(name: str, kind: Any, executor: str) -> None:
    """With the cell's learning rate and weight decay."""
    optimizer = {"name": name, "betas": [0.7, 0.9], "eps": 1e-5}
    federation = toy("fedavg", sizes=SIZES, optimizer=optimizer, executor=executor, weight_decay=0.3, **PLAIN)
    run(federation, 2)
    expected = by_torch(kind, initial(federation), 2, lr=0.1, betas=(0.7, 0.9), eps=1e-5, weight_decay=0.3)
    torch.testing.assert_close(generic(federation), expected, rtol=1e-9, atol=1e-12)


def test_a_method_that_only_sets_the_rate_takes_it_too() -> None:
    """Ditto trains personalized models with `SGD(lr=...)`, which takes the cell's optimizer; SCAFFOLD's step asks
    for plain SGD."""
    settings: dict[str, Any] = {"optimizer": "adam", "momentum": 0.0}
    ditto, local = toy("ditto", hp={"lam": 0.0, "personal_lr": 0.1}, **settings), toy("local", **settings)
    run(ditto, 2)
    run(local, 2)
    for i, w in personal(local).items():
        assert torch.equal(personal(ditto)[i], w)
    plain, adam = toy("scaffold", momentum=0.0), toy("scaffold", **settings)
    run(plain, 2)
    run(adam, 2)
    assert torch.equal(generic(plain), generic(adam))
    assert SGD(lr=3.0).open
    assert not SGD(momentum=0.0).open
