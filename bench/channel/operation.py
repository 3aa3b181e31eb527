"""The interface of a channel's operations: an update on its way from a client to the server.

A plug-in registers a subclass of `ChannelOperation` with `@CHANNELS.register("name")`. Draws come from the generator
that it is given, and what a client keeps from round to round goes through `state`, so that executors, stops and
machines make no difference.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from bench.method import Hyperparameters, State

Stage = Literal["change", "select", "encode"]


@dataclass(frozen=True)
class Update:
    """The update of one value: upload minus download, as far as the operations before have left it.

    Attributes:
        values: `[k]` the numbers that are sent, as the server decodes them.
        positions: `[k]` where they are among all numbers, sorted; None: they are all.
        size: how many numbers the update has.
        bits: bits of one sent number.
        extra: bits of what is sent beside the numbers, such as positions and scales.
        bound: the norm that no client's update exceeds here, whatever its data; None: there is no such norm.
        clients: how many clients send an update of this kind in the round.
        shared: what `ChannelOperation.close` returned last for this value, which all clients know.
        answer: a number for `ChannelOperation.close`, which travels beside the update.
    """

    values: Tensor
    positions: Tensor | None
    size: int
    bits: int
    extra: int = 0
    bound: float | None = None
    clients: int = 1
    shared: Mapping[str, Any] = field(default_factory=dict)
    answer: float | None = None

    @classmethod
    def of(cls, values: Tensor) -> "Update":
        """All numbers `[n]` of an update, each in its own precision."""
        return cls(values, None, values.numel(), width(values))

    @property
    def bytes(self) -> int:
        """Bytes that an encoder of fixed-width numbers sends."""
        return math.ceil((self.values.numel() * self.bits + self.extra) / 8)

    def decoded(self) -> Tensor:
        """All numbers `[n]` as the server decodes them; those that are not sent are 0."""
        if self.positions is None:
            return self.values
        whole = self.values.new_zeros(self.size)
        whole[self.positions] = self.values
        return whole


class ChannelOperation:
    """One operation of a channel.

    Attributes:
        Hyper: the class of its settings.
        stage: its place in a channel: operations that `change` an update come first, then one at most that may `select`
            the numbers that are sent, then one at most that may `encode` them in fewer bits.
        bounds: whether it sets `Update.bound`.
        needs_bound: whether the operation before it has to.
    """

    Hyper: ClassVar[type[Hyperparameters]] = Hyperparameters
    stage: ClassVar[Stage] = "change"
    bounds: ClassVar[bool] = False
    needs_bound: ClassVar[bool] = False

    def __init__(self, hyper: Any) -> None:
        self.hp = hyper

    def send(self, update: Update, state: State, rng: np.random.Generator) -> tuple[Update, State]:
        """Send an update: the update that arrives, and what the client keeps for its next one.

        Args:
            update: the update; if the returned one has its very `values`, it arrives as it was sent, bit for bit.
            state: what the last call for this client and value returned, an empty dict at first; the same kinds of
                values as in a client's state. It is replaced, never changed in place.
            rng: the generator at the address (seed, round, client, message, value, operation).
        """
        raise NotImplementedError(f"{type(self).__name__} has no send")

    def close(self, shared: State, answers: Sequence[float], rng: np.random.Generator, clients: int) -> State:
        """The server's part, at the end of a version: what all clients know of a value in the next one.

        Args:
            shared: what the last call for this value returned, an empty dict at first; plain values.
            answers: `Update.answer` of the clients that gave one.
            rng: the generator at the address (seed, round, value, operation).
            clients: how many clients a round has on average, where noise hides who sent something; else the answers.
        """
        return shared


def width(values: Tensor) -> int:
    """Bits of one number of a tensor."""
    return 8 * values.element_size()
