"""What every model is: a body and a head."""

from typing import ClassVar

from torch import Tensor, nn

from bench.models.init import Rules


class Network(nn.Module):
    """A body that gives features `[batch, width]` and a linear head that gives logits `[batch, classes]`.

    The cut between generic and personal weights is by name: the head's parameters are `head.*`, all others the body's.
    Inputs are `[batch, channels, height, width]` floats, already normalised.

    Attributes:
        channels_last: whether images may come in that memory layout, where clients are trained one by one: a gain for
            networks that pool. Such a network flattens by `flatten`, as `view` needs the other layout.
        rules: how the weights of a kind of layer are drawn where it differs from `bench.models.init.DEFAULT_RULES`.
    """

    channels_last: ClassVar[bool] = False
    rules: ClassVar[Rules] = {}

    def __init__(self, body: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def features(self, x: Tensor) -> Tensor:
        """The input of the head, `[batch, width]`."""
        out: Tensor = self.body(x)
        return out

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[batch, classes]`."""
        out: Tensor = self.head(self.features(x))
        return out
