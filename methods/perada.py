"""PerAda: Xie, Huang, Chu, Xu, Xiao, Li and Anandkumar 2024 (CVPR), "PerAda: Parameter-Efficient Federated Learning
Personalization with Generalization Guarantees", Algorithm 1.

Only an adapter is trained and exchanged; the rest of the model keeps its initial weights. A client's own adapter is
pulled to the received one. The server distils the mean logits of the clients' models on public samples into the mean
adapter.
"""

from typing import Any

import torch
from torch import Tensor

from bench.method import (
    METHODS, Adam, Batch, Client, Feed, Hyperparameters, Message, Method, Params, Predict, Program, Range, Server,
    State, Train, Upload, Values, cross_entropy, hp, join, mean,
)  # fmt: skip
from methods.feddf import divergence
from methods.losses import proximal


class Hyper(Hyperparameters):
    """Hyperparameters of PerAda.

    Attributes:
        adapter: layers that are trained; by default all, as no model of the harness comes pretrained with adapters.
        lam: strength of the pull of the own adapter to the received one.
        distil_steps, distil_batch, distil_lr: steps (0: no distillation), batch size and learning rate on the server.
    """

    adapter: tuple[str, ...] = hp(("",), static=True)
    lam: float = hp(1.0, ge=0, search=Range(0.1, 10, log=True))
    distil_steps: int = hp(500, ge=0, static=True)
    distil_batch: int = hp(2048, ge=1, static=True)
    distil_lr: float = hp(1e-3, gt=0, static=True)

    def degenerate(self) -> list[str]:
        return ["distil_steps = 0 with all layers: PerAda is Ditto, its generic model FedAvg's"] * (
            self.distil_steps == 0 and "" in self.adapter
        ) + ["lam = 0: the own adapters are trained alone, with all layers as in Local"] * (self.lam == 0)


@METHODS.register("perada")
class PerAda(Method):
    """Own adapters are pulled to a common one, which the server distils from the clients' models."""

    Hyper = Hyper
    trains = "both"
    public = True

    def init(self, server: Server) -> None:
        server.state["model"] = server.initial_model()

    def init_client(self, server: Server, client: Client) -> None:
        client.state |= {"start": server.initial_model(), "personal": server.initial_model()}

    def broadcast(self, server: Server, client: Client) -> State:
        return {"adapter": server.state["model"].part(*self.hp.adapter)}

    def client_round(self, client: Client, down: State) -> Program:
        only = {"w": self.hp.adapter}
        received = self.completed(client.state["start"], down["adapter"])
        trained = yield Train({"w": received}, loss=cross_entropy, only=only)
        yield Upload({"adapter": trained["w"].part(*self.hp.adapter)})
        context = {"center": self.completed(client.state["personal"], down["adapter"]).weights}
        own = yield Train({"w": client.state["personal"]}, loss=pulled_loss, only=only, context=context)
        client.state["personal"] = own["w"]
        return trained["w"]

    def completed(self, w: Params, adapter: Params) -> Params:
        """The model `w` with another adapter."""
        return join(adapter, w.without(*self.hp.adapter))

    def aggregate(self, server: Server, messages: list[Message]) -> Program:
        model = self.completed(server.state["model"], mean(messages, "adapter"))
        if self.hp.distil_steps:
            logits = []
            for m in messages:
                logits.append((yield Predict(self.completed(model, m["adapter"]), "public", "logits")))
            student = yield Train(
                {"w": model},
                loss=divergence,
                steps=self.hp.distil_steps,
                only={"w": self.hp.adapter},
                feed=Feed("public", self.hp.distil_batch),
                optimizer=Adam(self.hp.distil_lr, schedule="cosine"),
                context={"teacher": torch.stack(logits).mean(0).log_softmax(1)},
            )
            model = self.completed(model, student["w"].part(*self.hp.adapter))
        server.state["model"] = model

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return client.state["personal"]


def pulled_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy + lam/2 ||v - w||^2."""
    return cross_entropy(model, values, batch, ctx) + ctx.hp.lam * proximal(values["w"], ctx.center)
