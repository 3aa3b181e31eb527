"""FLASH: Panchal, Choudhary, Mitra, Mukherjee, Sarkhel, Mitra and Guan 2023 (ICML), "Flash: Concept Drift Adaptation in
Federated Learning".

The server's optimizer takes larger steps while updates are larger than they used to be, as they are after a drift;
clients stop their local training when an epoch gains little on data that they hold out. The server rule `flash` works
with any method whose aggregation is a declared mean; the method `flash` is this rule with clients that stop early.
"""

from collections.abc import Sequence
from typing import Any

import torch

from bench.method import (
    METHODS, SERVER_RULES, Client, Evaluate, Feed, Hyperparameters, Message, Method, Params, Program, Range, ServerRule,
    State, Train, Upload, cross_entropy, hp, mean,
)  # fmt: skip


class ServerHyper(Hyperparameters):
    """Hyperparameters of the rule, with the paper's names.

    Attributes:
        eta: learning rate of the server.
        beta1, beta2: decay of the first and the second moment.
        tau: added to the denominator.
    """

    eta: float = hp(0.01, gt=0, search=Range(1e-3, 1, log=True))
    beta1: float = hp(0.9, ge=0, lt=1)
    beta2: float = hp(0.99, ge=0, lt=1)
    tau: float = hp(1e-3, gt=0, search=Range(1e-5, 0.1, log=True))


class Hyper(ServerHyper):
    """Hyperparameters of the method.

    Attributes:
        epochs: most local epochs of a round.
        gamma: a client stops after epoch e, from 1, that lowers the loss on its hold-out by less than gamma / e.
    """

    epochs: int = hp(5, ge=1, static=True, search=(2, 5, 10))
    gamma: float = hp(0.02, ge=0, static=True, search=(0.0, 0.02, 0.1))


@SERVER_RULES.register("flash")
class Flash(ServerRule):
    """An adaptive step along the mean update, with a third moment: how far squared updates are above their average."""

    Hyper = ServerHyper

    def update(self, state: State, old: Any, messages: Sequence[Message], name: str) -> tuple[Any, State]:
        """m and v as Adam's; beta3 = |v'| / (|Delta^2 - v| + |v'|) with the v' before; d = beta3 d + (1 - beta3)
        (Delta^2 - v), and x + eta m / (sqrt(v) - d + tau), coordinate by coordinate."""
        new, h = mean(messages, name), self.hp
        x, average = (v.weights if isinstance(v, Params) else v for v in (old, new))
        delta, zero = average - x, torch.zeros_like(x)
        before, m, d = (state[key] if state else zero for key in ("v", "m", "d"))
        m = h.beta1 * m + (1 - h.beta1) * delta
        v = h.beta2 * before + (1 - h.beta2) * delta * delta
        above = delta * delta - v
        total = above.abs() + before
        beta3 = torch.where(total > 0, before / torch.where(total > 0, total, 1), 0)  # no weight has moved so far
        d = beta3 * d + (1 - beta3) * above
        moved = x + h.eta * m / (v.sqrt() - d + h.tau)
        return new.with_weights(moved) if isinstance(new, Params) else moved, {"m": m, "v": v, "d": d}


@METHODS.register("flash")
class FlashAvg(Method):
    """FedAvg with early stopping by the clients and the drift-aware optimizer on the server."""

    Hyper = Hyper
    mean_of = ("model",)
    holdout = 0.2
    symmetric = False  # the hold-out is drawn by client

    def __init__(self, hyper: Any) -> None:
        super().__init__(hyper)
        self.rule = Flash(hyper)

    def client_round(self, client: Client, down: State) -> Program:
        w, state, last = down["model"], None, float("inf")
        for epoch in range(self.hp.epochs):
            feed = Feed("remainder", stream=epoch)
            trained = yield Train({"w": w}, loss=cross_entropy, feed=feed, epochs=1, optimizer_state=state)
            w, state = trained["w"], trained.optimizer_state
            losses, _ = yield Evaluate([w], "holdout")
            if last - float(losses[0]) < self.hp.gamma / (epoch + 1):
                break
            last = float(losses[0])
        yield Upload({"model": w})
        return w
