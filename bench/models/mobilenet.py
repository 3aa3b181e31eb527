"""torchvision's MobileNetV3 (Howard et al. 2019, arXiv:1905.02244) with a stem that fits the images."""

from collections import OrderedDict
from typing import ClassVar

import numpy as np
from torch import nn

from bench.data import Floats
from bench.models.init import Rules, kaiming_normal_fan_out
from bench.models.network import Network, need_images
from bench.models.resnet import SMALL
from bench.plugin import MODELS


def normal_linear(layer: nn.Module, name: str, rng: np.random.Generator) -> Floats:
    """Weights from N(0, 0.01^2) and zero biases, as torchvision draws the linear layers of MobileNetV3."""
    shape = layer.get_parameter(name).shape
    return np.zeros(shape) if name == "bias" else rng.normal(0.0, 0.01, shape)


class MobileNet(Network):
    """A MobileNet; weights of convolutions and linear layers are drawn as in torchvision."""

    rules: ClassVar[Rules] = {nn.Conv2d: kaiming_normal_fan_out, nn.Linear: normal_linear}


@MODELS.register("mobilenet_v3_small")
def mobilenet_v3_small(shape: tuple[int, ...], classes: int) -> nn.Module:
    """MobileNetV3-Small without its dropout; images up to 64 pixels get a stem of stride 1.

    Raises:
        UserError: inputs are not images.
    """
    channels, height, width = need_images("mobilenet_v3_small", shape)
    from torchvision.models import get_model

    net = get_model("mobilenet_v3_small", weights=None)
    stem = net.features[0]
    stride = 1 if max(height, width) <= SMALL else 2
    stem[0] = nn.Conv2d(channels, stem[0].out_channels, 3, stride=stride, padding=1, bias=False)
    hidden, activation = net.classifier[0], net.classifier[1]
    body: OrderedDict[str, nn.Module] = OrderedDict(
        features=net.features, pool=net.avgpool, flatten=nn.Flatten(), fc=hidden, activation=activation
    )
    return MobileNet(nn.Sequential(body), nn.Linear(hidden.out_features, classes))
