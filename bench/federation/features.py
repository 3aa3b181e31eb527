"""Features of a cell's samples, computed once, where all that comes before the head is frozen.

The cell then trains on features: they are its samples, and the head is its network, so a step costs what a head costs.
"""

import copy
import hashlib
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bench.data import Array, Dataset, TokenShape
from bench.engine.cpu_path import cpu_kernels
from bench.engine.device_data import DeviceData, Pool, home_of
from bench.engine.predict import outputs
from bench.federation.inputs import reads_inputs_by_models_only
from bench.federation.setup import frozen_tensors
from bench.model_call import Arithmetic
from bench.params import Entry, Params, Spec
from bench.settings import Settings

Shelf = Callable[[str, tuple[int, int], Callable[[], Array]], Array]
"""Gives the features of a key, `[n, width]` of this shape: kept from before, or computed by the function."""


def computed(key: str, shape: tuple[int, int], compute: Callable[[], Array]) -> Array:
    """Compute features anew: the shelf that keeps nothing."""
    return compute()


class Head(nn.Module):
    """The head of a network as a network of its own: its inputs are features."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.head = net.head

    def features(self, x: Tensor) -> Tensor:
        """The inputs themselves, `[batch, width]`."""
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[batch, classes]`."""
        out: Tensor = self.head(x)
        return out


def can_take_their_place(settings: Settings, net: nn.Module) -> bool:
    """Whether features can take the samples' place: neither these nor what comes before the head ever change.

    Args:
        settings: the cell's settings.
        net: its model.
    """
    if settings.augment != "none" or {*settings.architectures} - {settings.model}:
        return False
    frozen = frozen_tensors(settings, settings.model, net)
    names = [name for name, _ in itertools.chain(net.named_parameters(), net.named_buffers())]
    body = [name for name in names if not Entry(name, ()).under(("head",))]
    if not body or not all(name in frozen for name in body):
        return False
    if any(isinstance(layer, _BatchNorm) and layer.running_mean is None for layer in net.modules()):
        return False  # a sample's features depend on the others of its batch
    return reads_inputs_by_models_only(settings.method)


def head_spec(whole: Spec) -> Spec:
    """The spec of the head of a network whose body is frozen, for features as inputs."""
    held = whole.held.on(torch.device("cpu"))
    frozen = {e.name: held[e.name] for e in whole.frozen if e.under(("head",))}
    return Spec.of(f"head on features of {whole.arch}", Head(whole.module), frozen)


def put_features(
    device_data: DeviceData,
    w: Params,
    data: Dataset,
    public: Dataset | None,
    arithmetic: Arithmetic,
    threads: int,
    shelf: Shelf,
) -> None:
    """Put the features of all samples in the place of the samples.

    Args:
        device_data: the samples on the device.
        w: the cell's model, whose body is frozen.
        data, public: the clients' data and the public samples, if there are any, which are on the device.
        arithmetic: that of the cell's evaluation.
        threads: parts of the samples at a time; they change no byte.
        shelf: where features are kept.
    """
    device_data.local = with_features(device_data.local, w, data, arithmetic, threads, shelf)
    if public is not None and device_data.public is not None:
        device_data.public = with_features(device_data.public, w, public, arithmetic, threads, shelf)


def with_features(
    pool: Pool, w: Params, data: Dataset, arithmetic: Arithmetic, threads: int = 1, shelf: Shelf = computed
) -> Pool:
    """The features of samples in their place; the arguments are those of `put_features`, and `pool` is of `data`."""

    def compute() -> Array:
        everything = np.arange(len(data.y))
        rows: Array = outputs(pool, [(w, everything)], arithmetic, output="features", threads=threads)[0].cpu().numpy()
        return rows

    shape = len(data.y), width(w.spec.module, data.shape)
    x = torch.from_numpy(shelf(_key(pool, w, data, arithmetic), shape, compute))
    return replace(pool, x=x.to(home_of(x.nbytes, pool.y.device)), normalisation=None)


def width(module: nn.Module, shape: tuple[int, ...]) -> int:
    """Count the numbers in a network's features of a sample of this shape, on the meta device."""
    net: Any = copy.deepcopy(module).to("meta").eval()
    with torch.device("meta"):
        x = torch.zeros(1, shape[0], dtype=torch.int64) if isinstance(shape, TokenShape) else torch.zeros(1, *shape)
    return int(net.features(x).shape[1])


def _key(pool: Pool, w: Params, data: Dataset, arithmetic: Arithmetic) -> str:
    """Digest of all that features depend on: the samples, the body, and what computes them."""
    samples = data.x.shape, data.x.dtype, data.mean, data.std
    how = w.spec.arch, pool.dtype, arithmetic, pool.y.device.type, cpu_kernels(), torch.__version__
    total = hashlib.blake2b(repr((samples, how)).encode(), digest_size=16)
    for start in range(0, len(data.x), 1000):
        total.update(data.x[start : start + 1000].tobytes())
    return total.hexdigest()
