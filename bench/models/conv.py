"""Small convolutional networks from papers: two 5x5 convolutions, each with a 2x2 max-pool, and hidden layers."""

from collections import OrderedDict
from typing import ClassVar

from pydantic import PositiveInt
from torch import nn

from bench.errors import UserError
from bench.models.fourier import FourierConv2d
from bench.models.network import Network, need_values
from bench.plugin import MODELS


@MODELS.register("cnn")
def cnn(shape: tuple[int, ...], classes: int, *, hidden: PositiveInt = 512) -> nn.Module:
    """The CNN of PGFed (Luo et al. 2023, arXiv:2212.01448): 32 and 64 filters; 878,538 parameters on CIFAR-10.

    Raises:
        UserError: inputs are not images of at least 16 x 16.
    """
    return _two_convolutions("cnn", shape, classes, filters=(32, 64), hidden=[hidden])


@MODELS.register("spfl_cnn")
def spfl_cnn(shape: tuple[int, ...], classes: int, *, hidden: PositiveInt = 512) -> nn.Module:
    """The CNN of SPFL's Table 4: 20 and 50 filters; its released code has a hidden layer of 500.

    Raises:
        UserError: inputs are not images of at least 16 x 16.
    """
    return _two_convolutions("spfl_cnn", shape, classes, filters=(20, 50), hidden=[hidden])


@MODELS.register("comet_cnn")
def comet_cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The CNN of COMET (Cho et al. 2023): hidden layers of 120, 100, 84 and 50; 76,336 parameters on CIFAR-10.

    The paper does not give its filters; 6 and 16 are LeNet-5's.

    Raises:
        UserError: inputs are not images of at least 16 x 16.
    """
    return _two_convolutions("comet_cnn", shape, classes, filters=(6, 16), hidden=[120, 100, 84, 50])


class _Pooled(Network):
    """A network that uses the layout `channels_last`, with which pooling is three times as fast."""

    channels_last: ClassVar[bool] = True


def _two_convolutions(
    name: str, shape: tuple[int, ...], classes: int, *, filters: tuple[int, int], hidden: list[int]
) -> nn.Module:
    need_values(name, shape)
    if len(shape) != 3 or min(shape[1:]) < 16:
        raise UserError(
            f"model {name!r} needs images of at least 16 x 16 pixels, and the samples have shape {shape}: "
            "take model 'mlp' or a ResNet, or larger images."
        )
    channels, height, width = shape
    first, second = filters
    area = _after_convolutions(height) * _after_convolutions(width)
    # The pool comes before the ReLU, unlike in the papers: values and gradients are the same, and the ReLU has only a
    # quarter of the work.
    body: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=FourierConv2d(channels, first, 5),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),
        conv2=FourierConv2d(first, second, 5),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
    )
    width = second * area
    for i, size in enumerate(hidden, start=1):
        body[f"fc{i}"] = nn.Linear(width, size)
        body[f"relu{2 + i}"] = nn.ReLU()
        width = size
    return _Pooled(nn.Sequential(body), nn.Linear(width, classes))


def _after_convolutions(side: int) -> int:
    """Side of the map after both blocks: a 5x5 convolution without padding removes 4 pixels, and a pool halves it."""
    return ((side - 4) // 2 - 4) // 2
