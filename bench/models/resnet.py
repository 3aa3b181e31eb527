"""torchvision's ResNets (He et al. 2016, arXiv:1512.03385) with a stem that fits the images."""

import functools
from typing import ClassVar

from pydantic import PositiveInt
from torch import nn

from bench.errors import UserError
from bench.models.init import Rules, kaiming_normal_fan_out
from bench.models.network import Network, need_images
from bench.plugin import MODELS

_NARROWEST = 64  # channels of the first layers; all other layers have multiples of it
SMALL = 64  # pixels; the ImageNet stem would reduce the side of such images to a quarter before the first block


class ResNet(Network):
    """A ResNet; weights of convolutions are drawn as in torchvision."""

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


@MODELS.register("resnet18_gn")
def resnet18_gn(shape: tuple[int, ...], classes: int, *, groups: PositiveInt = 32) -> nn.Module:
    """ResNet-18 with GroupNorm (Wu and He 2018, arXiv:1803.08494) in place of BatchNorm."""
    return _resnet("resnet18", shape, classes, groups)


@MODELS.register("resnet50_gn")
def resnet50_gn(shape: tuple[int, ...], classes: int, *, groups: PositiveInt = 32) -> nn.Module:
    """ResNet-50 with GroupNorm (Wu and He 2018, arXiv:1803.08494) in place of BatchNorm."""
    return _resnet("resnet50", shape, classes, groups)


def _resnet(name: str, shape: tuple[int, ...], classes: int, groups: int = 0) -> nn.Module:
    """Build a ResNet: images up to 64 pixels get a 3x3 stem of stride 1 without max-pool, larger ones ImageNet's.

    Args:
        groups: number of GroupNorm's groups; 0 for BatchNorm.

    Raises:
        UserError: inputs are not images, or the groups do not divide the channels.
    """
    called = f"{name}_gn" if groups else name
    channels, height, width = need_images(called, shape)
    if groups and _NARROWEST % groups:
        raise UserError(f"model {called!r}: groups {groups} do not divide its {_NARROWEST} channels")
    from torchvision.models import get_model

    norm = functools.partial(nn.GroupNorm, groups) if groups else nn.BatchNorm2d
    body = get_model(name, weights=None, norm_layer=norm)
    if max(height, width) <= SMALL:
        body.conv1 = nn.Conv2d(channels, 64, kernel_size=3, padding=1, bias=False)
        body.maxpool = nn.Identity()
    else:
        body.conv1 = nn.Conv2d(channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
    features = body.fc.in_features
    body.fc = nn.Identity()
    return ResNet(body, nn.Linear(features, classes))
