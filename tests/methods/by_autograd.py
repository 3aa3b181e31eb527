"""The linear model of the reference tests in plain torch: for losses whose gradients are tedious by hand."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from tests.methods.reference import LR, Array

Objective = Callable[[Tensor, Tensor, Tensor], Tensor]


def features(w: Tensor, x: Tensor) -> Tensor:
    """The 3 hidden units."""
    return x @ w[:12].view(3, 4).T


def logits(w: Tensor, x: Tensor) -> Tensor:
    """Of 3 classes; `w` has 21 entries."""
    return features(w, x) @ w[12:].view(3, 3).T


def plain(w: Tensor, x: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy to one-hot rows."""
    return -(target * torch.log_softmax(logits(w, x), 1)).sum(1).mean()


def descend_on(w: Array, steps: Iterator[tuple[Array, Array]], objective: Objective, lr: float = LR) -> Array:
    """SGD on any objective of (weights, inputs, one-hot labels)."""
    for x, target in steps:
        leaf = torch.tensor(w, requires_grad=True)
        objective(leaf, torch.tensor(x), torch.tensor(target)).backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        w = w - lr * leaf.grad.numpy()
    return w
