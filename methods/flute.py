"""FLUTE: Liu, Shen and Yang 2024 (ICML), "Federated Representation Learning in the Under-Parameterized Regime", in its
form for general networks.

A shared body and own heads. The rows of a head are pulled towards a regular simplex over the client's classes (neural
collapse, NC2), by a term of the clients' losses and by a step that the server takes on the received heads.
"""

from typing import Any

import torch
from torch import Tensor

from bench.method import (
    METHODS, SGD, Batch, Client, Feed, Hyperparameters, Message, Method, Params, Program, Range, Server, State, Train,
    Upload, Values, hp, join, mean,
)  # fmt: skip


class Hyper(Hyperparameters):
    """Hyperparameters of FLUTE.

    Attributes:
        simplex: weight of the head's distance to a simplex.
        head_decay: weight of the head's squared norm.
        feature_decay: weight of the features' squared norm, summed over a batch; not used while only the head trains.
        head_epochs: epochs in which only the head trains, before the cell's epochs of the whole model.
        server_lr: learning rate of the server's step on the heads.
    """

    simplex: float = hp(0.25, ge=0, search=Range(0.01, 1, log=True))
    head_decay: float = hp(0.0025, ge=0)
    feature_decay: float = hp(0.0005, ge=0)
    head_epochs: int = hp(10, ge=0, static=True, search=(1, 5, 10))
    server_lr: float = hp(0.5, ge=0, static=True, search=(0.05, 0.1, 0.5))

    def degenerate(self) -> list[str]:
        terms = self.simplex or self.head_decay or self.feature_decay or self.server_lr or self.head_epochs
        return [] if terms else ["without head epochs, terms and server steps, FLUTE is FedPer"]


@METHODS.register("flute")
class FLUTE(Method):
    """A shared body and own heads, which clients and server pull towards a regular simplex."""

    Hyper = Hyper
    trains = "pm"
    symmetric = False  # the features' squares are summed over a batch, however large it is

    def init(self, server: Server) -> None:
        w = server.initial_model()
        server.state["body"] = w.without("head")
        server.state["heads"] = [w.part("head")] * len(server.sizes)

    def broadcast(self, server: Server, client: Client) -> State:
        """The body and the client's head; a new client starts with the initial head."""
        ids = sorted(server.sizes)
        known = client.id in server.sizes
        head = server.state["heads"][ids.index(client.id)] if known else server.initial_model().part("head")
        return {"body": server.state["body"], "head": head}

    def client_round(self, client: Client, down: State) -> Program:
        w = join(down["body"], down["head"])
        has = (client.label_counts > 0).to(w.weights.dtype)
        first = yield Train(
            {"w": w}, loss=head_loss, epochs=self.hp.head_epochs, only={"w": ("head",)}, context={"has": has}
        )
        trained = yield Train({"w": first["w"]}, loss=whole_loss, context={"has": has})
        yield Upload({"body": trained["w"].without("head"), "head": trained["w"].part("head"), "has": has})
        return trained["w"]

    def aggregate(self, server: Server, messages: list[Message]) -> Program:
        server.state["body"] = mean(messages, "body")
        stepped = yield Train(
            {"weights": torch.stack([m["head"].tensors()["head.weight"] for m in messages])},
            loss=server_loss,
            steps=1 if self.hp.server_lr else 0,
            feed=Feed("none", 1),
            optimizer=SGD(lr=self.hp.server_lr, momentum=0.0, weight_decay=0.0, nesterov=False),
            context={"has": torch.stack([m["has"] for m in messages])},
        )
        heads, ids = list(server.state["heads"]), sorted(server.sizes)
        for m, weight in zip(messages, stepped["weights"], strict=True):
            tensors = {**m["head"].tensors(), "head.weight": weight}
            flat = torch.cat([tensors[e.name].flatten() for e in m["head"].spec.params])
            heads[ids.index(m.client)] = m["head"].with_weights(flat)
        server.state["heads"] = heads

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return join(down["body"], down["head"])


def from_simplex(weight: Tensor, has: Tensor) -> Tensor:
    """|| G / ||G|| - (I - 1/C) / sqrt(C - 1) restricted to the client's classes ||, Frobenius, with G = W W^T.

    Args:
        weight: `[C, d]` rows of the head.
        has: `[C]`, 1 for a class that the client has samples of.
    """
    classes = len(weight)
    gram = weight @ weight.T
    target = torch.eye(classes, dtype=weight.dtype, device=weight.device) - 1 / classes
    return (gram / gram.norm() - target * torch.outer(has, has) / max(1, classes - 1) ** 0.5).norm()


def head_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy on a frozen body + simplex times the distance to a simplex + head_decay ||W||^2."""
    w = values["w"]
    return _loss(model, w, model.features(w, batch.x, stats="frozen"), batch, ctx)


def whole_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """The same loss for the whole model + feature_decay times the sum of squares of the batch's features."""
    w = values["w"]
    z = model.features(w, batch.x)
    return _loss(model, w, z, batch, ctx) + ctx.hp.feature_decay * (batch.weight * z.square().sum(1)).sum()


def _loss(model: Any, w: Params, z: Tensor, batch: Batch, ctx: Any) -> Tensor:
    likelihood = model.head(w, z).log_softmax(1).gather(1, batch.y.unsqueeze(1)).squeeze(1)
    weight = w.tensors()["head.weight"]
    terms = ctx.hp.simplex * from_simplex(weight, ctx.has) + ctx.hp.head_decay * weight.square().sum()
    return terms - batch.mean(likelihood)


def server_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """The mean over clients of their heads' distance to simplices."""
    return torch.vmap(from_simplex)(values["weights"], ctx.has).mean()
