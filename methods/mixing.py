"""Equations 3 to 7 of SPFL ("Personalized Heterogeneous Federated Learning with Gradient Similarity"): the weights of
all clients' updates in each client's model, and the mixing of the models. Used by `methods.spfl`.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from bench.method import Params

Similarity = Literal["softmax", "uniform", "local"]


def cosines(updates: Sequence[Tensor]) -> Tensor:
    """Equation 3: cosines `[N, N]` of N updates; 0 for an update of zeros."""
    matrix = torch.stack(list(updates))
    matrix = matrix / matrix.norm(dim=1, keepdim=True).clamp_min(torch.finfo(matrix.dtype).tiny)
    return matrix @ matrix.T


def rows(cosine: Tensor, kind: Similarity) -> Tensor:
    """Row-stochastic weights `[N, N]`: the softmax of equations 5 and 6, or uniform or local weights in its place."""
    if kind == "softmax":
        return cosine.softmax(1)
    return torch.eye(len(cosine)).to(cosine) if kind == "local" else torch.full_like(cosine, 1 / len(cosine))


def mix(before: list[Params], after: list[Params], shares: Tensor, sizes: Tensor, o: Any) -> list[Params]:
    """One stage of all N new models (equation 7); the values of buffers are mixed, never their updates.

    Args:
        before, after: the stage as the clients received it and after their training.
        shares: `[N, N]`, from `rows`.
        sizes: `[N]`, the clients' numbers of samples.
        o: an object with `mix`, `scale` and `alpha` of SPFL's hyperparameters.
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
