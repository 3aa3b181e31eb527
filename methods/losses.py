"""Terms that the losses of several methods share."""

from torch import Tensor

from bench.method import Params


def proximal(w: Params, center: Tensor) -> Tensor:
    """`||w - center||^2 / 2`, the squared norm; its gradient is `w - center`."""
    distance = w.weights - center
    return distance @ distance / 2
