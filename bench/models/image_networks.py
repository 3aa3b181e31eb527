"""torchvision's ResNets, VGGs and MobileNetV3 with stems and heads that fit the images."""

import functools
from collections import OrderedDict
from typing import ClassVar

import numpy as np
from pydantic import PositiveInt
from torch import nn

from bench.data import Floats
from bench.errors import UserError
from bench.models.init import Rules, kaiming_normal_fan_out
from bench.models.network import Network, need_images
from bench.plugin import MODELS

_NARROWEST = 64  # channels of the first layers; all other layers have multiples of it
_SMALL = 64  # pixels; the ImageNet stem would reduce the side of such images to a quarter before the first block
_HIDDEN = 512  # of VGG
_VGG_SIDE = 32  # pixels; five pools reduce this side to one pixel


class ResNet(Network):
    """A ResNet (He et al. 2016, arXiv:1512.03385); weights of convolutions are drawn as in torchvision."""

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
    """
    called = f"{name}_gn" if groups else name
    channels, height, width = need_images(called, shape)
    if groups and _NARROWEST % groups:
        raise UserError(f"model {called!r}: groups {groups} do not divide its {_NARROWEST} channels")
    from torchvision.models import get_model

    norm = functools.partial(nn.GroupNorm, groups) if groups else nn.BatchNorm2d
    body = get_model(name, weights=None, norm_layer=norm)
    if max(height, width) <= _SMALL:
        body.conv1 = nn.Conv2d(channels, 64, kernel_size=3, padding=1, bias=False)
        body.maxpool = nn.Identity()
    else:
        body.conv1 = nn.Conv2d(channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
    features = body.fc.in_features
    body.fc = nn.Identity()
    return ResNet(body, nn.Linear(features, classes))


class VGG(Network):
    """A VGG (Simonyan and Zisserman 2015, arXiv:1409.1556); convolutions are drawn as in torchvision."""

    channels_last: ClassVar[bool] = True
    rules: ClassVar[Rules] = {nn.Conv2d: kaiming_normal_fan_out}


@MODELS.register("vgg11")
def vgg11(shape: tuple[int, ...], classes: int) -> nn.Module:
    """VGG-11; 9,756,426 parameters on CIFAR-10; BatchNorm, two hidden layers of 512, no dropout."""
    return _vgg("vgg11", shape, classes)


@MODELS.register("vgg13")
def vgg13(shape: tuple[int, ...], classes: int) -> nn.Module:
    """VGG-13; 9,941,322 parameters on CIFAR-10; BatchNorm, two hidden layers of 512, no dropout."""
    return _vgg("vgg13", shape, classes)


def _vgg(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Convolutions with BatchNorm, two hidden layers of 512, and no dropout.

    COMET's communication costs (Cho et al. 2023, Table III) fit this head, not the ImageNet head with layers of 4,096.
    """
    channels, height, width = need_images(name, shape, least=_VGG_SIDE)
    from torchvision.models import get_model

    convolutions = get_model(f"{name}_bn", weights=None, init_weights=False).features
    convolutions[0] = nn.Conv2d(channels, 64, kernel_size=3, padding=1)
    area = (height // _VGG_SIDE) * (width // _VGG_SIDE)
    body = nn.Sequential(
        convolutions,
        nn.Flatten(),
        nn.Linear(_HIDDEN * area, _HIDDEN),
        nn.ReLU(),
        nn.Linear(_HIDDEN, _HIDDEN),
        nn.ReLU(),
    )
    return VGG(body, nn.Linear(_HIDDEN, classes))


def _normal_linear(layer: nn.Module, name: str, rng: np.random.Generator) -> Floats:
    """Weights from N(0, 0.01^2) and zero biases, as torchvision draws the linear layers of MobileNetV3."""
    shape = layer.get_parameter(name).shape
    return np.zeros(shape) if name == "bias" else rng.normal(0.0, 0.01, shape)


class MobileNet(Network):
    """A MobileNetV3 (Howard et al. 2019, arXiv:1905.02244); its weights are drawn as in torchvision."""

    rules: ClassVar[Rules] = {nn.Conv2d: kaiming_normal_fan_out, nn.Linear: _normal_linear}


@MODELS.register("mobilenet_v3_small")
def mobilenet_v3_small(shape: tuple[int, ...], classes: int) -> nn.Module:
    """MobileNetV3-Small without its dropout; images up to 64 pixels get a stem of stride 1."""
    channels, height, width = need_images("mobilenet_v3_small", shape)
    from torchvision.models import get_model

    net = get_model("mobilenet_v3_small", weights=None)
    stem = net.features[0]
    stride = 1 if max(height, width) <= _SMALL else 2
    stem[0] = nn.Conv2d(channels, stem[0].out_channels, 3, stride=stride, padding=1, bias=False)
    hidden, activation = net.classifier[0], net.classifier[1]
    body: OrderedDict[str, nn.Module] = OrderedDict(
        features=net.features, pool=net.avgpool, flatten=nn.Flatten(), fc=hidden, activation=activation
    )
    return MobileNet(nn.Sequential(body), nn.Linear(hidden.out_features, classes))
