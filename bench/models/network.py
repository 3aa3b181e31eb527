"""The common structure of all models: a body and a head."""

from typing import ClassVar

from torch import Tensor, nn

from bench.data import TokenShape
from bench.errors import UserError
from bench.models.init import Rules

_OF_TOKENS = "take model 'char_lstm', 'fasttext', 'textcnn' or 'transformer'"


class Network(nn.Module):
    """A body that computes features `[batch, width]` and a linear head that computes logits `[batch, classes]`.

    Names separate the two parts: parameters named `head.*` belong to the head, all others to the body. Inputs are
    normalised floats, such as images `[batch, channels, height, width]` or series `[batch, channels, time]`, or int64
    tokens `[batch, length]`.

    Attributes:
        channels_last: whether images may have this memory layout if clients are trained one by one, which makes
            pooling faster. Such a network must flatten with `flatten`, because `view` needs the other layout.
        better_alone: whether clients are trained one after another on a CPU, as with convolutional networks.
        recordable: whether the tensor operations of a single client's step can be recorded.
        rules: how to draw the weights of a type of layer, if not by `bench.models.init.DEFAULT_RULES`.
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
    """Check that samples are not tokens.

    Raises:
        UserError: the samples are tokens.
    """
    if isinstance(shape, TokenShape):
        raise UserError(f"model {name!r} needs images, series or features, and the samples are tokens: {_OF_TOKENS}.")


def need_images(name: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Channels, height and width of samples that are images.

    Raises:
        UserError: the samples are not images.
    """
    need_values(name, shape)
    if len(shape) != 3:
        raise UserError(f"model {name!r} needs images, and the samples have shape {shape}: take model 'mlp'.")
    return shape


def need_tokens(name: str, shape: tuple[int, ...]) -> TokenShape:
    """The shape of samples that are tokens.

    Raises:
        UserError: the samples are not tokens.
    """
    if not isinstance(shape, TokenShape):
        raise UserError(
            f"model {name!r} needs tokens, and the samples have shape {shape}: take model 'mlp' or another."
        )
    return shape
