"""torchvision's ResNets (He et al. 2016, arXiv:1512.03385) with a stem that fits the images."""

from typing import ClassVar

from torch import nn

from bench.errors import UserError
from bench.models.init import Rules, kaiming_normal_fan_out
from bench.models.network import Network, need_values
from bench.plugin import MODELS

SMALL = 64  # pixels; the ImageNet stem would shrink such images fourfold before the first block


class ResNet(Network):
    """A ResNet; convolutions are drawn as torchvision draws them."""

    rules: ClassVar[Rules] = {nn.Conv2d: kaiming_normal_fan_out}


@MODELS.register("resnet18")
def resnet18(shape: tuple[int, ...], classes: int) -> nn.Module:
    """ResNet-18; images up to 64 pixels get a 3x3 stem without max-pool, larger ones ImageNet's."""
    return _resnet("resnet18", shape, classes)


@MODELS.register("resnet34")
def resnet34(shape: tuple[int, ...], classes: int) -> nn.Module:
    """ResNet-34; images up to 64 pixels get a 3x3 stem without max-pool, larger ones ImageNet's."""
    return _resnet("resnet34", shape, classes)


@MODELS.register("resnet50")
def resnet50(shape: tuple[int, ...], classes: int) -> nn.Module:
    """ResNet-50; images up to 64 pixels get a 3x3 stem without max-pool, larger ones ImageNet's."""
    return _resnet("resnet50", shape, classes)


def _resnet(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Images up to 64 pixels get a 3x3 stem of stride 1 without max-pool, larger ones the ImageNet stem.

    Raises:
        UserError: inputs are not images.
    """
    need_values(name, shape)
    if len(shape) != 3:
        raise UserError(f"model {name!r} needs images, and the samples have shape {shape}: take model 'mlp'.")
    from torchvision.models import get_model

    body = get_model(name, weights=None)
    channels, height, width = shape
    if max(height, width) <= SMALL:
        body.conv1 = nn.Conv2d(channels, 64, kernel_size=3, padding=1, bias=False)
        body.maxpool = nn.Identity()
    else:
        body.conv1 = nn.Conv2d(channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
    features = body.fc.in_features
    body.fc = nn.Identity()
    return ResNet(body, nn.Linear(features, classes))
