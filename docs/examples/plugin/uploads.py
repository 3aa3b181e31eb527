"""An operation on uploads and an attack of one's own, for `bench run --plugin uploads.py` (docs/channel.md)."""

from dataclasses import replace

import numpy as np

from bench.attacks.attack import Attack
from bench.channel.operation import ChannelOperation
from bench.method import Hyperparameters, hp
from bench.plugin import ATTACKS, CHANNELS


class Hyper(Hyperparameters):
    """A grid sets them: `channel: [{name: shrink, factor: 0.1}]`."""

    factor: float = hp(0.5, gt=0)


@CHANNELS.register("shrink")
class Shrink(ChannelOperation):
    """Every number is smaller."""

    Hyper = Hyper

    def send(self, update, state, rng):
        return replace(update, values=update.values * self.hp.factor), state


@ATTACKS.register("all_the_same")
class AllTheSame(Attack):
    """Every training sample has the first label."""

    def poison(self, x, y, dataset, rng):
        return x, np.zeros_like(y)
