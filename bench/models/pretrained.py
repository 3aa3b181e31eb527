"""Initial weights from a file: a state dict by `torch.save` or safetensors, of torchvision, timm or Hugging Face."""

import functools
import itertools
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.config.digests import versions
from bench.errors import UserError, optional
from bench.models.adapters import tensors_of_adapters
from bench.places import check_file
from bench.tensors import constants, statistics

_COUNTERS = "num_batches_tracked"  # a buffer of BatchNorm that models here do not have
_WITHIN = ("state_dict", "model_state_dict", "model", "net")
"""Where training scripts put the state dict in a file with other things; the first that is there is taken."""
_HEADS = ("head", "fc", "classifier", "heads.head", "head.fc")
"""What other packages call the last layer."""


Beginnings = tuple[str, str]  # of the file's keys and of the network's names


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
    taken, state = match(path, net).taken, _state_for(path, net)
    return {name: state[key] for name, key in taken.items()}


def match(path: Path, net: nn.Module) -> Match:
    """Find the tensors of a file that a network starts with.

    Names are compared without the network's `body.` and without one beginning on either side, such as `module.`, for
    the file and the network as a whole. If tensors of the body are missing then, and each layer of the network has the
    layer of the same kind and shape in the same place in the file, layers are matched in their order; within a layer,
    tensors are matched by the last part of their names, so their order does not count: torchvision's older files have
    BatchNorm's statistics first. Order never overrides a name: a file whose order contradicts the names that match is
    refused, and so are layers of one shape in a file that is sorted by names, whose order says nothing. Otherwise what
    is missing is drawn, if at least half of the body is there by name.

    The head is taken from the layer of its name, of its place in the network that was cut (`bench.with_head`), or of
    other packages' names for it, or from what is left if that has the head's layers. It is drawn if its shape in the
    file is another one, as with another number of classes.

    Args:
        path: the file.
        net: the network, on any device; of its values, constants are read.

    Raises:
        UserError: there is no such file, it holds no state dict, a tensor of it does not fit the network, the order of
            its layers does not say which is which, or a constant differs from the network's.
    """
    state, added = _state_for(path, net), tensors_of_adapters(net)
    tensors = itertools.chain(net.named_parameters(), statistics(net))
    target = {name: tensor for name, tensor in tensors if name not in added}
    body, head = ([name for name in target if name.startswith("head.") == last] for last in (False, True))
    try:
        named, ordered = _by_names(target, state, getattr(net, "place", None))
        keys = named | ordered
        if not keys or not keys.keys() >= set(body):
            keys = _by_layers([*body, *head], target, state, named, keys)
        for name, key in keys.items():
            if name in body:
                _check(name, target[name], key, state[key])
        if not all(target[name].shape == state[keys[name]].shape for name in head if name in keys):
            keys = {name: key for name, key in keys.items() if name in body}
        ordered = {name: key for name, key in keys.items() if name not in named}
        if _is_sorted(path, state):
            _refuse_twins(ordered, state)
        _compare_constants(net, state)
    except ValueError as error:
        raise UserError(f"pretrained {path}: {error}") from None
    fixed = tuple(name.removeprefix("body.") for name, _ in constants(net))
    left = {key for key in state if not (fixed and key.endswith(fixed))}.difference(keys.values())
    return Match(
        keys,
        {name: tuple(tensor.shape) for name, tensor in target.items() if name not in keys},
        {key: tuple(tensor.shape) for key, tensor in state.items() if key in left},
        tuple(name for name in ordered if name in body),
    )


def _check(name: str, wanted: Tensor, key: str, stored: Tensor) -> None:
    if stored.shape != wanted.shape:
        raise ValueError(
            f"{key} {tuple(stored.shape)} does not fit the model's {name} {tuple(wanted.shape)}: give the model the "
            "file's sizes by `model_options`, or take the tensor out of the file"
        )
    if not stored.is_floating_point():
        raise ValueError(f"{key} holds {stored.dtype}, and the model's {name} floating numbers: save it unquantised")


def _by_names(
    target: Mapping[str, Tensor], stored: Mapping[str, Tensor], place: str | None
) -> tuple[dict[str, str], dict[str, str]]:
    """The file's key of each tensor that has its name in the file, none if that is less than half of the body; and the
    keys of the head, if these are what is left in the file.

    Raises:
        ValueError: the file has the body twice.
    """
    head = [name for name in target if name.startswith("head.")]
    plain = {name.removeprefix("body."): name for name in target if name not in head}
    if not plain:
        return _of_head(head, list(stored), "", place)
    pairs = _pairs(plain, stored)
    fitting = [at for at, name, key in pairs if target[plain[name]].shape == stored[key].shape]
    votes = Counter(fitting) if 2 * _most(fitting) >= len(plain) else Counter(at for at, _, _ in pairs)
    most = max(votes.values(), default=0)
    if 2 * most < len(plain):
        return {}, {}
    best = sorted((pair for pair, n in votes.items() if n == most), key=lambda pair: len("".join(pair)))
    (before_key, before_name), *others = best
    by_ending = {name.removeprefix(before_name): name for name in plain if name.startswith(before_name)}
    keys = {plain[name]: before_key + end for end, name in by_ending.items() if before_key + end in stored}
    if again := [key for key, name in others if name == before_name]:
        end, name = next((end, name) for end, name in by_ending.items() if before_key + end in stored)
        raise ValueError(f"it has the model's {name} as {before_key + end} and as {again[0] + end}; save one of them")
    rest = [key for key in stored if key not in keys.values()]
    of_name, left = _of_head(head, rest, before_key, place)
    return keys | of_name, left


def _pairs(names: Iterable[str], keys: Iterable[str]) -> list[tuple[Beginnings, str, str]]:
    """All names and keys with the same ending, the whole name or at least a layer's and its tensor's: with what is
    before the ending in the key and in the name."""
    endings: dict[str, list[str]] = {}
    for key in keys:
        for ending in _endings(key):
            endings.setdefault(ending, []).append(key)
    return [
        ((key.removesuffix(ending), name.removesuffix(ending)), name, key)
        for name in names
        for ending in _endings(name)
        if "." in ending or ending == name
        for key in endings.get(ending, ())
    ]


def _endings(name: str) -> Iterable[str]:
    parts = name.split(".")
    return (".".join(parts[k:]) for k in range(len(parts)))


def _most(votes: Iterable[Beginnings]) -> int:
    return max(Counter(votes).values(), default=0)


def _of_head(
    head: list[str], keys: list[str], beginning: str, place: str | None
) -> tuple[dict[str, str], dict[str, str]]:
    """The file's keys of the head: under the first name of a last layer that is there; or else, in the second place,
    all keys in their order."""
    kinds = {name.removeprefix("head."): name for name in head}
    starts = [beginning, beginning.removesuffix("body."), ""]
    named = [f"{start}{layer}." for start in dict.fromkeys(starts) for layer in (*([place] if place else ()), *_HEADS)]
    for layer in named:
        if all(layer + kind in keys for kind in kinds):
            return {name: layer + kind for kind, name in kinds.items()}, {}
    try:
        return {}, _in_order(head, keys)
    except ValueError:
        return {}, {}


def _by_layers(
    names: list[str],
    target: Mapping[str, Tensor],
    state: Mapping[str, Tensor],
    named: dict[str, str],
    partly: dict[str, str],
) -> dict[str, str]:
    """The file's keys layer after layer; those that are matched so far, `partly`, if they do not all fit like that.

    Raises:
        ValueError: the layers are not of the same kinds, and nothing is matched by name; or the order gives a tensor
            another key than its name does.
    """
    try:
        keys = _in_order(names, list(state))
    except ValueError:
        if not partly:
            raise
        return partly
    fits = all(target[name].shape == state[key].shape for name, key in keys.items() if not name.startswith("head."))
    if partly and not fits:
        return partly
    if any(keys[name] != key for name, key in named.items()):
        missing = [name for name in names if name not in named]
        rest = [key for key in state if key not in named.values()]
        raise ValueError(
            f"it has {len(named)} of {len(names)} tensors under the model's names, but not {_short(missing)}, and the "
            f"order of its layers is not the model's. It also has {_short(rest)}: rename those that are meant, or take "
            "them out of the file, so that what is missing is drawn"
        )
    return keys


def _is_sorted(path: Path, state: Mapping[str, Tensor]) -> bool:
    """Whether the file's order is that of the alphabet, as of safetensors, and not that of the layers; a network has
    weights before biases."""
    in_alphabet = list(state) == sorted(state) and any(len(layer) > 1 for layer in _layers(state))
    return path.suffix == ".safetensors" or in_alphabet


def _refuse_twins(ordered: Mapping[str, str], state: Mapping[str, Tensor]) -> None:
    """Refuse to match layers of the same kind and shape by the order of a file that is sorted by names.

    Raises:
        ValueError: there are such layers.
    """
    first: dict[frozenset[tuple[str, torch.Size]], str] = {}
    for layer in _layers(ordered.values()):
        key = next(iter(layer.values()))
        twin = first.setdefault(frozenset((kind, state[name].shape) for kind, name in layer.items()), key)
        if twin != key:
            raise ValueError(
                f"its names are not the model's, such as {_short(ordered)}, and it is sorted by names, so that its "
                f"order does not tell {twin} from {key}, which have one shape: rename its tensors as the model's"
            )


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
    return ", ".join(first if len(first) < 4 else [*first[:3], "..."])


def _in_order(names: list[str], keys: list[str]) -> dict[str, str]:
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
            raise ValueError(
                f"{len(keys)} tensors for {len(names)} of the model; {listed} in the same place. Write the file with "
                "the model's names: torch.save({key.replace('OLD', 'NEW'): value for key, value in state.items()}, "
                "'renamed.pt')"
            )
        matched |= {name: stored[kind] for kind, name in layer_names.items()}
    return matched


def _layers(names: Iterable[str]) -> list[dict[str, str]]:
    """The names of each layer by their last part; layers are in the order of their first tensors."""
    layers: dict[str, dict[str, str]] = {}
    for name in names:
        layer, _, kind = name.rpartition(".")
        layers.setdefault(layer, {})[kind] = name
    return list(layers.values())


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
    if path.name.endswith(".index.json"):
        raise UserError(
            f"pretrained {path}: an index of several files, and one file is needed: "
            "model.save_pretrained(FOLDER, max_shard_size='1TB')"
        )
    check_file(path, "file of weights", "set `pretrained` to yours")
    return _read(*versions(path)[0])


@functools.lru_cache(maxsize=2)
def _read(path: Path, changed: int, size: int) -> dict[str, Tensor]:
    """The tensors of the file without counters; `changed` and `size` identify its version in the cache."""
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
    library, problem = (optional(f"safetensors{part}", f"pretrained {path}") for part in (".torch", ""))
    try:
        content: dict[str, Tensor] = library.load_file(path)
    except (problem.SafetensorError, OSError, ValueError) as error:
        raise UserError(f"pretrained {path}: not a file of safetensors ({error})") from None
    return content
