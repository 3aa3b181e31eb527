"""Elastic Aggregation: Chen, Hu, Tan, Wei and Wu 2023 (CVPR), "Elastic Aggregation for Federated Optimization".

Clients measure, without labels, how much the output changes with each parameter. Sensitive parameters take a smaller
step along the clients' mean update, the others a larger one.
"""

import math
from typing import Any

import torch
from torch import Tensor

from bench.method import (
    METHODS, SGD, Batch, Client, Do, Feed, Hyperparameters, Message, Method, Params, Program, Range, Server, State,
    Train, Upload, Values, cross_entropy, hp, mean,
)  # fmt: skip


class Hyper(Hyperparameters):
    """Hyperparameters of Elastic Aggregation.

    Attributes:
        tau: step of the most sensitive parameter of a tensor; the step of a parameter without effect is 1 + tau.
        mu: decay of the sensitivity, a running mean over batches.
        share: share of a client's samples, drawn anew in each round, on which sensitivities are measured.
    """

    tau: float = hp(0.5, ge=0, search=Range(0.1, 1))
    mu: float = hp(0.95, ge=0, le=1)
    share: float = hp(0.3, gt=0, le=1, static=True)

    def degenerate(self) -> list[str]:
        return ["mu = 1 with tau = 1: Elastic Aggregation is FedAvg"] if self.mu == self.tau == 1 else []


@METHODS.register("elastic")
class Elastic(Method):
    """FedAvg that takes larger steps for parameters to which the output is less sensitive."""

    Hyper = Hyper
    symmetric = False  # sensitivities are measured on drawn samples

    def init(self, server: Server) -> None:
        server.state["model"] = server.initial_model()

    def init_client(self, server: Server, client: Client) -> None:
        client.state["sensitivity"] = torch.zeros_like(server.initial_model().weights)

    def broadcast(self, server: Server, client: Client) -> State:
        return {"model": server.state["model"]}

    def client_round(self, client: Client, down: State) -> Program:
        n = math.ceil(self.hp.share * client.n_train)
        measured = yield Train(
            {"w": down["model"], "sensitivity": client.state["sensitivity"]},
            step=measuring_step,
            epochs=1,
            feed=Feed(subset=n if n < client.n_train else None, stream=1),
            optimizer={"w": SGD(lr=0.0)},
            stats="frozen",
        )
        client.state["sensitivity"] = measured["sensitivity"]
        trained = yield Train({"w": down["model"]}, loss=cross_entropy)
        yield Upload({"model": trained["w"], "sensitivity": measured["sensitivity"]})
        return trained["w"]

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        old, average = server.state["model"], mean(messages, "model")
        factor = elasticity(mean(messages, "sensitivity"), old, self.hp.tau)
        server.state["model"] = average.with_weights(old.weights + factor * (average.weights - old.weights))


def elasticity(sensitivity: Tensor, w: Params, tau: float) -> Tensor:
    """1 + tau - sensitivity / largest sensitivity of its tensor, `[d]`; tau for a tensor whose sensitivities are 0."""
    factors = []
    for part in torch.split(sensitivity, [e.size for e in w.spec.params]):
        largest = part.max()
        factors.append(1 + tau - torch.where(largest > 0, part / largest, 1.0))
    return torch.cat(factors)


def output_norm(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Mean squared norm of the logits; needs no labels."""
    return batch.mean(model(values["w"], batch.x, stats="frozen").square().sum(1))


def measuring_step(do: Do, values: Values, batch: Batch, ctx: Any) -> Values:
    """mu times the old sensitivity + (1 - mu) times the gradient's absolute value; the model does not change."""
    gradients, values = do.gradient(output_norm, values, batch, ctx)
    moved = ctx.hp.mu * values["sensitivity"] + (1 - ctx.hp.mu) * gradients["w"].abs()
    return {"w": values["w"], "sensitivity": moved}
