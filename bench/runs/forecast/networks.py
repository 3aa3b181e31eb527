"""Sizes of networks, from which time and memory are estimated: from a table, without torch, or counted on shapes.

`python -m tools.network_sizes` writes the table, `networks.json`: networks of the built-in grids and some usual ones.
"""

import contextlib
import functools
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.data import TokenShape
from bench.plugin import MODELS, is_external
from bench.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor, nn

TABLE = Path(__file__).with_name("networks.json")


class NetworkSize(NamedTuple):
    """Size of a cell's network, for samples of one shape.

    Attributes:
        trained, frozen, buffers: numbers of parameters that are trained, of all that is frozen, and of buffers that are
            not.
        products: multiplications and additions (a pair counts once) of a sample's forward pass.
        training, evaluation: bytes in float32 of a sample's activations at the peak of a gradient and of an evaluation.
        convolutional: whether it has convolutions.
        alone: whether clients train one after the other on a CPU, as they gain nothing side by side.
        features: numbers of a sample's features where these take its place, as the whole body is frozen; else 0.
        body: `products` of the body that computes them, once.
    """

    trained: int
    frozen: int
    buffers: int
    products: int
    training: int
    evaluation: int
    convolutional: bool
    alone: bool
    features: int = 0
    body: int = 0


def network_size(settings: Settings, name: str, shape: tuple[int, ...], classes: int) -> NetworkSize:
    """The size of a cell's model: from the table if it has it, else counted, which takes torch.

    Args:
        settings: the cell's.
        name: of one of its models.
        shape: of a sample.
        classes: number of classes.

    Raises:
        UserError: the model does not take the samples.
    """
    options = settings.model_options if name == settings.model else {}
    plain = not (settings.frozen or settings.adapters) and not is_external(MODELS.declaration(name))
    if plain and (row := _table().get(table_key(name, options, shape, classes))):
        return NetworkSize(*row)
    return count(settings, name, shape, classes)


def is_in_table(settings: Settings, shape: tuple[int, ...], classes: int) -> bool:
    """Whether all models of a cell are in the table, and so take samples of this shape."""
    names = settings.architectures or (settings.model,)
    return all(
        not is_external(MODELS.declaration(name))
        and table_key(name, settings.model_options if name == settings.model else {}, shape, classes) in _table()
        for name in names
    )


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
    from bench.engine.step import better_alone, is_convolutional
    from bench.federation.features import can_take_their_place, head_spec, width
    from bench.federation.setup import cell_spec
    from bench.models.factory import build

    options = settings.model_options if name == settings.model else {}
    net = build(name, shape, classes, options, settings.adapters)
    whole = cell_spec(settings, name, net)
    spec, features = (head_spec(whole), width(net, shape)) if can_take_their_place(settings, net) else (whole, 0)
    products, training, evaluation = _activity(net, {e.name for e in whole.frozen}, shape)
    head = features * classes
    return NetworkSize(
        trained=spec.d,
        frozen=sum(e.size for e in whole.frozen),
        buffers=spec.b,
        products=head if features else products,
        training=8 * features if features else training,
        evaluation=evaluation,
        convolutional=is_convolutional(whole),
        alone=better_alone(spec),
        features=features,
        body=products - head if features else 0,
    )


def _activity(net: "nn.Module", frozen: set[str], shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Products of a sample's forward pass, and bytes of its activations in a gradient and in an evaluation."""
    for device in ("meta", "cpu"):  # the latter for a network that reads numbers
        with contextlib.suppress(Exception):
            return _activity_on(device, net, frozen, shape)
    return 0, 0, 0  # whoever trains it says what is wrong with it


def _activity_on(device: str, net: "nn.Module", frozen: set[str], shape: tuple[int, ...]) -> tuple[int, int, int]:
    import torch
    from torch.func import functional_call
    from torch.utils.flop_counter import FlopCounterMode

    tensors = {
        name: torch.zeros_like(tensor, device=device, requires_grad=name not in frozen and tensor.is_floating_point())
        for name, tensor in net.named_parameters()
    }
    buffers = {name: torch.zeros_like(tensor, device=device) for name, tensor in net.named_buffers()}
    tokens = isinstance(shape, TokenShape)
    x = torch.zeros(4, *(shape[:1] if tokens else shape), dtype=torch.int64 if tokens else None, device=device)

    def forward(samples: int) -> "Tensor":
        logits: torch.Tensor = functional_call(net.train(), {**tensors, **buffers}, (x[:samples],))
        return logits

    def gradient(samples: int) -> None:
        torch.autograd.grad(forward(samples).sum(), [t for t in tensors.values() if t.requires_grad], allow_unused=True)

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        forward(2)
    with torch.no_grad():
        evaluation = _bytes_each(forward)
    return math.ceil(counter.get_total_flops() / 4), _bytes_each(gradient), evaluation


def _bytes_each(work: Callable[[int], object]) -> int:
    """The bytes that each further sample takes at the peak of the work."""
    from bench.engine.memory import MemoryMeter

    peaks: list[int] = []
    for samples in (2, 4):
        with MemoryMeter() as meter:
            work(samples)
        peaks.append(meter.peak)
    return max(0, peaks[1] - peaks[0]) // 2
