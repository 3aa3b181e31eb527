"""Projection onto the simplex of distributions over clients."""

import torch
from torch import Tensor


def onto_simplex(rows: Tensor) -> Tensor:
    """The nearest distribution to each row v: max(v - theta, 0), with the theta for which it sums to 1.

    For each n there is a theta at which the n largest entries minus theta sum to 1; the largest of these is the one.
    """
    clients = rows.shape[1]
    # Neither a constant nor entries 1 or more below the largest matter; large numbers would cost the sum precision.
    rows = (rows - rows.amax(1, keepdim=True)).clamp(min=-1)
    # A matrix product, because torch has no reproducible cumulative sum of floats on a GPU.
    largest = rows.sort(1, descending=True).values @ rows.new_ones(clients, clients).triu()
    theta = ((largest - 1) / torch.arange(1, clients + 1, device=rows.device)).amax(1, keepdim=True)
    return (rows - theta).clamp(min=0)
