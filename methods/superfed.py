"""SuPerFed: Hahn, Jeong and Lee 2022 (KDD), "Connecting Low-Loss Subspace for Personalized Federated Learning",
Algorithm 1, with one mixing number for the whole model (MM) or one for each layer (LM).

Besides the common model every client has its own. After some rounds each batch draws a random point between the two
models and trains both models at this point, with a penalty that makes them orthogonal. So all mixtures of the two
models get a low loss.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from bench.method import (
    METHODS, Batch, Client, Hyperparameters, Method, Normal, Params, Program, Range, Server, State, Train, Upload,
    Values, cross_entropy, hp,
)  # fmt: skip
from methods.layers import layers
from methods.losses import proximal


class Hyper(Hyperparameters):
    """Hyperparameters of SuPerFed.

    Attributes:
        mixing: one mixing number for the whole `model`, or one for each `layer`.
        start: number of rounds before own models are trained (the paper's L, a share of all rounds).
        nu: weight of the squared cosine of both models.
        mu: strength of the pull of the common model to the received one.
        lam: share of the own model in the personalized model.
    """

    mixing: Literal["model", "layer"] = hp("model", static=True)
    start: int = hp(10, ge=0, static=True, search=(0, 5, 10, 50))
    nu: float = hp(2.0, ge=0, search=Range(0.1, 10, log=True))
    mu: float = hp(0.01, ge=0, search=Range(1e-3, 1, log=True))
    lam: float = hp(0.5, ge=0, le=1, static=True, search=(0.0, 0.25, 0.5, 0.75, 1.0))

    def degenerate(self) -> list[str]:
        return ["mu = 0: until it mixes, the generic model of SuPerFed is that of FedAvg"] if self.mu == 0 else []


@METHODS.register("superfed")
class SuPerFed(Method):
    """A common model and own ones, trained so that all mixtures of the two have a low loss."""

    Hyper = Hyper
    symmetric = False  # initial models and points are drawn for the clients
    trains = "both"
    mean_of = ("model",)

    def init_client(self, server: Server, client: Client) -> None:
        client.state |= {"own": server.initial_model(draw=client.id + 1), "mixed": self.hp.start == 0}

    def broadcast(self, server: Server, client: Client) -> State:
        return {"model": server.state["model"], "mixing": server.round >= self.hp.start}

    def client_round(self, client: Client, down: State) -> Program:
        w, own = down["model"], client.state["own"]
        context = {"received": w.weights}
        if not down["mixing"]:
            trained = yield Train({"w": w}, loss=pulled_loss, context=context)
        else:
            numbers = len(layers(w)) if self.hp.mixing == "layer" else 1
            draws = {"point": Normal((numbers,))}
            trained = yield Train({"w": w, "own": own}, loss=mixed_loss, context=context, draws=draws)
            client.state |= {"own": trained["own"], "mixed": True}
        yield Upload({"model": trained["w"]})
        return self.mixture(client, trained["w"])

    def mixture(self, client: Client, w: Params) -> Params:
        """The mixture of the common model and the share `lam` of the own one, once the own one has been trained."""
        return w.with_weights(w.weights.lerp(client.state["own"].weights, self.hp.lam)) if client.state["mixed"] else w

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return self.mixture(client, down["model"])


def pulled_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy + mu/2 ||w - received||^2."""
    return cross_entropy(model, values, batch, ctx) + ctx.hp.mu * proximal(values["w"], ctx.received)


def mixed_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy at a uniform point between w and own + nu cos^2(w, own) + mu/2 ||w - received||^2."""
    w, own = values["w"], values["own"].weights
    share = 0.5 * torch.erfc(-batch.draws["point"][0] * 0.5**0.5)
    runs = layers(w) if ctx.hp.mixing == "layer" else [(0, len(own))]
    spread = torch.cat([share[k].expand(b - a) for k, (a, b) in enumerate(runs)])
    mixed = w.with_weights((1 - spread) * w.weights + spread * own)
    cosine = (w.weights @ own) ** 2 / ((w.weights @ w.weights) * (own @ own))
    rest = ctx.hp.nu * cosine + ctx.hp.mu * proximal(w, ctx.received)
    return cross_entropy(model, {"w": mixed}, batch, ctx) + rest
