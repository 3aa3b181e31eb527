"""Distributions over clients."""

import torch
from torch import Tensor


def onto_simplex(rows: Tensor) -> Tensor:
    """The nearest distribution to each row: max(v - theta, 0) with the theta for which that sums to 1.

    Of the thetas at which the n largest entries would be the positive ones, it is the greatest.
    """
    clients = rows.shape[1]
    # No constant matters, nor what is 1 or more below the largest entry: large numbers would cost digits of the sum.
    rows = (rows - rows.amax(1, keepdim=True)).clamp(min=-1)
    # A product, because torch has no reproducible cumulative sum of floats on a GPU.
    largest = rows.sort(1, descending=True).values @ rows.new_ones(clients, clients).triu()
    theta = ((largest - 1) / torch.arange(1, clients + 1, device=rows.device)).amax(1, keepdim=True)
    return (rows - theta).clamp(min=0)
