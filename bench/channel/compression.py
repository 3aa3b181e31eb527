"""Compression of updates: fewer numbers, or fewer bits for each.

`top_k`: Aji and Heafield 2017, "Sparse Communication for Distributed Gradient Descent". Error feedback: Stich et al.
2018, "Sparsified SGD with Memory". `quantise`: QSGD, Alistarh et al. 2017, section 3.1. `sign`: Karimireddy et al.
2019, "Error Feedback Fixes SignSGD", whose scale is the mean absolute value, here without their memory.

Sizes are those of fixed-width codes: QSGD's Elias code would send fewer bits where most levels are 0.
"""

import math
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from bench.channel.operation import ChannelOperation, Update, width
from bench.method import Hyperparameters, State, hp
from bench.plugin import CHANNELS
from bench.ties import largest


class ShareHyper(Hyperparameters):
    """Settings of operations that send some of the numbers: `share` of them, at least one."""

    share: float = hp(0.01, gt=0, le=1)

    def count(self, size: int) -> int:
        """Number of the sent ones of `size` numbers."""
        return min(size, max(1, round(self.share * size)))


@CHANNELS.register("top_k")
class TopK(ChannelOperation):
    """Send the numbers with the largest absolute values; the client adds the others to its next update."""

    Hyper = ShareHyper
    stage = "select"

    def send(self, update: Update, state: State, rng: np.random.Generator) -> tuple[Update, State]:
        k = self.hp.count(update.size)
        if k == update.size:
            return update, {}
        wanted = _with_memory(update, state)
        chosen = largest(wanted.abs(), k, unit=wanted.abs().max())
        # As `nonzero` gives them, of which a dry run cannot tell how many there are.
        positions = chosen.to(torch.uint8).topk(k, sorted=False).indices.sort().values
        return _selected(update, wanted, positions, extra=min(k * math.ceil(math.log2(update.size)), update.size))


@CHANNELS.register("random_k")
class RandomK(ChannelOperation):
    """Send numbers at random positions, which the server draws alike, so that they are not sent; the client adds the
    others to its next update."""

    Hyper = ShareHyper
    stage = "select"

    def send(self, update: Update, state: State, rng: np.random.Generator) -> tuple[Update, State]:
        k = self.hp.count(update.size)
        if k == update.size:
            return update, {}
        positions = torch.from_numpy(np.sort(rng.choice(update.size, k, replace=False)))
        return _selected(update, _with_memory(update, state), positions.to(update.values.device), extra=0)


class QuantiseHyper(Hyperparameters):
    """Settings of `quantise`: `bits` of a number, one of which is its sign."""

    bits: int = hp(8, ge=2, le=32, static=True)


@CHANNELS.register("quantise")
class Quantise(ChannelOperation):
    """Round each number at random to one of s = 2^(bits - 1) - 1 levels of the update's norm, unbiased (QSGD).

    Numbers that have no more bits than that already are sent as they are.
    """

    Hyper = QuantiseHyper
    stage = "encode"

    def send(self, update: Update, state: State, rng: np.random.Generator) -> tuple[Update, State]:
        values, bits = update.values, self.hp.bits
        if bits >= width(values):
            return update, state
        levels = 2 ** (bits - 1) - 1
        norm = torch.linalg.vector_norm(values)
        level = values.abs() / torch.where(norm > 0, norm, torch.ones_like(norm)) * levels
        below = level.floor()
        level = (below + (values.new_tensor(rng.random(values.shape)) < level - below)).clamp(max=levels)
        return _coded(update, values.sign() * level * (norm / levels), bits), state


@CHANNELS.register("sign")
class Sign(ChannelOperation):
    """Send the sign of each number, of one bit, and their mean absolute value; the sign of 0 is plus."""

    stage = "encode"

    def send(self, update: Update, state: State, rng: np.random.Generator) -> tuple[Update, State]:
        scale = update.values.abs().mean()
        return _coded(update, torch.where(update.values < 0, -scale, scale), bits=1), state


class CastHyper(Hyperparameters):
    """Settings of `cast`: the type of the sent numbers."""

    to: Literal["fp16", "bf16", "int8"] = hp("fp16", static=True)


@CHANNELS.register("cast")
class Cast(ChannelOperation):
    """Round each number to a narrower type: half precision, bfloat16, or integers from -127 to 127 and a scale."""

    Hyper = CastHyper
    stage = "encode"

    def send(self, update: Update, state: State, rng: np.random.Generator) -> tuple[Update, State]:
        values = update.values
        if self.hp.to == "int8":
            largest = values.abs().max()
            step = torch.where(largest > 0, largest / 127, torch.ones_like(largest))
            return _coded(update, (values / step).round().clamp(-127, 127) * step, bits=8), state
        kind = torch.float16 if self.hp.to == "fp16" else torch.bfloat16
        return replace(update, values=values.to(kind).to(values.dtype), bits=16), state


def _with_memory(update: Update, state: State) -> Tensor:
    return update.values + state["memory"] if state else update.values


def _selected(update: Update, wanted: Tensor, positions: Tensor, extra: int) -> tuple[Update, State]:
    """Send the numbers of `wanted` at these positions; the memory has the others."""
    memory = wanted.clone()
    memory[positions] = 0
    sent = replace(update, values=wanted[positions], positions=positions, extra=update.extra + extra)
    return sent, {"memory": memory}


def _coded(update: Update, values: Tensor, bits: int) -> Update:
    """The update with values in a code of so many bits and a scale in the values' own precision."""
    return replace(update, values=values, bits=bits, extra=update.extra + width(values))
