"""Optimizers as pure functions of flat vectors, so that one call updates a whole cohort.

PyTorch's optimizers store their state internally and cannot be mapped over clients. The update rules here equal theirs
(SGD with momentum buffer `v = m v + g`, Adam with bias correction; weight decay is added to the gradient).
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bench import tensors

OptimizerState = dict[str, Tensor]
Schedule = Literal["constant", "cosine"]


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent. A setting that is None is taken from the cell.

    If momentum, weight decay and nesterov are all None, the cell's optimizer is used, even if it is not SGD, with this
    learning rate, clip and schedule.

    Attributes:
        lr: learning rate per step; with `schedule="cosine"` it falls to 0 over the request's steps.
        momentum: share of the velocity that stays after a step.
        weight_decay: share of the weights that is added to the gradient.
        nesterov: whether the step looks ahead along the velocity, as torch.optim.SGD does.
        clip: largest Euclidean norm of this part's gradient; longer gradients are scaled down to it.
        schedule: the course of the learning rate over the request's steps.
    """

    lr: float | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    nesterov: bool | None = None
    clip: float | None = None
    schedule: Schedule = "constant"

    @property
    def open(self) -> bool:
        """Whether no setting asks for SGD in particular, so that the cell's optimizer is used."""
        return self.momentum is None and self.weight_decay is None and self.nesterov is None

    def init(self, w: Tensor) -> OptimizerState:
        """Fresh state for weights `w [d]`."""
        return {"velocity": torch.zeros_like(w)} if self.momentum else {}

    def update(self, w: Tensor, g: Tensor, state: OptimizerState, lr: Tensor) -> tuple[Tensor, OptimizerState]:
        """One step: weights `[d]`, gradient `[d]`, learning rate `[]` -> new weights and state."""
        g = _regularised(self.clip, self.weight_decay, w, g)
        if not self.momentum:
            return torch.addcmul(w, lr, g, value=-1), state
        velocity = _moved(state["velocity"], g, self.momentum)
        g = g + self.momentum * velocity if self.nesterov else velocity
        return torch.addcmul(w, lr, g, value=-1), {"velocity": velocity}


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015) with L2 weight decay in the gradient, like torch.optim.Adam.

    Attributes:
        lr: learning rate per step; None: the cell's. With `schedule="cosine"` it falls to 0 over the request's steps.
        betas: decay of the means of gradients and of their squares, per step.
        eps: number that is added to the root of the mean square.
        weight_decay: share of the weights that is added to the gradient.
        clip: largest Euclidean norm of this part's gradient; None: the cell's.
        schedule: the course of the learning rate over the request's steps.
    """

    lr: float | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float | None = None
    schedule: Schedule = "constant"

    def init(self, w: Tensor) -> OptimizerState:
        """Fresh state for weights `w [d]`."""
        return {"mean": torch.zeros_like(w), "square": torch.zeros_like(w), "step": w.new_zeros(())}

    def update(self, w: Tensor, g: Tensor, state: OptimizerState, lr: Tensor) -> tuple[Tensor, OptimizerState]:
        """One step: weights `[d]`, gradient `[d]`, learning rate `[]` -> new weights and state."""
        g = _regularised(self.clip, self.weight_decay, w, g)
        first, second = self.betas
        step = state["step"] + 1
        mean = first * state["mean"] + (1 - first) * g
        square = second * state["square"] + (1 - second) * g * g
        scale = lr / (1 - first**step)
        denominator = (square / (1 - second**step)).sqrt() + self.eps
        return w - scale * mean / denominator, {"mean": mean, "square": square, "step": step}


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with weight decay applied directly to the weights (Loshchilov and Hutter 2019), like torch.optim.AdamW."""

    def update(self, w: Tensor, g: Tensor, state: OptimizerState, lr: Tensor) -> tuple[Tensor, OptimizerState]:
        """One step: weights `[d]`, gradient `[d]`, learning rate `[]` -> new weights and state."""
        return Adam.update(replace(self, weight_decay=0.0), w - lr * self.weight_decay * w, g, state, lr)


Optimizer = SGD | Adam


def learning_rates(optimizer: Optimizer, steps: int) -> npt.NDArray[np.float64]:
    """The learning rate at each step of a request, `[steps]`."""
    lr = optimizer.lr if optimizer.lr is not None else 0.0
    if optimizer.schedule == "cosine":
        return np.array([lr * (1 + math.cos(math.pi * step / steps)) / 2 for step in range(steps)])
    return np.full(steps, lr)


def _moved(velocity: Tensor, g: Tensor, momentum: float) -> Tensor:
    """The velocity after a step. On a GPU it takes one pass over memory and rounds once."""
    return torch.add(g, velocity, alpha=momentum) if tensors.on_gpu(g) else momentum * velocity + g


def clipped(clip: float | None, g: Tensor) -> Tensor:
    """The gradient `[d]`, scaled down to the Euclidean norm `clip` if it is longer."""
    return g if clip is None else g * torch.clamp(clip / (g.norm() + 1e-6), max=1.0)


def _regularised(clip: float | None, weight_decay: float | None, w: Tensor, g: Tensor) -> Tensor:
    g = clipped(clip, g)
    return g + weight_decay * w if weight_decay else g
