"""The processor on which tensors are, for code whose fastest form differs between processors."""

from torch import Tensor


def on_gpu(tensor: Tensor) -> bool:
    """Return whether faster forms that round differently may be used; on a CPU results must stay bitwise equal."""
    return tensor.device.type != "cpu"
