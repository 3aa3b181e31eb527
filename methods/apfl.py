"""APFL: Deng et al. 2020, "Adaptive Personalized Federated Learning", Algorithm 1 with the adaptive alpha of eq. 10.

The mixing weight is updated once per round, on the first step. The personalized model mixes the client's own model with
the aggregated generic one; its running statistics are those of the client's own model.
"""

from typing import Any

import torch
from torch import Tensor

from bench.method import (
    METHODS, SGD, Batch, Client, Do, Hyperparameters, Method, Params, Program, Server, State, Train, Upload, Values,
    cross_entropy, hp,
)  # fmt: skip


class Hyper(Hyperparameters):
    """Hyperparameters of APFL."""

    alpha: float = hp(0.5, ge=0, le=1, search=(0.25, 0.5, 0.75))
    adaptive: bool = hp(True, static=True)

    def degenerate(self) -> list[str]:
        if self.alpha == 0:
            # At 0 the own model does not train, so the generic one is usually better and adaptation returns to 0.
            unless = ", unless alpha adapts away from 0" if self.adaptive else ""
            return [f"alpha = 0: the personalized models of APFL are those of FedAvg{unless}"]
        if self.alpha == 1 and not self.adaptive:
            return ["alpha = 1 without adaptation: the personalized models of APFL are those of Local"]
        return []


@METHODS.register("apfl")
class APFL(Method):
    """FedAvg, and in addition a model per client that is trained as part of a mixture with the generic model."""

    Hyper = Hyper
    trains = "both"
    mean_of = ("model",)

    def init_client(self, server: Server, client: Client) -> None:
        client.state["own"] = server.initial_model()
        client.state["alpha"] = torch.full_like(client.state["own"].weights[0], self.hp.alpha)

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train(
            {"w": down["model"], "v": client.state["own"], "alpha": client.state["alpha"]},
            step=adaptive_step,
            optimizer={"w": SGD(), "v": SGD(), "alpha": SGD(momentum=0.0, weight_decay=0.0)},
        )
        client.state["own"], client.state["alpha"] = trained["v"], trained["alpha"]
        yield Upload({"model": trained["w"]})
        return trained["w"]

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return mixture(client.state["own"], down["model"].weights, client.state["alpha"])


def mixture(v: Params, w: Tensor, alpha: Tensor) -> Params:
    """alpha v + (1 - alpha) w, with the running statistics of v."""
    return v.with_weights(alpha * v.weights + (1 - alpha) * w)


def both_losses(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """f(w) + f(mixture); the mixture's gradient reaches v and alpha, not w."""
    mixed = mixture(values["v"], values["w"].weights.detach(), values["alpha"])
    return cross_entropy(model, values, batch, ctx) + cross_entropy(model, {"w": mixed}, batch, ctx)


def adaptive_step(do: Do, values: Values, batch: Batch, ctx: Any) -> Values:
    """One step on w and v, and in the first step of the round on alpha, which stays in [0, 1]."""
    gradients, moved = do.gradient(both_losses, values, batch, ctx)
    new = do.update(moved, gradients)
    adapts = (batch.step == 0) & ctx.hp.adaptive
    return new | {"alpha": torch.where(adapts, new["alpha"].clamp(0, 1), values["alpha"])}
