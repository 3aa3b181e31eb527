"""What every model is: a body and a head."""

from typing import ClassVar

from torch import Tensor, nn

from bench.data import TokenShape
from bench.errors import UserError
from bench.models.init import Rules

_OF_TOKENS = "take model 'char_lstm', 'fasttext', 'textcnn' or 'transformer'"


class Network(nn.Module):
    """A body that gives features `[batch, width]` and a linear head that gives logits `[batch, classes]`.

    The cut between generic and personal weights is by name: the head's parameters are `head.*`, all others the body's.
    Inputs are floats, already normalised, such as images `[batch, channels, height, width]` or series
    `[batch, channels, time]`, or int64 tokens `[batch, length]`.

    Attributes:
        channels_last: whether images may come in that memory layout, where clients are trained one by one: a gain for
            networks that pool. Such a network flattens by `flatten`, as `view` needs the other layout.
        better_alone: whether clients are trained one after the other on a CPU, as those of convolutional networks are.
        recordable: whether a step of one client alone can be recorded, as the tensor operations it comes down to.
        rules: how the weights of a kind of layer are drawn where it differs from `bench.models.init.DEFAULT_RULES`.
    """

    channels_last: ClassVar[bool] = False
    better_alone: ClassVar[bool] = False
    recordable: ClassVar[bool] = True
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


def need_values(name: str, shape: tuple[int, ...]) -> None:
    """Refuse samples that are tokens.

    Raises:
        UserError: they are.
    """
    if isinstance(shape, TokenShape):
        raise UserError(f"model {name!r} needs images, series or features, and the samples are tokens: {_OF_TOKENS}.")


def need_images(name: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Channels, height and width of samples that are images.

    Raises:
        UserError: they are not.
    """
    need_values(name, shape)
    if len(shape) != 3:
        raise UserError(f"model {name!r} needs images, and the samples have shape {shape}: take model 'mlp'.")
    return shape


def need_tokens(name: str, shape: tuple[int, ...]) -> TokenShape:
    """The shape of samples that are tokens.

    Raises:
        UserError: they are not.
    """
    if not isinstance(shape, TokenShape):
        raise UserError(
            f"model {name!r} needs tokens, and the samples have shape {shape}: take model 'mlp' or another."
        )
    return shape
