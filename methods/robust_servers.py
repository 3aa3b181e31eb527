"""Servers that do not trust every upload, as rules for any method whose aggregation is a declared mean.

`median`, `trimmed_mean`: Yin et al. 2018, "Byzantine-Robust Distributed Learning". `krum`, `multi_krum`: Blanchard et
al. 2017, "Machine Learning with Adversaries". `geometric_median`: RFA, Pillutla et al. 2022, "Robust Aggregation for
Federated Learning", Algorithm 2. All clients count alike, since a liar could claim any number of samples. Distances are
between weights; running statistics are treated like these.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bench.method import SERVER_RULES, Hyperparameters, Message, ServerRule, hp
from bench.ties import smallest
from methods.uploads import by_rows, distances, median, trimmed, weighted


class MaliciousShare(Hyperparameters):
    """Hyperparameter of rules that are told how many malicious clients to expect: a `share` of a round's clients."""

    share: float = hp(0.2, ge=0, lt=0.5)


class ShareRule(ServerRule):
    """A rule that is told how many malicious clients to expect (f)."""

    Hyper = MaliciousShare

    def expects(self, clients: int) -> int:
        """The share of the round's clients, rounded up: rounded down, a small round would expect none."""
        return math.ceil(self.hp.share * clients - 1e-9)


@SERVER_RULES.register("median")
class Median(ServerRule):
    """Each number is the median of the uploads; of an even number of uploads, the mean of the middle two."""

    needs = 2, 1

    def combine(self, old: Any, messages: Sequence[Message], name: str) -> Any:
        """The coordinate-wise median."""
        return by_rows(messages, name, median)


@SERVER_RULES.register("trimmed_mean")
class TrimmedMean(ShareRule):
    """Each number is the mean of the uploads without the f largest and the f smallest."""

    needs = 2, 1

    def combine(self, old: Any, messages: Sequence[Message], name: str) -> Any:
        """The coordinate-wise trimmed mean; where trimming would leave nothing, the median."""

        def mean(rows: Tensor) -> Tensor:
            return trimmed(rows, min(self.expects(len(rows)), (len(rows) - 1) // 2))

        return by_rows(messages, name, mean)


@SERVER_RULES.register("krum")
class Krum(ShareRule):
    """The upload whose nearest neighbours are nearest."""

    needs = 2, 3

    def combine(self, old: Any, messages: Sequence[Message], name: str) -> Any:
        """The upload of the smallest score, the first of equal ones."""
        return weighted(messages, name, lambda rows: _chosen(rows, self.expects(len(rows)), 1))


@SERVER_RULES.register("multi_krum")
class MultiKrum(ShareRule):
    """The mean of the uploads of Krum's smallest scores: of all but f."""

    needs = 2, 3

    def combine(self, old: Any, messages: Sequence[Message], name: str) -> Any:
        """The mean of the n - f uploads of the smallest scores, at least one."""

        def weights(rows: Tensor) -> Tensor:
            expected = self.expects(len(rows))
            return _chosen(rows, expected, max(1, len(rows) - expected))

        return weighted(messages, name, weights)


class RFAHyper(Hyperparameters):
    """Hyperparameters of the geometric median: Weiszfeld `iterations`, and the smallest distance `nu` that counts."""

    iterations: int = hp(3, ge=1, static=True)
    nu: float = hp(1e-6, gt=0)


@SERVER_RULES.register("geometric_median")
class GeometricMedian(ServerRule):
    """The point with the smallest sum of distances to the uploads, by the smoothed Weiszfeld algorithm."""

    Hyper = RFAHyper
    needs = 2, 1

    def combine(self, old: Any, messages: Sequence[Message], name: str) -> Any:
        """From the mean z, again and again the mean with weights 1 / max(nu, |z - w_i|)."""

        def weights(rows: Tensor) -> Tensor:
            share = rows.new_full((len(rows),), 1 / len(rows))
            for _ in range(self.hp.iterations):
                near = 1 / distances(rows, share @ rows).clamp(min=self.hp.nu)
                share = near / near.sum()
            return share

        return weighted(messages, name, weights)


def _chosen(rows: Tensor, malicious: int, count: int) -> Tensor:
    """Equal weights for the uploads of the smallest scores, 0 for the others.

    A score is the sum of squared distances to the n - f - 2 nearest others, at least one.
    """
    clients = len(rows)
    squares = torch.stack([distances(rows, row) for row in rows]) ** 2
    neighbours = min(max(1, clients - malicious - 2), clients - 1)
    scores = squares.sort(1).values[:, 1 : 1 + neighbours].sum(1)
    return smallest(scores, count).to(scores.dtype) / count
