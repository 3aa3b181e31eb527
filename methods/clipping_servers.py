"""Servers that bound what one upload can change, as rules for any method whose aggregation is a declared mean.

`norm_clip`: Sun et al. 2019, "Can You Really Backdoor Federated Learning?". `centered_clip`: Karimireddy, He and Jaggi
2021, "Learning from History for Byzantine Robust Optimization". All clients count alike, since a liar could claim any
number of samples. Running statistics are the median of those that arrived, as a step could turn a variance negative.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bench.method import SERVER_RULES, Hyperparameters, Message, Params, ServerRule, State, hp
from methods.uploads import distances, in_rows, main, median, values_of


class NormHyper(Hyperparameters):
    """Hyperparameter of `norm_clip`: the largest norm of an update."""

    norm: float = hp(1.0, gt=0, allow_inf_nan=False)


@SERVER_RULES.register("norm_clip")
class NormClip(ServerRule):
    """The mean of the updates, each scaled down to a norm at most."""

    Hyper = NormHyper

    def combine(self, old: Any, messages: Sequence[Message], name: str) -> Any:
        """old + 1 / n sum min(1, norm / |w_i - old|) (w_i - old)."""
        return _moved(old, messages, name, _clipped_mean(messages, name, main(old), self.hp.norm))


class CenterHyper(Hyperparameters):
    """Hyperparameters of centered clipping: the radius `tau`, and how often a version repeats the step."""

    tau: float = hp(10.0, gt=0, allow_inf_nan=False)
    iterations: int = hp(1, ge=1, static=True)


@SERVER_RULES.register("centered_clip")
class CenteredClip(ServerRule):
    """The mean of the updates, each clipped in its distance from the last version's update."""

    Hyper = CenterHyper

    def update(self, state: State, old: Any, messages: Sequence[Message], name: str) -> tuple[Any, State]:
        """v <- v + 1 / n sum min(1, tau / |u_i - v|) (u_i - v) for the updates u_i = w_i - old, from the last v."""
        v = state["v"] if state else torch.zeros_like(main(old))
        for _ in range(self.hp.iterations):
            v = _clipped_mean(messages, name, main(old) + v, self.hp.tau) - main(old)
        return _moved(old, messages, name, main(old) + v), {"v": v}


def _moved(old: Any, messages: Sequence[Message], name: str, moved: Tensor) -> Any:
    """The new weights, with the median of the running statistics that arrived."""
    if not isinstance(old, Params):
        return moved
    return Params(moved, median(in_rows([v.buffers for v in values_of(messages, name)])), old.spec)


def _clipped_mean(messages: Sequence[Message], name: str, center: Tensor, radius: float) -> Tensor:
    """center + 1 / n sum min(1, radius / |w_i - center|) (w_i - center)."""
    rows, flat = in_rows([main(v) for v in values_of(messages, name)]), center.reshape(-1)
    share = (radius / distances(rows, flat)).clamp(max=1) / len(rows)
    return (flat + share @ (rows - flat)).reshape(center.shape)
