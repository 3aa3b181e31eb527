"""Initial weights from a file: a state dict by `torch.save` or safetensors, of torchvision, timm or Hugging Face."""

import itertools
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.errors import UserError, optional
from bench.models.adapters import tensors_of_adapters
from bench.places import check_file
from bench.tensors import constants, statistics

_COUNTERS = "num_batches_tracked"  # a buffer of BatchNorm that models here do not have
_WITHIN = ("state_dict", "model_state_dict", "model", "net")
"""Where training scripts put the state dict in a file with other things; the first that is there is taken."""
_HEADS = ("head", "fc", "classifier", "heads.head", "head.fc")
"""What other packages call the last layer."""


@dataclass(frozen=True)
class Match:
    """Matching of a file's tensors with a network's.

    Attributes:
        taken: the file's key of each tensor of the network that starts with the file's values.
        reset: the shapes of the network's other tensors; they are drawn.
        left: the shapes of the file's tensors that are not used, except counters and constants.
        by_order: the names of the body's tensors that the file has under other names: the order of layers matches them.
    """

    taken: dict[str, str]
    reset: dict[str, tuple[int, ...]]
    left: dict[str, tuple[int, ...]]
    by_order: tuple[str, ...]


def pretrained(path: Path, net: nn.Module) -> dict[str, Tensor]:
    """Values for a network's tensors, by the network's names, in the file's dtype: those that `match` takes.

    Raises:
        UserError: as in `match`.
    """
    state = _state_for(path, net)
    return {name: state[key] for name, key in _match(path, state, net).taken.items()}


def match(path: Path, net: nn.Module) -> Match:
    """Find the tensors of a file that a network starts with: by their names, or by the order of layers.

    Order never overrides a name: a file whose order contradicts the names that match is refused, and so are layers of
    one shape in a file that is sorted by names, whose order says nothing. The head is drawn if its shape in the file is
    another one, as with another number of classes.

    Args:
        path: the file.
        net: the network, on any device; of its values, constants are read.

    Raises:
        UserError: there is no such file, it holds no state dict, a tensor of it does not fit the network, the order of
            its layers does not say which is which, or a constant differs from the network's.
    """
    return _match(path, _state_for(path, net), net)


def _match(path: Path, state: Mapping[str, Tensor], net: nn.Module) -> Match:
    added = tensors_of_adapters(net)
    tensors = itertools.chain(net.named_parameters(), statistics(net))
    target = {name: tensor for name, tensor in tensors if name not in added}
    body = [name for name in target if not name.startswith("head.")]
    try:
        named = _by_names(target, state, getattr(net, "place", None))
        keys = named if named and named.keys() >= set(body) else _by_order(path, target, state, named)
        for name in body:
            if name in keys:
                _check(name, target[name], keys[name], state[keys[name]])
        _compare_constants(net, state)
    except ValueError as error:
        raise UserError(f"pretrained {path}: {error}") from None
    if any(target[name].shape != state[key].shape for name, key in keys.items()):  # of the head
        keys = {name: key for name, key in keys.items() if name in body}
    fixed = tuple(name.removeprefix("body.") for name, _ in constants(net))
    left = {key for key in state if not (fixed and key.endswith(fixed))}.difference(keys.values())
    return Match(
        keys,
        {name: tuple(tensor.shape) for name, tensor in target.items() if name not in keys},
        {key: tuple(tensor.shape) for key, tensor in state.items() if key in left},
        tuple(name for name in keys if name in body and name not in named),
    )


def _check(name: str, wanted: Tensor, key: str, stored: Tensor) -> None:
    if stored.shape != wanted.shape:
        raise ValueError(
            f"{key} {tuple(stored.shape)} does not fit the model's {name} {tuple(wanted.shape)}: give the model the "
            "file's sizes by `model_options`, or take the tensor out of the file"
        )
    if not stored.is_floating_point():
        raise ValueError(f"{key} holds {stored.dtype}, and the model's {name} floating numbers: save it unquantised")


def _by_names(target: Mapping[str, Tensor], stored: Mapping[str, Tensor], place: str | None) -> dict[str, str]:
    """The file's key of each tensor that has its name in the file, none if that is less than half of the body.

    Names are compared without the network's `body.` and without one beginning on either side, such as `module.`, for
    the file and the network as a whole: the one with which most tensors fit.

    Raises:
        ValueError: the file has the body twice.
    """
    head = [name for name in target if name.startswith("head.")]
    plain = {name.removeprefix("body."): name for name in target if name not in head}
    if not plain:
        return _of_head(head, list(stored), "", place)
    fitting, same_name = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    by_ending: dict[str, list[str]] = {}
    for key in stored:
        for ending in _endings(key):
            by_ending.setdefault(ending, []).append(key)
    for name in plain:
        for ending in _endings(name):
            # one word alone, such as `weight`, is no name but the whole of one
            for key in by_ending.get(ending, ()) if "." in ending or ending == name else ():
                beginnings = key.removesuffix(ending), name.removesuffix(ending)
                same_name[beginnings] += 1
                fitting[beginnings] += target[plain[name]].shape == stored[key].shape
    ranked = sorted(same_name, key=lambda at: (-fitting[at], -same_name[at], len("".join(at))))
    if not ranked or 2 * same_name[ranked[0]] < len(plain):
        return {}
    before_key, before_name = ranked[0]
    names = {name: before_key + name.removeprefix(before_name) for name in plain if name.startswith(before_name)}
    keys = {plain[name]: key for name, key in names.items() if key in stored}
    for again, of_name in ranked[1:]:
        if of_name == before_name and all(of[ranked[0]] == of[again, of_name] for of in (fitting, same_name)):
            raise ValueError(f"it has the model's tensors twice, under {before_key!r} and {again!r}; save one of them")
    return keys | _of_head(head, [key for key in stored if key not in keys.values()], before_key, place)


def _endings(name: str) -> Iterable[str]:
    parts = name.split(".")
    return (".".join(parts[k:]) for k in range(len(parts)))


def _of_head(head: list[str], keys: list[str], beginning: str, place: str | None) -> dict[str, str]:
    """The file's keys of the head: of the layer of its place in the network that was cut, or of another package's name
    for it, or of the only layer that is left."""
    starts = [beginning, beginning.removesuffix("body."), ""]
    layers = [f"{start}{layer}." for start in starts for layer in (*([place] if place else ()), *_HEADS)]
    if len(_layers(keys)) == 1:
        layers.append(keys[0].removesuffix(keys[0].rpartition(".")[2]))
    for layer in layers:
        matched = {name: layer + name.removeprefix("head.") for name in head}
        if set(matched.values()) <= set(keys):
            return matched
    return {}


def _by_order(
    path: Path, target: Mapping[str, Tensor], state: Mapping[str, Tensor], named: dict[str, str]
) -> dict[str, str]:
    """The file's keys layer after layer, and within a layer by the last part of the names; `named`, if there are such
    and the layers do not all fit.

    Raises:
        ValueError: the layers are not of the same kinds, the order gives a tensor another key than its name does, or it
            says nothing, as the file is sorted by names and has layers of one shape.
    """
    own_layers, stored_layers = _layers(sorted(target, key=lambda name: name.startswith("head."))), _layers(state)
    keys: dict[str, str] = {}
    nothing: dict[str, str] = {}
    for mine, stored in itertools.zip_longest(own_layers, stored_layers, fillvalue=nothing):
        if mine.keys() != stored.keys() and named:
            return named
        if mine.keys() != stored.keys():
            raise ValueError(
                f"{len(state)} tensors for {len(target)} of the model; the file has {_short(stored.values())} and the "
                f"model {_short(mine.values())} in the same place: write the file with the model's names"
            )
        keys |= {name: stored[kind] for kind, name in mine.items()}
    if named and any(target[n].shape != state[key].shape for n, key in keys.items() if not n.startswith("head.")):
        return named
    if any(keys[name] != key for name, key in named.items()):
        raise ValueError(
            f"it has {len(named)} of {len(target)} tensors under the model's names, but not "
            f"{_short(name for name in target if name not in named)}, and the order of its layers is not the model's: "
            "rename those that are meant, or take them out of the file, so that what is missing is drawn"
        )
    loose = _layers(key for name, key in keys.items() if name not in named)
    shapes = {frozenset((kind, state[key].shape) for kind, key in layer.items()) for layer in loose}
    # Networks have weights before biases, which is not the order of the alphabet.
    in_alphabet = list(state) == sorted(state) and any(len(layer) > 1 for layer in stored_layers)
    if len(shapes) < len(loose) and (path.suffix == ".safetensors" or in_alphabet):
        raise ValueError(
            f"its names are not the model's, such as {_short(target)}, and it is sorted by names, so that its order "
            "does not tell layers of one shape apart: rename its tensors as the model's"
        )
    return keys


def _layers(names: Iterable[str]) -> list[dict[str, str]]:
    """The names of each layer by their last part; layers are in the order of their first tensors."""
    layers: dict[str, dict[str, str]] = {}
    for name in names:
        layer, _, kind = name.rpartition(".")
        layers.setdefault(layer, {})[kind] = name
    return list(layers.values())


def _compare_constants(net: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Refuse a file whose integers, masks or complex numbers are not those of the network, which keeps its own.

    Raises:
        ValueError: it has such a buffer of the network, with other values.
    """
    kept = net.state_dict()
    for name, constant in constants(net):
        ending = name.removeprefix("body.")
        keys = [key for key in state if f".{key}".endswith(f".{ending}")]
        if name not in kept or constant.is_meta or not keys:
            continue
        if not any(torch.equal(state[key].to(constant.dtype), constant.cpu()) for key in keys):
            raise ValueError(
                f"its {keys[0]} differs from the model's {name}, which its constructor makes, and the file's weights "
                "were trained with the file's: let the constructor make it from a fixed seed or an option of the model"
            )


def _short(names: Iterable[str]) -> str:
    first = list(itertools.islice(names, 4))
    return ", ".join(first if len(first) < 4 else [*first[:3], "..."]) or "no further tensor"


def _state_for(path: Path, net: nn.Module) -> dict[str, Tensor]:
    """The tensors of a file, under the names that the layers of Hugging Face's networks have in memory.

    `save_pretrained` writes the names of older versions (`vit.encoder.layer.0` for `vit.layers.0`), and the library
    knows which: it is asked what it would call each tensor of the network.
    """
    state = _state(path)
    # The library is loaded, if a network is of it. Before version 5 files and networks have the same names.
    library, loading = (sys.modules.get(f"transformers{part}") for part in ("", ".core_model_loading"))
    networks = [n for n in net.modules() if library and loading and isinstance(n, library.PreTrainedModel)]
    if not loading or not networks:
        return state
    names = list(networks[0].state_dict())
    numbered = {name: torch.tensor(i) for i, name in enumerate(names)}
    in_files = {old: names[int(i)] for old, i in loading.revert_weight_conversion(networks[0], numbered).items()}
    base = networks[0].base_model_prefix  # which a file of the network without its head lacks
    shorter = {old.removeprefix(f"{base}."): new.removeprefix(f"{base}.") for old, new in in_files.items()}
    return {in_files.get(key, shorter.get(key, key)): value for key, value in state.items()}


def _state(path: Path) -> dict[str, Tensor]:
    """The tensors of the file without counters."""
    if path.name.endswith(".index.json"):
        raise UserError(
            f"pretrained {path}: an index of several files, and one file is needed: "
            "model.save_pretrained(FOLDER, max_shard_size='1TB')"
        )
    check_file(path, "file of weights", "set `pretrained` to yours")
    content = _by_safetensors(path) if path.suffix == ".safetensors" else _by_torch(path)
    if isinstance(content, dict) and not _is_state(content):
        content = next((content[name] for name in _WITHIN if _is_state(content.get(name))), content)
    if not _is_state(content):
        raise UserError(f"pretrained {path}: not a state dict; save `model.state_dict()`")
    return {name: value for name, value in content.items() if not name.endswith(_COUNTERS)}


def _is_state(content: Any) -> bool:
    return isinstance(content, dict) and bool(content) and all(isinstance(value, Tensor) for value in content.values())


def _by_torch(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # any error, depending on the file; some of torch's messages advise to run the code in it
        raise UserError(
            f"pretrained {path}: not a file of `torch.save`, or one with other things than tensors; save "
            "`model.state_dict()`"
        ) from None


def _by_safetensors(path: Path) -> dict[str, Tensor]:
    library = optional("safetensors.torch", f"pretrained {path}")
    try:
        content: dict[str, Tensor] = library.load_file(path)
    except Exception as error:
        raise UserError(f"pretrained {path}: not a file of safetensors ({error})") from None
    return content
