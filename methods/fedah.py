"""FedAH: Zhou, He and others 2024, "FedAH: Aggregated Head for Personalized Federated Learning".

FedRep whose clients also send their heads. In every round a client's head starts as an entry-wise mixture of its own
head and the mean head, with weights in [0, 1] that the client has learned on the received body.
"""

import math
from typing import Any

import torch
from torch import Tensor

from bench.method import (
    METHODS, SGD, Batch, Client, Do, Feed, Hyperparameters, Method, Params, Program, Range, Server, State, Train,
    Upload, Values, cross_entropy, hp, join,
)  # fmt: skip
from methods.fedrep import train_head


class Hyper(Hyperparameters):
    """Hyperparameters of FedAH.

    Attributes:
        eta: learning rate of the mixing weights.
        head_epochs: epochs of the mixing weights, and then of the head.
        body_epochs: epochs of the body; None: the cell's epochs (or steps).
    """

    eta: float = hp(1.0, ge=0, static=True, search=Range(0.01, 1, log=True))
    head_epochs: int = hp(1, ge=0, static=True, search=(1, 5, 10))
    body_epochs: int | None = hp(None, ge=0, static=True)

    def degenerate(self) -> list[str]:
        found = ["head_epochs = 0: the body of FedAH is that of FedBABU"] if self.head_epochs == 0 else []
        found += ["eta = 0: in FedAH every round begins with the mean head"] if self.eta == 0 else []
        return found + (["body_epochs = 0: the body of FedAH never moves"] if self.body_epochs == 0 else [])


@METHODS.register("fedah")
class FedAH(Method):
    """FedRep whose clients mix the mean head into their own, entry by entry, with learned weights."""

    Hyper = Hyper
    trains = "both"
    mean_of = ("model",)

    def init_client(self, server: Server, client: Client) -> None:
        head = client.state["head"] = server.initial_model().part("head")
        client.state["mix"] = torch.ones_like(head.weights)

    def client_round(self, client: Client, down: State) -> Program:
        mix = client.state["mix"] = yield from self.learn(client, down["model"])
        start = mixture(client.state["head"], down["model"], mix)
        w = yield from train_head(start, self.hp.head_epochs)
        client.state["head"] = w.part("head")
        body = tuple(w.without("head").tensors())
        trained = yield Train({"w": w}, loss=cross_entropy, epochs=self.hp.body_epochs, only={"w": body})
        yield Upload({"model": trained["w"]})
        return trained["w"]

    def learn(self, client: Client, received: Params) -> Program:
        """The mixing weights, trained on the loss of the mixture."""
        answer = yield Train(
            {"mix": client.state["mix"]},
            step=projected_step,
            epochs=self.hp.head_epochs if self.hp.eta else 0,
            feed=Feed(stream=1),
            optimizer=SGD(lr=self.hp.eta, momentum=0.0, weight_decay=0.0, nesterov=False, clip=math.inf),
            context={"own": client.state["head"], "received": received},
        )
        return answer["mix"]

    def personal(self, server: Server, client: Client, down: State) -> Program:
        mix = yield from self.learn(client, down["model"])
        return mixture(client.state["head"], down["model"], mix)


def mixture(own: Params, received: Params, mix: Tensor) -> Params:
    """The received model with the head own + (received - own) mix."""
    head = received.part("head")
    return join(head.with_weights(own.weights.lerp(head.weights, mix)), received.without("head"))


def mixture_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy of the mixture, with frozen running statistics."""
    logits = model(mixture(ctx.own, ctx.received, values["mix"]), batch.x, stats="frozen")
    return -batch.mean(logits.log_softmax(1).gather(1, batch.y.unsqueeze(1)).squeeze(1))


def projected_step(do: Do, values: Values, batch: Batch, ctx: Any) -> Values:
    """mix <- clip(mix - eta grad, 0, 1)."""
    gradients, values = do.gradient(mixture_loss, values, batch, ctx)
    return {"mix": do.update(values, gradients)["mix"].clamp(0, 1)}
