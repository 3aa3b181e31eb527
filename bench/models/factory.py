"""Builds a model by name, ours or another package's: without weights, checked, and prepared for `torch.func`."""

import hashlib
import json
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bench.config.validation import complete
from bench.errors import UserError
from bench.models.adapters import insert
from bench.models.init import initialise, rules_of, seeded
from bench.models.trial import Watched, check, try_out
from bench.plugin import MODELS, call_factory, is_external
from bench.rng import Address, generator
from bench.settings import AdapterSettings
from bench.tensors import constants, precise, statistics

_TRIED: dict[Hashable, Watched] = {}
"""Models that passed their trial in this process; a cell builds its model several times."""


def build(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    options: Mapping[str, Any] | None = None,
    adapters: AdapterSettings | None = None,
) -> nn.Module:
    """Build the model on the meta device, which needs no memory and no random draws.

    A user's model is constructed on the CPU for that, tried on two samples, and its values are dropped, but for those
    of its constants: these are the same for all seeds.

    Args:
        name: name of a registered model.
        shape: shape of one sample, `(channels, height, width)` or `(features,)`.
        classes: number of classes.
        options: keyword options of the model's factory.
        adapters: those that its layers get.

    Raises:
        UserError: the model or an option is unknown, an option is out of range, or the model does not fit the samples
            or breaks the rules for models, or it has no layers for the adapters.
    """
    net = _constructed(name, shape, classes, options, ("architecture", name))
    check(name, net)
    prepare(net)
    called = None
    if _is_constructed(name):
        _replace(net, _in_float32)
        at = name, MODELS.get(name), type(shape), shape, classes, json.dumps(dict(options or {}), sort_keys=True)
        if at not in _TRIED:
            _TRIED[at] = try_out(name, net, shape, classes)
        watched = _TRIED[at]
        for path in watched.moving:
            setattr(net.get_submodule(path), "moves_statistics", True)  # noqa: B010 (for mypy)
        if not watched.by_sample:  # its batches must not be padded, as those of layers with statistics
            setattr(net, "moves_statistics", True)  # noqa: B010
        setattr(net, "draws_in_training", watched.draws)  # noqa: B010
        setattr(net, "better_alone", not watched.side_by_side or getattr(net, "better_alone", False))  # noqa: B010 (for mypy)
        called = watched.called
        kept = {path for path, _ in constants(net)}
        _replace(net, lambda path, tensor: tensor if path in kept else tensor.to("meta"))
    return insert(net, adapters, name, called) if adapters else net


def initial_values(
    net: nn.Module,
    name: str,
    shape: tuple[int, ...],
    classes: int,
    options: Mapping[str, Any] | None,
    address: Address,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:
    """Initial values of `net = build(name, shape, classes, options)`, drawn at an address (`initialise`)."""

    def constructed() -> dict[str, Tensor]:
        model = prepare(_constructed(name, shape, classes, options, (*address, "constructor")))
        return {**dict(model.named_parameters()), **dict(model.named_buffers())}

    return initialise(net, generator(*address), dtype, constructed if _is_constructed(name) else None)


def values_of_constructor(
    name: str, shape: tuple[int, ...], classes: int, options: Mapping[str, Any] | None = None
) -> str:
    """Digest of a model's initial values that no seed draws, such as weights that its constructor reads from a file.

    They are found by constructing it under two seeds: these values do not move. It is empty where there are none beside
    zeros and ones, which layers have where nothing is read, and for our own models, which are not constructed.
    """
    if not _is_constructed(name):
        return ""
    first, other = (_constructed(name, shape, classes, options, ("identity", draw)) for draw in (0, 1))
    used = [path for path, rule in rules_of(prepare(first)).items() if rule is None]
    used += [path for path, _ in constants(first)]
    tensors, others = ({**dict(net.named_parameters()), **dict(net.named_buffers())} for net in (first, prepare(other)))
    known = (path for path in used if not tensors[path].is_meta)  # a network that was built by us has no numbers yet
    fixed = {path: tensors[path].detach() for path in known if torch.equal(tensors[path], others[path])}
    if all(torch.equal(tensor, (tensor != 0).to(tensor.dtype)) for tensor in fixed.values()):
        return ""
    content = hashlib.blake2b(digest_size=8)
    for path in sorted(fixed):
        content.update(f"{path} {tuple(fixed[path].shape)} {fixed[path].dtype}".encode())
        content.update(fixed[path].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return content.hexdigest()


def describe(
    name: str, shape: tuple[int, ...], classes: int, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Numbers of trainable scalars in total, in the body and in the head, and of scalars in buffers (BatchNorm)."""
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
        "buffers": sum(b.numel() for _, b in statistics(net)),
    }


def prepare(net: nn.Module) -> nn.Module:
    """Change the layers so that no layer counts batches, none overwrites its input, and attention has one code path.

    Raises:
        UserError: a layer's running statistics rest on the number of batches.
    """
    for path, layer in net.named_modules():
        if isinstance(layer, nn.modules.batchnorm._NormBase):
            if layer.track_running_stats and layer.momentum is None:
                raise UserError(
                    f"the network's layer {path!r} ({type(layer).__name__}) has momentum=None, the mean of all batches "
                    "so far, and batches are not counted here: give it a number, such as torch's default of 0.1"
                )
            # `functional_call` under `vmap` cannot update the counter.
            layer.register_buffer("num_batches_tracked", None)
        if getattr(layer, "inplace", False):
            layer.inplace = False
        if isinstance(layer, nn.MultiheadAttention | nn.TransformerEncoderLayer):
            # Without gradients these take other kernels, which round differently. The switch is one for the process.
            torch.backends.mha.set_fastpath_enabled(False)
    return net


def _is_constructed(name: str) -> bool:
    """Whether a model is constructed with values: a user's, or one of another package."""
    return MODELS.package_of(name) is not None or is_external(MODELS.get(name))


def _constructed(
    name: str, shape: tuple[int, ...], classes: int, options: Mapping[str, Any] | None, address: Address
) -> nn.Module:
    """Call the model's factory: on the meta device, or for a user's model with the values drawn at an address."""
    checked, problems = complete(MODELS, name, dict(options or {}))
    if problems:
        raise UserError(f"model {name!r}: {'; '.join(problems.values())}")
    architecture = (name.partition("/")[2],) if MODELS.package_of(name) else ()
    with seeded(*address) if _is_constructed(name) else torch.device("meta"):
        return call_factory(f"model {name!r}", nn.Module, MODELS.get(name), *architecture, shape, classes, **checked)


def _replace(net: nn.Module, convert: Callable[[str, Tensor], Tensor]) -> None:
    """Replace all parameters and buffers by what `convert(name, tensor)` makes of them."""
    for path, tensor in [*net.named_parameters(), *net.named_buffers()]:
        layer, _, name = path.rpartition(".")
        new = convert(path, tensor.detach())
        value = nn.Parameter(new, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new
        setattr(net.get_submodule(layer), name, value)  # so that a recurrent layer's own list of weights has it


def _in_float32(path: str, tensor: Tensor) -> Tensor:
    """The tensor in float32, on the CPU: without numbers if it has none, as that of a network that was built by us."""
    return torch.empty_like(tensor, device="cpu") if tensor.is_meta else tensor.to(precise(tensor.dtype, torch.float32))
