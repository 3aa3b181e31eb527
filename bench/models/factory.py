"""A model by name, ours or another package's: built without weights, checked, and made fit for `torch.func`."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from bench.config.validation import complete_options
from bench.errors import UserError
from bench.plugin import MODELS


def build(name: str, shape: tuple[int, ...], classes: int, options: Mapping[str, Any] | None = None) -> nn.Module:
    """The model on the meta device: no memory, no random draws.

    Args:
        name: a registered model.
        shape: shape of one sample, `(channels, height, width)` or `(features,)`.
        classes: number of classes.
        options: keyword options of the model's factory.

    Raises:
        UserError: unknown model or option, an option out of range, a model that does not fit the samples, or one that
            breaks the rules for models.
    """
    checked, problems = complete_options(MODELS, name, dict(options or {}))
    if problems:
        raise UserError(f"model {name!r}: {'; '.join(problems.values())}")
    with torch.device("meta"):
        net: nn.Module = MODELS.get(name)(shape, classes, **checked)
    _check(name, net)
    return prepare(net)


def describe(
    name: str, shape: tuple[int, ...], classes: int, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Numbers of scalars: trainable ones in all, in body and in head, and those in buffers (BatchNorm statistics).

    Raises:
        UserError: as `build`.
    """
    net = build(name, shape, classes, options)
    sizes = {path: p.numel() for path, p in net.named_parameters()}
    head = sum(size for path, size in sizes.items() if path.startswith("head."))
    total = sum(sizes.values())
    return {
        "model": name,
        "shape": shape,
        "classes": classes,
        "parameters": total,
        "body": total - head,
        "head": head,
        "buffers": sum(b.numel() for b in net.buffers()),
    }


def _check(name: str, net: nn.Module) -> None:
    """The rules for models, in words for the author of one."""
    if not (callable(getattr(net, "features", None)) and callable(getattr(net, "head", None))):
        raise UserError(f"model {name!r} needs `features` and `head`, with forward(x) = head(features(x)).")
    if not any(path.startswith("head.") for path, _ in net.named_parameters()):
        raise UserError(f"model {name!r} has no parameters named `head.*`, so it cannot be cut into body and head.")
    if any(isinstance(layer, nn.modules.dropout._DropoutNd) for layer in net.modules()):
        raise UserError(
            f"model {name!r} uses torch's dropout, whose draws depend on which clients are computed together: "
            "leave it out or draw the mask in the loss."
        )


def prepare(net: nn.Module) -> nn.Module:
    """Set the layers so that the buffers are float statistics only and no input is overwritten."""
    for layer in net.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            # An integer counter fits in no flat vector of floats, and `functional_call` under `vmap` cannot move it.
            layer.register_buffer("num_batches_tracked", None)
        if isinstance(layer, nn.ReLU):
            layer.inplace = False
    return net
