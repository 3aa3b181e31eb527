"""The common structure of all models: a body and a head."""

import functools
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bench.data import TokenShape
from bench.errors import UserError, did_you_mean
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
        rules: how to draw the weights of a type of layer, if not by `bench.models.init.DEFAULT_RULES`; None if all
            weights start as the constructor leaves them.
    """

    channels_last: ClassVar[bool] = False
    better_alone: ClassVar[bool] = False
    recordable: ClassVar[bool] = True
    rules: ClassVar[Rules | None] = {}

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
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


class Cut(Network):
    """A network cut before its last layer: `body` is the network with an identity in that layer's place."""

    rules: ClassVar[Rules | None] = None

    def __init__(self, net: nn.Module, place: str, padding: int | None) -> None:
        last = net.get_submodule(place)
        net.set_submodule(place, nn.Identity())
        super().__init__(net, last)
        self.place = place
        self.padding = padding

    def features(self, x: Tensor) -> Tensor:
        """The input of the head, `[batch, width]`."""
        out = self.body(x) if self.padding is None else self.body(x, attention_mask=_attended(x, self.padding))
        logits: Tensor = getattr(out, "logits", out)  # of Hugging Face's outputs
        return logits

    def uncut(self, x: Tensor) -> Tensor:
        """Logits of the network as it was; they are `forward(x)` if nothing follows its last layer."""
        self.body.set_submodule(self.place, self.head)
        try:
            return self.features(x)
        finally:
            self.body.set_submodule(self.place, nn.Identity())


def _attended(tokens: Tensor, padding: int) -> Tensor:
    """The attention mask of Hugging Face's tokenizers, `[batch, length]`: 1 at tokens of a text, 0 at padding.

    The first place is always 1: a text without tokens would attend to nothing, and its features be no numbers.
    """
    first = torch.arange(tokens.shape[1], device=tokens.device) == 0
    return ((tokens != padding) | first).long()


def _make_masks_always() -> None:
    """Let Hugging Face's networks make a mask of every batch: without padding they leave it out, which they read from
    the batch's numbers. Neither several clients at once nor a recorded step nor a tensor without numbers can do that.
    """
    masks = sys.modules.get("transformers.masking_utils")  # it is loaded, if a network is of it
    if masks is None:
        return

    def whole(make: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if options.get("attention_mask") is not None:
            options |= {"allow_is_bidirectional_skip": False, "allow_is_causal_skip": False}
        return make(*args, **options)

    for kind, make in (("sdpa", masks.sdpa_mask), ("eager", masks.eager_mask)):
        masks.AttentionMaskInterface.register(kind, functools.partial(whole, make))


def with_head(net: nn.Module, head: str, *, padding: int | None = None) -> Network:
    """Cut any network before its last layer: into `head`, that layer, and `body`, all before it.

    Its parameters are then named `head.*`, and all others `body.*` with their name in the network. Initial values are
    those of the network's constructor. Whether that layer is the last thing that is computed is checked before a run.

    Args:
        net: the network, which is changed; its output is `[batch, classes]` logits, or has them as `logits`.
        head: name of the layer, such as `fc` or `classifier.6`.
        padding: of a network of tokens with `forward(tokens, attention_mask)`, the token to which it attends nowhere:
            `shape.padding`.

    Raises:
        UserError: the network has no such layer, or it holds no parameters.
    """
    layers = dict(net.named_modules())
    if not head or head not in layers or not any(True for _ in layers[head].parameters()):
        linear = [path for path, layer in layers.items() if isinstance(layer, nn.Linear)]
        last = ", ".join(linear[-3:]) or "none"
        raise UserError(
            f"with_head: {type(net).__name__} has no layer {head!r} with parameters.{did_you_mean(head, linear)} "
            f"The last linear layers are {last}"
        )
    if padding is not None:
        _make_masks_always()
    return Cut(net, head, padding)


def need_values(name: str, shape: tuple[int, ...]) -> None:
    """Check that samples are not tokens.

    Raises:
        UserError: the samples are tokens.
    """
    if isinstance(shape, TokenShape):
        raise UserError(f"model {name!r} needs images, series or features, and the samples are tokens: {_OF_TOKENS}.")


def need_images(name: str, shape: tuple[int, ...], least: int = 1) -> tuple[int, int, int]:
    """Channels, height and width of samples that are images of at least so many pixels a side.

    Raises:
        UserError: the samples are not images, or are smaller.
    """
    need_values(name, shape)
    if len(shape) != 3 or min(shape[1:]) < least:
        large = f" of at least {least} x {least} pixels" if least > 1 else ""
        raise UserError(
            f"model {name!r} needs images{large}, and the samples have shape {shape}: take model 'mlp' or another."
        )
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
