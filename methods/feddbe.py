"""FedDBE: Zhang, Hua, Cao, Wang, Song, Xue, Ma and Guan 2023 (NeurIPS), "Eliminating Domain Bias for Federated Learning
in Representation Space"; FedAvg with its two modules.

Each client learns a personal mean, a vector that is added to its features before the head. The mean of the features
themselves is pulled to the global mean of all clients' features, which is computed in the first round.
"""

from typing import Any

import torch
from torch import Tensor

from bench.method import (
    METHODS, SGD, Batch, Client, Do, Hyperparameters, Message, Method, Params, Program, Range, Server, State, Train,
    Upload, Values, compose, hp, mean,
)  # fmt: skip


class Hyper(Hyperparameters):
    """Hyperparameters of FedDBE.

    Attributes:
        kl: weight of half the mean squared distance between the running mean of features and the global one.
        momentum: weight of the newest batch in the running mean.
        mean_lr: learning rate of the personal mean; None: the cell's learning rate.
    """

    kl: float = hp(50.0, ge=0, search=Range(0.1, 100, log=True))
    momentum: float = hp(1.0, ge=0, le=1, search=(0.1, 0.5, 1.0))
    mean_lr: float | None = hp(None, ge=0, static=True)

    def degenerate(self) -> list[str]:
        plain = self.mean_lr == 0 and (self.kl == 0 or self.momentum == 0)
        return ["without a personal mean and a pull FedDBE is FedAvg"] if plain else []


@METHODS.register("feddbe")
class FedDBE(Method):
    """FedAvg whose clients add a personal mean to their features, which are pulled to the global mean."""

    Hyper = Hyper
    trains = "both"
    mean_of = ("model",)

    def init(self, server: Server) -> None:
        w = server.state["model"] = server.initial_model()
        server.state["center"] = w.weights.new_zeros(w.tensors()["head.weight"].shape[1])
        server.state["known"] = w.weights.new_zeros(())

    def init_client(self, server: Server, client: Client) -> None:
        client.state["mean"] = torch.zeros_like(server.state["center"])

    def broadcast(self, server: Server, client: Client) -> State:
        return {name: server.state[name] for name in ("model", "center", "known")}

    def client_round(self, client: Client, down: State) -> Program:
        own, nothing = client.state["mean"], torch.zeros_like(client.state["mean"])
        rate = SGD(lr=self.hp.mean_lr, momentum=0.0, weight_decay=0.0)
        trained = yield Train(
            {"w": down["model"], "mean": own, "running": nothing, "batch": nothing},
            step=step,
            optimizer={"w": SGD(), "mean": rate, "batch": rate},
            context={"center": down["center"], "known": down["known"]},
        )
        client.state["mean"] = trained["mean"]
        yield Upload(
            {"model": trained["w"]} if down["known"] else {"model": trained["w"], "running": trained["running"]}
        )
        return compose(shifted, w=trained["w"], mean=trained["mean"])

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        super().aggregate(server, messages)
        if not server.state["known"]:
            server.state["center"] = mean(messages, "running")
            server.state["known"] = torch.ones_like(server.state["known"])

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return compose(shifted, w=down["model"], mean=client.state["mean"])


def shifted(model: Any, parts: Values, x: Tensor) -> Tensor:
    """Logits of features plus the personal mean."""
    return model.head(parts["w"], model.features(parts["w"], x) + parts["mean"])


def loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy with the personal mean + kl/2 mean (running mean - global mean)^2; plain cross-entropy in round 1.

    The gradient with respect to `batch` is the mean of the batch's features.
    """
    w = values["w"]
    z = model.features(w, batch.x)
    newest = batch.share @ z
    running = (1 - ctx.hp.momentum) * values["running"] + ctx.hp.momentum * newest
    pull = ctx.hp.kl / 2 * (running - ctx.center).square().mean()
    logits = model.head(w, z + ctx.known * values["mean"])
    likelihood = logits.log_softmax(1).gather(1, batch.y.unsqueeze(1)).squeeze(1)
    return ctx.known * pull - batch.mean(likelihood) + values["batch"] @ newest.detach()


def step(do: Do, values: Values, batch: Batch, ctx: Any) -> Values:
    """One step on the model and the personal mean, and an update of the running mean with the batch."""
    gradients, moved = do.gradient(loss, values, batch, ctx)
    running = (1 - ctx.hp.momentum) * values["running"] + ctx.hp.momentum * gradients["batch"]
    return do.update(moved, gradients) | {"running": running, "batch": values["batch"]}
