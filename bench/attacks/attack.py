"""The interface of attacks: what malicious clients do to their data, and to what they send.

A plug-in registers a subclass of `Attack` with `@ATTACKS.register("name")`. Draws come from the generator that it is
given, so that executors, stops and machines make no difference.
"""

from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from bench.data import Array, Dataset, Indices
from bench.errors import UserError
from bench.method import Hyperparameters, hp


class AttackHyper(Hyperparameters):
    """Settings of every attack: the `share` of the clients that train which are malicious."""

    share: float = hp(0.2, ge=0, lt=1)


class Attack:
    """One attack. A subclass has `poison`, for the clients' data, or `forge`, for their messages, or both.

    An attack whose settings have a `target`, a class, puts a trigger on samples and has `trigger`, too: the share of
    triggered test samples that models take for that class is its success (docs/attacks.md).

    Attributes:
        Hyper: the class of its settings.
        colludes: whether `forge` needs the updates of other clients of the round.
    """

    Hyper: ClassVar[type[AttackHyper]] = AttackHyper
    colludes: ClassVar[bool] = False

    def __init__(self, hyper: Any) -> None:
        self.hp = hyper

    @property
    def poisons(self) -> bool:
        """Whether it changes data."""
        return type(self).poison is not Attack.poison

    @property
    def forges(self) -> bool:
        """Whether it changes messages."""
        return type(self).forge is not Attack.forge

    def check(self, dataset: Dataset) -> None:
        """Refuse data that it cannot attack.

        Raises:
            UserError: it cannot.
        """

    def poison(self, x: Array, y: Indices, dataset: Dataset, rng: np.random.Generator) -> tuple[Array, Indices]:
        """Change a malicious client's training samples.

        Args:
            x, y: `[n, ...]` its inputs as stored (not normalised) and `[n]` labels, which must not be changed in place.
            dataset: all samples.
            rng: the generator at the address (seed, client).

        Returns:
            Inputs and labels of the same shapes and types.
        """
        raise NotImplementedError(f"{type(self).__name__} has no poison")

    def trigger(self, x: Array, dataset: Dataset) -> Array:
        """Put the trigger on inputs `[n, ...]`, as stored."""
        raise NotImplementedError(f"{type(self).__name__} has no trigger")

    def forge(self, malicious: Tensor, benign: Tensor, rng: np.random.Generator) -> Tensor:
        """The updates that malicious clients send in place of their honest ones, `[m, d]`.

        An update is an upload minus the download of the same name. A client's bytes and seconds stay those of its
        honest message.

        Args:
            malicious: `[m, d]` updates that these clients would send if they were honest, sorted by client.
            benign: `[b, d]` updates of the other clients of the round; none if it has no others.
            rng: the generator at the address (seed, round, message, value, first of these clients).
        """
        raise NotImplementedError(f"{type(self).__name__} has no forge")


def checked(attack: str, x: Array, y: Indices, poisoned: tuple[Array, Indices], classes: int) -> tuple[Array, Indices]:
    """Check what an attack made of samples, and return it.

    Raises:
        UserError: it made other shapes or types, or labels that are no classes.
    """
    after, labels = poisoned
    if (after.shape, after.dtype, labels.shape) != (x.shape, x.dtype, y.shape):
        raise UserError(
            f"attack {attack!r} returns inputs {after.dtype} {after.shape} and labels {labels.shape}; they should be "
            f"{x.dtype} {x.shape} and {y.shape}"
        )
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise UserError(f"attack {attack!r} returns labels outside 0 .. {classes - 1}")
    return after, labels
