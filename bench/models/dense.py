"""Models for flat inputs `[batch, features]`; inputs of other shapes, such as images, are flattened."""

import math
from collections import OrderedDict

from pydantic import PositiveInt
from torch import nn

from bench.models.network import Network, need_values
from bench.plugin import MODELS


@MODELS.register("logistic")
def logistic(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Multinomial logistic regression: the head alone, the body has no weights."""
    need_values("logistic", shape)
    return Network(nn.Flatten(), nn.Linear(math.prod(shape), classes))


@MODELS.register("mlp")
def mlp(shape: tuple[int, ...], classes: int, *, hidden: PositiveInt = 200, layers: PositiveInt = 1) -> nn.Module:
    """Hidden layers of equal width, with ReLU; two of 200 are the 2NN of McMahan et al. 2017 (arXiv:1602.05629)."""
    need_values("mlp", shape)
    body: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    width = math.prod(shape)
    for i in range(1, layers + 1):
        body[f"fc{i}"] = nn.Linear(width, hidden)
        body[f"relu{i}"] = nn.ReLU()
        width = hidden
    return Network(nn.Sequential(body), nn.Linear(width, classes))
