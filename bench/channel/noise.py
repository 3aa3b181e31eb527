"""Gaussian noise on updates, for differential privacy of clients; `bench/federation/privacy.py` has its epsilon."""

import math
from dataclasses import replace
from typing import Literal

import numpy as np

from bench.channel.operation import ChannelOperation, Update
from bench.method import Hyperparameters, State, hp
from bench.plugin import CHANNELS


class GaussianHyper(Hyperparameters):
    """Settings of `gaussian`: the noise in units of the clipping norm, where it counts, and the delta of epsilon."""

    noise: float = hp(1.0, ge=0, allow_inf_nan=False)
    on: Literal["sum", "each"] = hp("sum", static=True)
    delta: float = hp(1e-5, gt=0, lt=1)


@CHANNELS.register("gaussian")
class Gaussian(ChannelOperation):
    """Add Gaussian noise to a clipped update.

    With `on: sum` the noise of all clients of a round adds up to the standard deviation noise x norm on the sum of
    their updates (McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models"). With `on: each`
    every update has it (local).
    """

    Hyper = GaussianHyper
    needs_bound = True

    def send(self, update: Update, state: State, rng: np.random.Generator) -> tuple[Update, State]:
        if not self.hp.noise:
            return update, state
        assert update.bound is not None, "the operation before says how long an update can be"
        deviation = self.hp.noise * update.bound / (math.sqrt(update.clients) if self.hp.on == "sum" else 1)
        drawn = update.values.new_tensor(rng.standard_normal(update.values.shape))
        return replace(update, values=update.values + deviation * drawn, bound=None), state
