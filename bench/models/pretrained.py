"""Initial weights from a file with a state dict written by `torch.save`, such as torchvision's files."""

import functools
import itertools
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.config.file_digests import versions
from bench.errors import UserError

_COUNTERS = "num_batches_tracked"  # a buffer of BatchNorm that models here do not have


def pretrained(path: Path, net: nn.Module) -> dict[str, Tensor]:
    """Values for a network's tensors, by the network's names, in the file's dtype.

    A tensor `body.X` takes the file's `X`, or `P.X` with one prefix P for all, such as `module.`; the file's remaining
    layer is the head, called `fc` by torchvision. Where the file's names are others, layers are matched in their order.
    Within a layer tensors are matched by the last part of their names, so their order does not count: torchvision's
    older files have BatchNorm's statistics first. The head is left out if its shape in the file is another one, as with
    another number of classes.

    Args:
        path: the file.
        net: the network, on any device; its values are not read.

    Raises:
        UserError: there is no such file, it holds no state dict, or its tensors do not fit the network.
    """
    state = _read(*versions(_existing(path))[0])
    target = net.state_dict()
    body, head = ([name for name in target if name.startswith("head.") == last] for last in (False, True))
    try:
        keys = _of_body(body, state)
        rest = [key for key in state if key not in keys.values()]
        keys |= _by_layers(head if keys else [*body, *head], rest)
    except ValueError as error:
        raise UserError(f"pretrained {path}: {error}") from None
    for name in body:
        if state[keys[name]].shape != target[name].shape:
            raise UserError(
                f"pretrained {path}: {keys[name]} {tuple(state[keys[name]].shape)} does not fit the model's {name} "
                f"{tuple(target[name].shape)}"
            )
    fits = all(target[name].shape == state[keys[name]].shape for name in head)
    return {name: state[key] for name, key in keys.items() if fits or name in body}


def _of_body(body: list[str], stored: Collection[str]) -> dict[str, str]:
    """The file's key of each tensor of the body, by equal names but for a prefix; none if the file's names are others.

    Raises:
        ValueError: the file has the body under several prefixes.
    """
    plain = [name.removeprefix("body.") for name in body]
    starts = [key.removesuffix(plain[0]) for key in stored if key.endswith(plain[0])] if plain else []
    prefixes = [start for start in starts if start[-1:] in ("", ".") and all(start + name in stored for name in plain)]
    if len(prefixes) > 1:
        raise ValueError(
            f"it has the model's {plain[0]} as {prefixes[0]}{plain[0]} and as {prefixes[1]}{plain[0]}; save one of them"
        )
    return {name: start + short for start in prefixes for name, short in zip(body, plain, strict=True)}


def _by_layers(names: list[str], keys: list[str]) -> dict[str, str]:
    """Find the key of each name, layer after layer, and in a layer by the last part of the names.

    Raises:
        ValueError: the layers are not of the same kinds.
    """
    matched: dict[str, str] = {}
    nothing: dict[str, str] = {}
    for layer_names, stored in itertools.zip_longest(_layers(names), _layers(keys), fillvalue=nothing):
        if layer_names.keys() != stored.keys():
            listed = " and ".join(
                f"{owner} {', '.join(layer.values()) or 'no further tensor'}"
                for owner, layer in (("the file has", stored), ("the model", layer_names))
            )
            raise ValueError(f"{len(keys)} tensors for {len(names)} of the model; {listed} in the same place")
        matched |= {name: stored[kind] for kind, name in layer_names.items()}
    return matched


def _layers(names: Iterable[str]) -> list[dict[str, str]]:
    """The names of each layer by their last part; layers are in the order of their first tensors."""
    layers: dict[str, dict[str, str]] = {}
    for name in names:
        layer, _, kind = name.rpartition(".")
        layers.setdefault(layer, {})[kind] = name
    return list(layers.values())


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise UserError(f"pretrained {path}: there is no such file")
    return path


@functools.lru_cache(maxsize=2)
def _read(path: Path, changed: int, size: int) -> dict[str, Tensor]:
    """The tensors of the file without counters; `changed` and `size` identify its version in the cache."""
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # any error is possible, depending on the content of the file
        raise UserError(f"pretrained {path}: not a file of `torch.save` ({str(error).splitlines()[0]})") from None
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise UserError(f"pretrained {path}: not a state dict; save `model.state_dict()`")
    return {name: value for name, value in content.items() if not name.endswith(_COUNTERS)}
