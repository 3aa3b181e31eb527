"""Networks of other packages by name: `PACKAGE/NAME`, with options for their constructors and their initial values.

The number of classes is that of the data. A cell's id has the package's version, as the package makes the network.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bench.errors import UserError, did_you_mean, optional
from bench.models.network import need_images, with_head
from bench.plugin import MODELS


@MODELS.register("torchvision/*")
def torchvision(architecture: str, shape: tuple[int, ...], classes: int, /, **options: Any) -> nn.Module:
    """A network of torchvision by name, such as torchvision/resnet18; all options go to its constructor.

    With a width, such as torchvision/resnet50:512, its features are pooled to that width: so clients' networks of
    several architectures have heads of one shape, as in HtFLlib.

    Raises:
        UserError: samples or options do not fit, or there is no such network or width.
    """
    from torchvision import models

    name = f"torchvision/{architecture}"
    architecture, colon, width = architecture.partition(":")
    if colon and not (width.isdecimal() and int(width) > 0):
        raise UserError(f"model {name!r}: the width after the colon is a number of features, as in resnet50:512")
    channels = need_images(name, shape)[0]
    _check(name, options, architecture, models.list_models(module=models))
    if channels != 3:
        raise UserError(f"model {name!r} needs images of 3 channels, and the samples have shape {shape}")
    if colon and architecture == "googlenet":  # one output; its initial values need to be asked for
        options = {"aux_logits": False, "init_weights": True, **options}
    net = _call(name, models.get_model, architecture, weights=None, num_classes=classes, **options)
    linear = [path for path, layer in net.named_modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise UserError(f"model {name!r} has no linear layer, and so no head")
    if not colon:
        return with_head(net, linear[-1])
    net.set_submodule(linear[-1], nn.Sequential(FeaturePool(int(width)), nn.Linear(int(width), classes)))
    return with_head(net, f"{linear[-1]}.1")


class FeaturePool(nn.Module):
    """Averages neighbouring features so that `width` are left, as torch's `AdaptiveAvgPool1d` does.

    Its gradient is a matrix product: torch's adds up in any order on a GPU.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        """Features `[..., width]` of features `[..., any]`."""
        given = x.shape[-1]
        if given == self.width:
            return x
        place = torch.arange(given, device=x.device)[:, None]
        window = torch.arange(self.width, device=x.device)
        first, end = window * given // self.width, -((window + 1) * -given // self.width)
        inside = (place >= first) & (place < end)
        return x @ (inside.to(x.dtype) / (end - first))


@MODELS.register("timm/*")
def timm(architecture: str, shape: tuple[int, ...], classes: int, /, **options: Any) -> nn.Module:
    """A network of timm by name, such as timm/vit_tiny_patch16_224; all options go to its constructor."""
    name = f"timm/{architecture}"
    timm = optional("timm", f"model {name!r}")
    channels = need_images(name, shape)[0]
    _check(name, options, architecture, timm.list_models())
    net = _call(
        name, timm.create_model, architecture, pretrained=False, num_classes=classes, in_chans=channels, **options
    )
    get_classifier: Any = net.get_classifier
    classifier = get_classifier()
    heads = [path for path, layer in net.named_modules() if layer is classifier]
    if not heads:
        raise UserError(f"model {name!r} has no single layer as its head; methods need one")
    return with_head(net, heads[0])


def _check(name: str, options: dict[str, Any], architecture: str, known: list[str]) -> None:
    for option in ("num_classes", "in_chans", "weights", "pretrained"):
        if option in options:
            raise UserError(
                f"model {name!r}: leave out the option {option!r}: classes and channels are those of the data, and "
                "weights are read from the file that the cell's setting `pretrained` names"
            )
    if architecture.partition(".")[0] not in known:
        raise UserError(
            f"model {name!r}: the package has no network {architecture!r}.{did_you_mean(architecture, known)}"
        )


def _call(name: str, constructor: Callable[..., nn.Module], architecture: str, **options: Any) -> nn.Module:
    try:
        return constructor(architecture, **options)
    except Exception as error:  # another package's code may raise anything
        raise UserError(f"model {name!r}: {' '.join(str(error).split())}; see `model_options`") from error
