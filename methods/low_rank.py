"""Compression of model updates to low rank, for sending."""

import torch
from torch import Tensor

from bench.method import Params

Update = list[list[Tensor]]


def compressed(old: Params, new: Params, energy: float) -> Update:
    """The weights' update new - old: for each tensor two factors of low rank if they are smaller, else the tensor.

    A tensor with more than two dimensions is flattened to a matrix of its first dimension against all others. The
    largest singular values are kept, as many as needed for the share `energy` of the sum of all squares.
    """
    update = new.with_weights(new.weights - old.weights).tensors()
    return [_factors(update[entry.name], energy) for entry in new.spec.params]


def _factors(tensor: Tensor, energy: float) -> list[Tensor]:
    if tensor.ndim < 2:
        return [tensor.clone()]
    matrix = tensor.flatten(1)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    share = values.square().cumsum(0)
    rank = min(len(values), int((share < energy * share[-1]).sum()) + 1) if share[-1] > 0 else 0
    if energy == 1 or rank * sum(matrix.shape) >= matrix.numel():
        return [tensor.clone()]
    return [left[:, :rank] * values[:rank], right[:rank].clone()]


def restored(old: Params, update: Update) -> Params:
    """`old` with an update added to its weights; `old` itself for an empty update."""
    if not update:
        return old
    flat = torch.cat([(f[0] if len(f) == 1 else f[0] @ f[1]).reshape(-1) for f in update])
    return old.with_weights(old.weights + flat)
