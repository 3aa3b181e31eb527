"""Clipping of updates, which bounds what one client can change."""

from dataclasses import replace

import numpy as np
import torch

from bench.channel.operation import ChannelOperation, Update
from bench.method import Hyperparameters, State, hp
from bench.plugin import CHANNELS


class ClipHyper(Hyperparameters):
    """Settings of `clip`: the largest Euclidean norm of an update."""

    norm: float = hp(1.0, gt=0, allow_inf_nan=False)


@CHANNELS.register("clip")
class Clip(ChannelOperation):
    """Scale an update down to a norm at most (McMahan et al. 2018, "Learning Differentially Private Recurrent Language
    Models"); one that is short enough is not touched."""

    Hyper = ClipHyper

    def send(self, update: Update, state: State, rng: np.random.Generator) -> tuple[Update, State]:
        length = float(torch.linalg.vector_norm(update.values))
        if length <= self.hp.norm:
            return update, state
        return replace(update, values=update.values * (self.hp.norm / length)), state
