"""torchvision's VGGs with BatchNorm (Simonyan and Zisserman 2015, arXiv:1409.1556), with a head for small images."""

from typing import ClassVar

from torch import nn

from bench.errors import UserError
from bench.models.init import Rules, kaiming_normal_fan_out
from bench.models.network import Network, need_values
from bench.plugin import MODELS

HIDDEN = 512
SMALLEST = 32  # pixels; five pools reduce this side to one pixel


class VGG(Network):
    """A VGG; weights of convolutions are drawn as in torchvision, those of linear layers by the default rule."""

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

    Raises:
        UserError: inputs are not images of at least 32 x 32.
    """
    need_values(name, shape)
    if len(shape) != 3 or min(shape[1:]) < SMALLEST:
        raise UserError(
            f"model {name!r} needs images of at least {SMALLEST} x {SMALLEST} pixels, and the samples have shape "
            f"{shape}: take model 'cnn' or a ResNet, or larger images."
        )
    from torchvision.models import get_model

    convolutions = get_model(f"{name}_bn", weights=None, init_weights=False).features
    channels, height, width = shape
    convolutions[0] = nn.Conv2d(channels, 64, kernel_size=3, padding=1)
    area = (height // SMALLEST) * (width // SMALLEST)
    body = nn.Sequential(
        convolutions,
        nn.Flatten(),
        nn.Linear(HIDDEN * area, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
    )
    return VGG(body, nn.Linear(HIDDEN, classes))
