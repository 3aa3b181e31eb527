"""Builds a model by name, ours or another package's: without weights, checked, and prepared for `torch.func`."""

import copy
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from bench.config.validation import complete_options
from bench.data import TokenShape
from bench.errors import UserError, in_words
from bench.plugin import MODELS, call_factory, is_external


def build(name: str, shape: tuple[int, ...], classes: int, options: Mapping[str, Any] | None = None) -> nn.Module:
    """Build the model on the meta device, which needs no memory and no random draws.

    Args:
        name: name of a registered model.
        shape: shape of one sample, `(channels, height, width)` or `(features,)`.
        classes: number of classes.
        options: keyword options of the model's factory.

    Raises:
        UserError: the model or an option is unknown, an option is out of range, or the model does not fit the samples
            or breaks the rules for models.
    """
    checked, problems = complete_options(MODELS, name, dict(options or {}))
    if problems:
        raise UserError(f"model {name!r}: {'; '.join(problems.values())}")
    factory = MODELS.get(name)
    with torch.device("meta"):
        net = call_factory(f"model {name!r}", nn.Module, factory, shape, classes, **checked)
    _check(name, net)
    if is_external(factory):
        _try(name, net, shape, classes)
    return prepare(net)


def describe(
    name: str, shape: tuple[int, ...], classes: int, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Numbers of trainable scalars in total, in the body and in the head, and of scalars in buffers (BatchNorm).

    Raises:
        UserError: as in `build`.
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
    """Check the rules for models, with messages for the model's author."""
    if not (callable(getattr(net, "features", None)) and callable(getattr(net, "head", None))):
        raise UserError(f"model {name!r} needs `features` and `head`, with forward(x) = head(features(x)).")
    if not any(path.startswith("head.") for path, _ in net.named_parameters()):
        raise UserError(f"model {name!r} has no parameters named `head.*`, so it cannot be cut into body and head.")
    if any(isinstance(layer, nn.modules.dropout._DropoutNd) for layer in net.modules()):
        raise UserError(
            f"model {name!r} uses torch's dropout, whose draws depend on which clients are computed together: "
            "leave it out or draw the mask in the loss."
        )


def _try(name: str, net: nn.Module, shape: tuple[int, ...], classes: int) -> None:
    """Run a user's model on two samples and check that the whole model and its parts give the same logits.

    This uses a copy on the CPU with weights drawn here.
    """
    rng = torch.Generator().manual_seed(0)
    probe = copy.deepcopy(net).to_empty(device="cpu").eval()
    for p in probe.parameters():
        nn.init.normal_(p, std=0.1, generator=rng)
    for layer in probe.modules():
        if isinstance(layer, nn.modules.batchnorm._NormBase):
            layer.reset_running_stats()
    try:
        with torch.no_grad():
            if isinstance(shape, TokenShape):
                x = torch.randint(shape.vocabulary, (2, shape.length), generator=rng)
            else:
                x = torch.randn(2, *shape, generator=rng)
            features: Any = probe.features
            head: Any = probe.head
            whole, cut = probe(x), head(features(x))
    except Exception as error:  # a user's code may raise anything
        file = sys.modules[type(net).__module__].__file__
        raise UserError(f"model {name!r} does not take samples of shape {shape}: {in_words(error, file)}") from error
    if whole.shape != (2, classes):
        raise UserError(f"model {name!r} makes {tuple(whole.shape)} of 2 samples; logits are (2, {classes})")
    if not torch.allclose(whole, cut, rtol=1e-4, atol=1e-5):
        raise UserError(f"model {name!r}: forward(x) is not head(features(x)), on which methods rely; make them agree")


def prepare(net: nn.Module) -> nn.Module:
    """Change the layers so that all buffers are float statistics and no layer overwrites its input."""
    for layer in net.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            # The integer counter does not fit in a flat vector of floats, and `functional_call` under `vmap` cannot
            # update it.
            layer.register_buffer("num_batches_tracked", None)
        if getattr(layer, "inplace", False):
            layer.inplace = False  # type: ignore[assignment]
    return net
