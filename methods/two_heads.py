"""The losses of FedRoD (Chen and Chao 2022): the balanced softmax of the generic model's logits, and the cross-entropy
of those logits plus the logits of a personal head. Used by `methods.fedrod`.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bench.method import Batch, Params, Values


def made_head(hyper: Params, shares: Tensor) -> Tensor:
    """The hyper-network: two dense layers from a class distribution `[classes]` to the flat weights of a head."""
    t = hyper.tensors()
    return t["2.weight"] @ torch.relu(t["0.weight"] @ shares + t["0.bias"]) + t["2.bias"]


def generic_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Balanced softmax, CE(logits + gamma log n_i, y)."""
    logits = model(values["w"], batch.x)
    return batch.mean(balanced(logits, batch, ctx))


def personal_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """CE(stop[logits] + personal head(stop[features]), y), where stop[] blocks gradients; trains the personal head."""
    z = model.features(values["w"], batch.x)
    return batch.mean(residual(model, model.head(values["w"], z), z, values["personal"], batch))


def linear_losses(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """The sum of both losses: the first trains `w`, the second the personal head."""
    return _losses(model, values["w"], values["personal"], batch, ctx)


def hyper_losses(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """The sum of both losses, with a personal head that the hyper-network makes."""
    head = values["w"].part("head")
    return _losses(model, values["w"], head.with_weights(made_head(values["personal"], ctx.shares)), batch, ctx)


def _losses(model: Any, w: Params, personal: Params, batch: Batch, ctx: Any) -> Tensor:
    z = model.features(w, batch.x)
    logits = model.head(w, z)
    return batch.mean(balanced(logits, batch, ctx) + residual(model, logits, z, personal, batch))


def balanced(logits: Tensor, batch: Batch, ctx: Any) -> Tensor:
    """Cross-entropy of each sample with the balanced softmax."""
    return functional.cross_entropy(logits + ctx.hp.gamma * ctx.log_counts, batch.y, reduction="none")


def residual(model: Any, logits: Tensor, z: Tensor, personal: Params, batch: Batch) -> Tensor:
    """Cross-entropy of each sample for the sum of both heads' logits; only the personal head gets a gradient."""
    return functional.cross_entropy(logits.detach() + model.head(personal, z.detach()), batch.y, reduction="none")
