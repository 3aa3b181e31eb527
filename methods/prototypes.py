"""Functions shared by methods whose clients send a mean per class: of features (FedProto, ...) or of logits (FD)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bench.method import Batch, Message, Params, Server, Values, join

NEVER = 1e6  # larger than any product of a prototype of length 1 and a feature, but small enough to be averaged


def merged(old: Tensor, known: Tensor, messages: Sequence[Message], *, equal: bool = False) -> tuple[Tensor, Tensor]:
    """Average the clients' class means; a class that is in no message keeps its old mean.

    Args:
        old: `[classes, d]`, the server's means so far.
        known: `[classes]`, 1 for a class of which the server has a mean.
        messages: the clients' messages, with `means` `[classes, d]` and `count` `[classes]`.
        equal: whether all clients that have a class are weighted equally, instead of by their samples of it.

    Returns:
        The new `[classes, d]` means and the new `known`.
    """
    count = torch.stack([m["count"] for m in messages])
    weight = (count > 0).to(count.dtype) if equal else count
    share = weight / weight.sum(0).clamp(min=1)
    mean = torch.einsum("kc,kcd->cd", share, torch.stack([m["means"] for m in messages]))
    seen = (count.sum(0) > 0).to(known.dtype)
    return torch.where(seen.unsqueeze(1) > 0, mean, old), torch.maximum(known, seen)


def nearest(w: Params, prototypes: Tensor, known: Tensor) -> Params:
    """The body of `w` with a head that prefers the nearest prototype: `2 p_c^T z - |p_c|^2 = |z|^2 - |z - p_c|^2`.

    A class without prototype has a bias so low that it is never predicted, but whose square is finite.

    Raises:
        ValueError: the head is not one linear layer with a bias.
    """
    head = getattr(w.spec.module, "head", None)
    if not isinstance(head, nn.Linear) or head.bias is None:
        raise ValueError(
            f"nearest prototypes need a head that is one linear layer with a bias, which {w.spec.arch} has not: "
            "choose `predict: head` or another model"
        )
    never = -(torch.finfo(prototypes.dtype).max ** 0.5) / 2
    bias = torch.where(known > 0, -prototypes.square().sum(1), never)
    return _with_head(w, 2 * known.unsqueeze(1) * prototypes, bias)


def most_similar(w: Params, prototypes: Tensor, known: Tensor) -> Params:
    """The body of `w` with a head that prefers the largest product `p_c^T z`.

    A class without prototype is never predicted if the head has a bias; otherwise its score is 0.

    Raises:
        ValueError: the head is not one linear layer.
    """
    if not isinstance(getattr(w.spec.module, "head", None), nn.Linear):
        raise ValueError(f"prototypes need a head that is one linear layer, which {w.spec.arch} has not")
    return _with_head(w, known.unsqueeze(1) * prototypes, NEVER * (known - 1))


def _with_head(w: Params, weight: Tensor, bias: Tensor) -> Params:
    layer = {"head.weight": weight, "head.bias": bias}
    own = w.part("head")
    return join(own.with_weights(torch.cat([layer[e.name].flatten() for e in own.spec.params])), w.without("head"))


def require_width(method: str, w: Params, server: Server) -> None:
    """Check that the features of a client's model have the width of the cell's model, as the server averages them.

    Raises:
        ValueError: they have another width.
    """
    width, expected = (one.tensors()["head.weight"].shape[1] for one in (w, server.initial_model()))
    if width != expected:
        raise ValueError(f"{method} needs features of one width: {w.spec.arch} has {width}, the cell's {expected}")


def pull_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy + lam times the mean squared distance of features to global class prototypes that are known."""
    w = values["w"]
    z = model.features(w, batch.x)
    likelihood = model.head(w, z).log_softmax(1).gather(1, batch.y.unsqueeze(1)).squeeze(1)
    distance = (z - ctx.prototypes[batch.y]).square().mean(1)
    return batch.mean(ctx.hp.lam * ctx.known[batch.y] * distance - likelihood)
