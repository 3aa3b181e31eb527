"""Checks of index lists that come from a user: from a split file, or from the user's own partition."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from bench.data import Indices
from bench.errors import UserError


class Lists(Protocol):
    """Index lists of a split by client; None stands for lists that the harness makes."""

    @property
    def train(self) -> Sequence[Indices]: ...
    @property
    def validation(self) -> Sequence[Indices] | None: ...
    @property
    def test(self) -> Sequence[Indices] | None: ...
    @property
    def global_test(self) -> Indices | None: ...


def check_lists(source: str, n: int, clients: int, split: Lists) -> Indices:
    """Check the lists, and return for each sample the client that trains or validates on it, or -1.

    Args:
        source: where the lists come from, for messages.
        n: number of samples of the data set.
        clients: number of clients of the cell.
        split: the lists.

    Raises:
        UserError: the number of clients differs, an index is out of range or twice in a list, training or validation
            lists overlap, or a training sample is also a test sample.
    """
    for name, lists in (("train", split.train), ("validation", split.validation), ("test", split.test)):
        if lists is not None and len(lists) != clients:
            raise UserError(f"{source}: '{name}' has {len(lists)} lists; the cell has {clients} clients")
    owner = np.full(n, -1)
    for name, lists in (("train", split.train), ("validation", split.validation)):
        for client, indices in enumerate(lists or []):
            place = f"{source}: client {client}'s list in '{name}'"
            _check_list(place, indices, n)
            if (taken := indices[owner[indices] >= 0]).size:
                raise UserError(f"{place} has sample {taken[0]}, which client {owner[taken[0]]} has already")
            owner[indices] = client
    for client, indices in enumerate(split.test or []):
        _check_test(f"{source}: client {client}'s list in 'test'", indices, owner)
    if split.global_test is not None:
        _check_test(f"{source}: 'global_test'", split.global_test, owner)
    return owner


def _check_test(place: str, indices: Indices, owner: Indices) -> None:
    _check_list(place, indices, len(owner))
    if (taken := indices[owner[indices] >= 0]).size:
        raise UserError(f"{place} has sample {taken[0]}, on which client {owner[taken[0]]} trains or validates")


def _check_list(place: str, indices: Indices, n: int) -> None:
    if indices.size and (indices.min() < 0 or indices.max() >= n):
        raise UserError(f"{place} goes from {indices.min()} to {indices.max()}; the data set has samples 0 to {n - 1}")
    if len(np.unique(indices)) != len(indices):
        raise UserError(f"{place} has a sample twice")
