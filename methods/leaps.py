"""Equations 8 to 14 of LGA ("Personalized Heterogeneous Federated Learning with Gradient Similarity"): an estimate of
what a late model would be now, and a personalized model between the client's and the generic one; for `methods.lga`.
"""

import torch
from torch import Tensor

from bench.method import Params


def leap(base: Params, first: Params, now: Params, local: Params, share: Tensor, equation: int) -> Params:
    """Equations 10 and 11: an estimate of what the late model `local` would be now. Buffers stay the client's.

    `base` is w_t0, which the client downloaded, `first` is w_t1 of one round later, `now` is w_tau, and `share` comes
    from `similarity`.
    """
    d = local.weights - base.weights
    start = now if equation == 11 else base
    return local.with_weights(start.weights + share * d * d * (now.weights - first.weights) + d)


def between(local: Params, now: Params, share: Tensor) -> Params:
    """Equations 12 and 14: w_t0 + (1 - share) (local - w_t0) + share (now - w_t0), in which w_t0 cancels."""
    return local.with_weights(torch.lerp(local.weights, now.weights, share))


def similarity(base: Params, first: Params, local: Params) -> Tensor:
    """Equations 8, 9 and 13, `[d]`: e^S / (e + e^S); S is the cosine of server's and client's step, per tensor."""
    sizes = [e.size for e in base.spec.params]
    pieces = zip(*(torch.split(w.weights, sizes) for w in (base, first, local)), strict=True)
    return torch.cat([torch.sigmoid(_cosine(x, a - x, b - x) - 1).expand_as(x) for x, a, b in pieces])


def _cosine(start: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The cosine of two steps; 0 where one is 0 or rounding noise (a bias in front of BatchNorm has no gradient)."""
    lengths = torch.stack([a.norm(), b.norm()])
    noise = 16 * torch.finfo(start.dtype).eps * start.norm()
    return torch.where((lengths > noise).all(), a @ b / lengths.prod(), 0.0)
