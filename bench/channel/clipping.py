"""Clipping of updates, which bounds what one client can change."""

import math
from collections.abc import Sequence
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
    bounds = True

    def send(self, update: Update, state: State, rng: np.random.Generator) -> tuple[Update, State]:
        return _clipped(update, self.hp.norm)[0], state


class AdaptiveClipHyper(Hyperparameters):
    """Settings of `adaptive_clip`: the first norm, the share of updates that are to be shorter, how fast the norm
    moves, and the noise on their count, as a share of the clients of a round."""

    norm: float = hp(0.1, gt=0, allow_inf_nan=False)
    quantile: float = hp(0.5, ge=0, le=1)
    rate: float = hp(0.2, ge=0, allow_inf_nan=False)
    count_noise: float = hp(0.05, ge=0, allow_inf_nan=False)


@CHANNELS.register("adaptive_clip")
class AdaptiveClip(ChannelOperation):
    """Clip to a norm that follows a quantile of the updates' norms (Andrew et al. 2021, "Differentially Private
    Learning with Adaptive Clipping", algorithm 1).

    Each client sends one bit more: whether its update was short enough. After each version the server multiplies the
    norm by exp(-rate (share of such updates - quantile)); the share has Gaussian noise. It is a share of the clients
    that a round has on average, and a client that sends nothing counts a half: no client moves it by more than that.
    """

    Hyper = AdaptiveClipHyper
    bounds = True

    def send(self, update: Update, state: State, rng: np.random.Generator) -> tuple[Update, State]:
        clipped, short = _clipped(update, update.shared.get("norm", self.hp.norm))
        return replace(clipped, answer=float(short), extra=update.extra + 1), state

    def close(self, shared: State, answers: Sequence[float], rng: np.random.Generator, clients: int) -> State:
        silent = clients - len(answers)
        share = (sum(answers) + silent / 2) / clients + self.hp.count_noise * rng.standard_normal()
        return {"norm": shared.get("norm", self.hp.norm) * math.exp(-self.hp.rate * (share - self.hp.quantile))}


def _clipped(update: Update, norm: float) -> tuple[Update, bool]:
    """The update of this norm at most, and whether it had no larger one: then its numbers are not touched."""
    length = float(torch.linalg.vector_norm(update.values))
    if length <= norm:
        return replace(update, bound=norm), True
    return replace(update, values=update.values * (norm / length), bound=norm), False
