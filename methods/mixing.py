"""Equations 3 to 7 of SPFL ("Personalized Heterogeneous Federated Learning with Gradient Similarity"): how much of a
client's update goes into every other client's model. Used by `methods.spfl`.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from bench.method import Params

Similarity = Literal["softmax", "uniform", "local"]


def cosines(updates: Sequence[Tensor]) -> Tensor:
    """Equation 3: cosines `[N, N]` of N updates; those of a zero update are 0."""
    matrix = torch.stack(list(updates))
    matrix = matrix / matrix.norm(dim=1, keepdim=True).clamp_min(torch.finfo(matrix.dtype).tiny)
    return matrix @ matrix.T


def rows(cosine: Tensor, kind: Similarity) -> Tensor:
    """Row-stochastic weights `[N, N]`: the softmax of equations 5 and 6, or what replaces it."""
    if kind == "softmax":
        return cosine.softmax(1)
    return torch.eye(len(cosine)).to(cosine) if kind == "local" else torch.full_like(cosine, 1 / len(cosine))


def mix(before: list[Params], after: list[Params], shares: Tensor, sizes: Tensor, o: Any) -> list[Params]:
    """One stage of all N new models (equation 7); buffers are always mixed as they are, never as updates.

    Args:
        before, after: the stage as the clients got it and as they trained it.
        shares: `[N, N]`, of `rows`; `sizes`: `[N]`, the clients' numbers of samples.
        o: has `mix`, `scale` and `alpha` of SPFL's hyperparameters.
    """
    end = torch.stack([w.weights for w in after])
    if o.mix == "weights":
        weights = shares @ end
    else:
        start = torch.stack([w.weights for w in before])
        by_size = shares * sizes
        shares = by_size / by_size.sum(1, keepdim=True)
        steps = shares if o.scale == "released" else by_size / sizes.sum()
        weights = start + o.alpha * steps @ (end - start)
    buffers = shares @ torch.stack([w.buffers for w in after])
    return [Params(weights[i], buffers[i], w.spec) for i, w in enumerate(after)]
