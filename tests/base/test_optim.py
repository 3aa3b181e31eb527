"""Optimizers: steps equal torch's own; clipping and the learning-rate schedule."""

import pytest
import torch

from bench.optim import SGD, Adam, learning_rates


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
