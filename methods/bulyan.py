"""Bulyan as a rule for any method whose aggregation is a declared mean.

El Mhamdi, Guerraoui and Rouault 2018, "The Hidden Vulnerability of Distributed Learning in Byzantium", section 4, with
Krum as the rule that selects. All clients count alike, since a liar could claim any number of samples. Distances are
between weights; running statistics are treated like these.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bench.method import SERVER_RULES, Message, Params
from bench.ties import smallest
from methods.robust_servers import ShareRule
from methods.uploads import distances, in_rows, main, median, values_of


@SERVER_RULES.register("bulyan")
class Bulyan(ShareRule):
    """Of uploads that Krum selects one after the other, each number is the mean of those nearest to the median."""

    needs = 4, 3

    def combine(self, old: Any, messages: Sequence[Message], name: str) -> Any:
        """n - 2f uploads are selected, and of each number the n - 4f nearest to the median count; at least one each."""
        values = values_of(messages, name)
        expected = self.expects(len(values))
        chosen = _selected(in_rows([main(v) for v in values]), expected, max(1, len(values) - 2 * expected))
        count = max(1, len(chosen) - 2 * expected)
        weights = _middle(in_rows([main(values[i]) for i in chosen]), count)
        if not isinstance(values[0], Params):
            return weights.reshape(values[0].shape)
        return Params(weights, _middle(in_rows([values[i].buffers for i in chosen]), count), values[0].spec)


def _selected(rows: Tensor, malicious: int, count: int) -> list[int]:
    """The uploads that Krum selects one after the other, each among those that are left."""
    squares = torch.stack([distances(rows, row) for row in rows]) ** 2
    left, selected = list(range(len(rows))), list[int]()
    while len(selected) < count:
        neighbours = min(max(1, len(left) - malicious - 2), len(left) - 1)
        scores = squares[left][:, left].sort(1).values[:, 1 : 1 + neighbours].sum(1)
        selected.append(left.pop(int(smallest(scores, 1).nonzero())))
    return sorted(selected)


def _middle(rows: Tensor, count: int) -> Tensor:
    """The mean of the numbers of each column that are nearest to its median."""
    middle = median(rows)
    away = (rows - middle).abs()
    nearest = smallest(away, count, unit=middle.abs())
    return torch.where(nearest, rows, 0.0).sum(0) / count
