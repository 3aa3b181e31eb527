"""Momentum on the server as a rule: Hsu, Qi and Brown 2019, "Measuring the Effects of Non-Identical Data Distribution".

It works with any method whose aggregation is a declared mean (`{name: fedprox, server: {name: momentum}}`); with
FedAvg's clients it is `fedavgm`. Running statistics are the plain mean.
"""

from collections.abc import Sequence
from typing import Any

import torch

from bench.method import SERVER_RULES, Hyperparameters, Message, Params, Range, ServerRule, State, hp, mean


class Hyper(Hyperparameters):
    """Hyperparameters of server momentum, the same as those of `fedavgm`."""

    beta: float = hp(0.9, ge=0, lt=1, search=Range(0.5, 0.99))
    server_lr: float = hp(1.0, gt=0, search=Range(0.1, 1.0, log=True))
    nesterov: bool = False

    def degenerate(self) -> list[str]:
        both = (self.beta, self.server_lr) == (0, 1)
        return ["beta = 0 with server_lr = 1: server momentum is the plain mean"] if both else []


@SERVER_RULES.register("momentum")
class Momentum(ServerRule):
    """The server takes momentum steps along the mean update."""

    Hyper = Hyper

    def update(self, state: State, old: Any, messages: Sequence[Message], name: str) -> tuple[Any, State]:
        """Delta = x - mean, v = beta v + Delta, x = x - server_lr v (with nesterov, Delta + beta v instead of v)."""
        new, h = mean(messages, name), self.hp
        x, average = (v.weights if isinstance(v, Params) else v for v in (old, new))
        delta = x - average
        velocity = h.beta * (state["velocity"] if state else torch.zeros_like(x)) + delta
        step = delta + h.beta * velocity if h.nesterov else velocity
        moved = x - h.server_lr * step
        return new.with_weights(moved) if isinstance(new, Params) else moved, {"velocity": velocity}
