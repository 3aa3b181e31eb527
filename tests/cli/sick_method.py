"""FedAvg whose loss, or gradient, is no number for one client, in one round, at one step and because of one layer."""

from typing import Any

import torch
from torch import Tensor

from bench.method import (
    METHODS,
    Batch,
    Client,
    Do,
    Method,
    Program,
    Server,
    State,
    Train,
    Upload,
    Values,
    cross_entropy,
)

ROUND, CLIENT, STEP, LAYER = 2, 3, 4, "body.fc1.bias"  # counted as people count; clients from 0


class _Sick(Method):
    mean_of = ("model",)

    def broadcast(self, server: Server, client: Client) -> State:
        return {"model": server.state["model"], "sick": float(server.round + 1 == ROUND and client.id == CLIENT)}

    def client_round(self, client: Client, down: State) -> Program:
        context = {"sick": torch.tensor(down["sick"])}
        trained = yield self.train(down["model"], context)
        yield Upload({"model": trained["w"]})

    def train(self, w: Any, context: dict[str, Tensor]) -> Train:
        """The request."""
        return Train({"w": w}, loss=sick_loss, steps=6, context=context)


@METHODS.register("sick")
class Sick(_Sick):
    """Its weights are no numbers from there on."""


@METHODS.register("sick_hidden")
class Hidden(_Sick):
    """It leaves what is no number out of the gradient, so that all weights and losses stay finite."""

    def train(self, w: Any, context: dict[str, Tensor]) -> Train:
        return Train({"w": w}, step=careful_step, steps=6, context=context)


def sick_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Any:
    """Cross-entropy, and at that step the layer times nan."""
    factor = torch.where((ctx.sick > 0) & (batch.step == STEP - 1), torch.nan, 0.0)
    return cross_entropy(model, values, batch, ctx) + factor * values["w"].part(LAYER).weights.sum()


def careful_step(do: Do, values: Values, batch: Batch, ctx: Any) -> Values:
    """A gradient step in which what is no number counts as 0."""
    gradients, values = do.gradient(sick_loss, values, batch, ctx)
    gradients = {name: g.nan_to_num(0.0) for name, g in gradients.items()}
    _, values = do.gradient(cross_entropy, values, batch, ctx)
    return do.update(values, gradients)
