"""FedOpt: Reddi et al. 2021 (ICLR), "Adaptive Federated Optimization", Algorithm 2 (FedAdagrad, FedYogi, FedAdam).

The mean update is treated as a gradient of an adaptive optimizer. The server rule `fedopt` works with any method whose
aggregation is a declared mean (`{name: ditto, server: {name: fedopt}}`); the method `fedopt` is this rule with FedAvg's
clients. Running statistics are the plain mean, because an adaptive step could make a variance negative.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch

from bench.method import (
    METHODS, SERVER_RULES, Hyperparameters, Message, Method, Params, Range, ServerRule, State, hp, mean,
)  # fmt: skip
from methods.fedavg import FedAvg


class Hyper(Hyperparameters):
    """Hyperparameters of FedOpt, with the paper's names.

    Attributes:
        kind: update of the second moment: FedAdam, FedYogi or FedAdagrad.
        eta: learning rate of the server.
        beta1: decay of the first moment; None: 0.9, but for FedAdagrad 0, as in the paper's experiments.
        beta2: decay of the second moment, which FedAdagrad has not.
        tau: added to the root of the second moment, which starts at tau^2; smaller values are more adaptive.
    """

    kind: Literal["adam", "yogi", "adagrad"] = hp("adam", static=True, search=("adam", "yogi", "adagrad"))
    eta: float = hp(0.01, gt=0, search=Range(1e-3, 1, log=True))
    beta1: float | None = hp(None, ge=0, lt=1, static=True)
    beta2: float = hp(0.99, ge=0, lt=1)
    tau: float = hp(1e-3, gt=0, search=Range(1e-5, 0.1, log=True))


@SERVER_RULES.register("fedopt")
class FedOpt(ServerRule):
    """The server steps along the mean update; each coordinate is scaled by the size of its past updates."""

    Hyper = Hyper

    def update(self, state: State, old: Any, messages: Sequence[Message], name: str) -> tuple[Any, State]:
        """m = beta1 m + (1 - beta1) Delta, the second moment v by kind, and x + eta m / (sqrt(v) + tau)."""
        new, h = mean(messages, name), self.hp
        x, average = (v.weights if isinstance(v, Params) else v for v in (old, new))
        delta = average - x
        square, v = delta * delta, state["v"] if state else torch.full_like(x, h.tau**2)
        beta1 = (0.0 if h.kind == "adagrad" else 0.9) if h.beta1 is None else h.beta1
        m = beta1 * (state["m"] if state else torch.zeros_like(x)) + (1 - beta1) * delta
        if h.kind == "adagrad":
            v = v + square
        elif h.kind == "yogi":
            v = v - (1 - h.beta2) * square * torch.sign(v - square)
        else:
            v = h.beta2 * v + (1 - h.beta2) * square
        moved = x + h.eta * m / (v.sqrt() + h.tau)
        return new.with_weights(moved) if isinstance(new, Params) else moved, {"m": m, "v": v}


@METHODS.register("fedopt")
class FedOptAvg(Method):
    """FedAvg with an adaptive optimizer on the server."""

    Hyper = Hyper
    mean_of = ("model",)
    client_round = FedAvg.client_round

    def __init__(self, hyper: Any) -> None:
        super().__init__(hyper)
        self.rule = FedOpt(hyper)
