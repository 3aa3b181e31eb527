"""Small convolutional networks from papers: two 5x5 convolutions, each with a 2x2 max-pool, and hidden layers."""

from collections import OrderedDict
from typing import ClassVar

from pydantic import PositiveInt
from torch import nn

from bench.models.fourier import FourierConv2d
from bench.models.network import Network, need_images
from bench.plugin import MODELS


@MODELS.register("cnn")
def cnn(shape: tuple[int, ...], classes: int, *, hidden: PositiveInt = 512) -> nn.Module:
    """The CNN of PGFed (Luo et al. 2023, arXiv:2212.01448): 32 and 64 filters; 878,538 parameters on CIFAR-10."""
    return _two_convolutions("cnn", shape, classes, filters=(32, 64), hidden=[hidden])


@MODELS.register("spfl_cnn")
def spfl_cnn(shape: tuple[int, ...], classes: int, *, hidden: PositiveInt = 512) -> nn.Module:
    """The CNN of SPFL's Table 4: 20 and 50 filters; its released code has a hidden layer of 500."""
    return _two_convolutions("spfl_cnn", shape, classes, filters=(20, 50), hidden=[hidden])


@MODELS.register("comet_cnn")
def comet_cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The CNN of COMET (Cho et al. 2023): hidden layers of 120, 100, 84 and 50; 76,336 parameters on CIFAR-10.

    The paper does not give its filters; 6 and 16 are LeNet-5's.
    """
    return _two_convolutions("comet_cnn", shape, classes, filters=(6, 16), hidden=[120, 100, 84, 50])


@MODELS.register("lenet")
def lenet(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The LeNet of pFedHN's released code (Shamsian et al. 2021, arXiv:2103.04628): 121,182 parameters on CIFAR-10.

    16 and 32 filters, hidden layers of 120 and 84.
    """
    return _two_convolutions("lenet", shape, classes, filters=(16, 32), hidden=[120, 84])


@MODELS.register("flower_cnn")
def flower_cnn(shape: tuple[int, ...], classes: int, *, wide: bool = False) -> nn.Module:
    """The CNN of Flower's FedRep baseline: BatchNorm after each convolution; 308,098 parameters on CIFAR-10.

    Args:
        shape, classes: of the samples.
        wide: the network that it takes for CIFAR-100, 128 filters in place of 64 and hidden layers of 256 and 128 in
            place of 120 and 64, and dropout of 0.6 before the head.
    """
    filters, hidden = ((64, 128), [256, 128]) if wide else ((64, 64), [120, 64])
    dropout = 0.6 if wide else 0.0
    return _two_convolutions("flower_cnn", shape, classes, filters=filters, hidden=hidden, norm=True, dropout=dropout)


class _Pooled(Network):
    """A network that uses the layout `channels_last`, with which pooling is three times as fast."""

    channels_last: ClassVar[bool] = True


def _two_convolutions(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    *,
    filters: tuple[int, int],
    hidden: list[int],
    norm: bool = False,
    dropout: float = 0.0,
) -> nn.Module:
    channels, height, width = need_images(name, shape, least=16)
    first, second = filters
    area = _after_convolutions(height) * _after_convolutions(width)
    # The pool comes before the ReLU, unlike in the papers: values and gradients are the same, and the ReLU has only a
    # quarter of the work.
    body: OrderedDict[str, nn.Module] = OrderedDict()
    for i, (inputs, outputs) in enumerate(((channels, first), (first, second)), start=1):
        body[f"conv{i}"] = FourierConv2d(inputs, outputs, 5)
        if norm:
            body[f"norm{i}"] = nn.BatchNorm2d(outputs)
        body[f"pool{i}"] = nn.MaxPool2d(2)
        body[f"relu{i}"] = nn.ReLU()
    body["flatten"] = nn.Flatten()
    width = second * area
    for i, size in enumerate(hidden, start=1):
        body[f"fc{i}"] = nn.Linear(width, size)
        body[f"relu{2 + i}"] = nn.ReLU()
        width = size
    if dropout:
        body["dropout"] = nn.Dropout(dropout)
    return _Pooled(nn.Sequential(body), nn.Linear(width, classes))


def _after_convolutions(side: int) -> int:
    """Side of the map after both blocks: a 5x5 convolution without padding removes 4 pixels, and a pool halves it."""
    return ((side - 4) // 2 - 4) // 2
