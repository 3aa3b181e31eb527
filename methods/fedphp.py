"""FedPHP: Li, Zhan, Shao, Li and Song 2021 (ECML PKDD), "FedPHP: Federated Personalization with Inherited Private
Models", Algorithm 1, with the maximum mean discrepancy of features as the paper's transfer of knowledge.

FedAvg whose clients also keep a private model, a moving average of their trained models. The private model is the
personalized one, and the features of the next local training are pulled to its features.
"""

from typing import Any

import torch
from torch import Tensor

from bench.method import (
    METHODS, Batch, Client, Hyperparameters, Method, Params, Program, Range, Server, State, Train, Upload, Values, hp,
)  # fmt: skip

BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)  # of the sum of Gaussian kernels (public code)


class Hyper(Hyperparameters):
    """Hyperparameters of FedPHP.

    Attributes:
        lam: share of the discrepancy in the loss; the rest is the cross-entropy.
        mu: share of the old private model in the new one after `rounds` rounds; it increases linearly from 0.
    """

    lam: float = hp(0.05, ge=0, lt=1, search=Range(0.01, 0.5, log=True))
    mu: float = hp(0.9, ge=0, le=1, search=(0.1, 0.5, 0.9))
    rounds: int = hp(100, ge=1, static=True)

    def degenerate(self) -> list[str]:
        found = ["lam = 0: the generic model of FedPHP is that of FedAvg"] if self.lam == 0 else []
        return found + (["mu = 0: FedPHP tests the clients' last models"] if self.mu == 0 else [])


@METHODS.register("fedphp")
class FedPHP(Method):
    """FedAvg whose clients keep a private moving average of their models, to whose features training is pulled."""

    Hyper = Hyper
    trains = "both"
    mean_of = ("model",)

    def init_client(self, server: Server, client: Client) -> None:
        client.state["private"] = server.initial_model()

    def broadcast(self, server: Server, client: Client) -> State:
        return {**super().broadcast(server, client), "round": server.round}

    def client_round(self, client: Client, down: State) -> Program:
        old = client.state["private"]
        trained = yield Train({"w": down["model"]}, loss=inherited_loss, context={"old": old})
        w, keep = trained["w"], self.hp.mu * min(1.0, down["round"] / self.hp.rounds)
        client.state["private"] = Params(w.weights.lerp(old.weights, keep), w.buffers.lerp(old.buffers, keep), w.spec)
        yield Upload({"model": w})
        return w

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return client.state["private"]


def inherited_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """(1 - lam) CE + lam MMD(features, features of the private model)."""
    w = values["w"]
    z = model.features(w, batch.x)
    likelihood = model.head(w, z).log_softmax(1).gather(1, batch.y.unsqueeze(1)).squeeze(1)
    old = model.features(ctx.old, batch.x, stats="frozen")
    return ctx.hp.lam * discrepancy(z, old, batch.share) - (1 - ctx.hp.lam) * batch.mean(likelihood)


def discrepancy(a: Tensor, b: Tensor, share: Tensor) -> Tensor:
    """Squared maximum mean discrepancy of two sets of points `[samples, d]` with the weights `share` `[samples]`."""
    z, weight = torch.cat([a, b]), torch.cat([share, -share])
    products = z @ z.T
    square = products.diagonal()
    distance = square.unsqueeze(1) + square - 2 * products
    kernel = torch.stack([torch.exp(-distance / (2 * width)) for width in BANDWIDTHS]).sum(0)
    return weight @ kernel @ weight
