"""Sizes of networks, from which time and memory are estimated: from a table, without torch, or counted on shapes.

`python -m tools.network_sizes` writes the table, `networks.json`: networks of the built-in grids and some usual ones.
"""

import contextlib
import functools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.data import TokenShape
from bench.plugin import MODELS, is_external
from bench.settings import Settings

if TYPE_CHECKING:
    from torch import nn

TABLE = Path(__file__).with_name("networks.json")


class NetworkSize(NamedTuple):
    """Size of a cell's network, for samples of one shape.

    Attributes:
        trained, frozen: numbers of parameters that are trained, and of all that is frozen.
        products: multiplications and additions (a pair counts once) of a sample's forward pass.
        training: bytes in float32 of a sample's activations that a gradient keeps.
        alone: whether clients train one after the other on a CPU, as they gain nothing side by side.
        features: numbers of a sample's features where these take its place, as the whole body is frozen; else 0.
        body: `products` of the body that computes them, once.
    """

    trained: int
    frozen: int
    products: int
    training: int
    alone: bool
    features: int = 0
    body: int = 0


def network_size(settings: Settings, name: str, shape: tuple[int, ...], classes: int) -> NetworkSize:
    """The size of a cell's model: from the table if it has it, else counted, which takes torch.

    Raises:
        UserError: the model does not take the samples.
    """
    options = settings.model_options if name == settings.model else {}
    plain = not (settings.frozen or settings.adapters) and not is_external(MODELS.declaration(name))
    if plain and (row := _table().get(table_key(name, options, shape, classes))):
        return NetworkSize(*row)
    return count(settings, name, shape, classes)


def table_key(name: str, options: Mapping[str, Any], shape: tuple[int, ...], classes: int) -> str:
    """The key of a network in the table; shapes of tokens have the vocabulary and the padding in them."""
    return json.dumps([name, dict(options), list(shape), classes], sort_keys=True)


@functools.cache
def _table() -> dict[str, list[Any]]:
    rows: dict[str, list[Any]] = json.loads(TABLE.read_text(encoding="utf-8"))
    return rows


def count(settings: Settings, name: str, shape: tuple[int, ...], classes: int) -> NetworkSize:
    """Count the size of a cell's model on tensors that have shapes only, where the network allows that.

    Raises:
        UserError: the model does not take the samples.
    """
    from bench.engine.step import better_alone
    from bench.federation.features import can_take_their_place, head_spec, width
    from bench.federation.setup import cell_spec
    from bench.models.factory import build

    options = settings.model_options if name == settings.model else {}
    net = build(name, shape, classes, options, settings.adapters)
    whole = cell_spec(settings, name, net)
    spec, features = (head_spec(whole), width(net, shape)) if can_take_their_place(settings, net) else (whole, 0)
    products, training = _activity(net, {e.name for e in whole.frozen}, shape)
    head = features * classes
    return NetworkSize(
        trained=spec.d,
        frozen=sum(e.size for e in whole.frozen),
        products=head if features else products,
        training=8 * features if features else training,
        alone=better_alone(spec),
        features=features,
        body=products - head if features else 0,
    )


def _activity(net: "nn.Module", frozen: set[str], shape: tuple[int, ...]) -> tuple[int, int]:
    """Products of a sample's forward pass, and bytes of the activations that its gradient keeps."""
    for device in ("meta", "cpu"):  # the latter for a network that reads numbers
        with contextlib.suppress(Exception):
            return _activity_on(device, net, frozen, shape)
    return 0, 0  # whoever trains it says what is wrong with it


def _activity_on(device: str, net: "nn.Module", frozen: set[str], shape: tuple[int, ...]) -> tuple[int, int]:
    import torch
    from torch.func import functional_call
    from torch.utils.flop_counter import FlopCounterMode

    tensors = {
        name: torch.zeros_like(tensor, device=device, requires_grad=name not in frozen and tensor.is_floating_point())
        for name, tensor in net.named_parameters()
    }
    tensors |= {name: torch.zeros_like(tensor, device=device) for name, tensor in net.named_buffers()}
    tokens = isinstance(shape, TokenShape)
    x = torch.zeros(2, *(shape[:1] if tokens else shape), dtype=torch.int64 if tokens else None, device=device)
    parameters = {tensor.untyped_storage()._cdata for tensor in tensors.values()}
    kept: dict[int, int] = {}  # bytes by storage

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = 0 if storage._cdata in parameters else storage.nbytes()
        return tensor

    with FlopCounterMode(display=False) as counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept):
        logits = functional_call(net.train(), tensors, (x,))
        training = sum(kept.values()) // len(x)
        del logits
    return math.ceil(counter.get_total_flops() / 2 / len(x)), training
