"""PeFLL's embedding of a client: the mean over its samples of a network's output for features and label."""

from typing import Any

import torch
from torch import Tensor

from bench.method import Batch, Client, Gradient, Params, Program, State, Values


def embedding(client: Client, down: State) -> Program:
    """The client's embedding, computed as the gradient of <u, mean over samples> with respect to u."""
    last = down["top"].tensors()["2.bias"]
    context = {**down, "labels": one_hot(client, last)}
    slopes, _ = yield Gradient({"u": torch.zeros_like(last)}, loss=mean_loss, context=context)
    return slopes["u"]


def one_hot(client: Client, like: Tensor) -> Tensor:
    """One-hot label vectors, `[classes, classes]`."""
    return torch.eye(len(client.label_counts)).to(like)


def normalised(v: Tensor, scale: State) -> Tensor:
    """Normalised by the mean and standard deviation over the first round's embeddings."""
    return (v - scale["mean"]) / scale["spread"]


def embedded(model: Any, body: Params, top: Params, batch: Batch, labels: Tensor) -> Tensor:
    """Each sample's embedding, from its features and its label."""
    z = model.features(body, batch.x, stats="frozen")
    found: Tensor = model.call("forward", top, torch.cat([z, labels[batch.y]], 1))
    return found


def mean_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """<u, mean embedding>."""
    return batch.mean(embedded(model, ctx.body, ctx.top, batch, ctx.labels) @ values["u"])


def embedder_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """<slope, mean embedding>; its gradient is `slope` propagated back through the network."""
    return batch.mean(embedded(model, values["body"], values["top"], batch, ctx.labels) @ ctx.slope)
