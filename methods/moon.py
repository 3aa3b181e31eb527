"""MOON: Li, He and Song 2021 (CVPR), "Model-Contrastive Federated Learning", Algorithm 1.

Features are the input of the classification head. The paper's additional projection head is left out, so that all
methods train the same network.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bench.method import (
    METHODS, Batch, Client, Hyperparameters, Method, Program, Range, Server, State, Train, Upload, Values,
    hp,
)  # fmt: skip


class Hyper(Hyperparameters):
    """Hyperparameters of MOON; the paper tries mu in {0.1, 1, 5, 10} and uses tau = 0.5."""

    mu: float = hp(1.0, ge=0, search=Range(0.1, 10, log=True))
    tau: float = hp(0.5, gt=0)

    def degenerate(self) -> list[str]:
        return ["mu = 0: MOON is FedAvg"] if self.mu == 0 else []


@METHODS.register("moon")
class MOON(Method):
    """FedAvg whose clients keep their features near the received model's and away from their own last model's."""

    Hyper = Hyper
    mean_of = ("model",)

    def init_client(self, server: Server, client: Client) -> None:
        client.state["previous"] = server.initial_model()

    def client_round(self, client: Client, down: State) -> Program:
        context = {"received": down["model"], "previous": client.state["previous"]}
        trained = yield Train({"w": down["model"]}, loss=contrastive_loss, context=context)
        client.state["previous"] = trained["w"]
        yield Upload({"model": trained["w"]})
        return trained["w"]


def contrastive_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy + mu l_con; l_con of eq. 3 is -log(e^a / (e^a + e^b)), a cross-entropy with two classes."""
    w = values["w"]
    z = model.features(w, batch.x)
    likelihood = model.head(w, z).log_softmax(1).gather(1, batch.y.unsqueeze(1)).squeeze(1)
    near = functional.cosine_similarity(z, model.features(ctx.received, batch.x, stats="frozen"), dim=1)
    far = functional.cosine_similarity(z, model.features(ctx.previous, batch.x, stats="frozen"), dim=1)
    alike = (torch.stack([near, far], dim=1) / ctx.hp.tau).log_softmax(1)[:, 0]
    return batch.mean(-ctx.hp.mu * alike - likelihood)
