"""One message through one operation of the channel."""

from typing import Any

import torch
from torch import Tensor

from bench.channel.operation import ChannelOperation, Update
from bench.plugin import CHANNELS
from bench.rng import generator

NUMBERS = torch.tensor([3.0, -1.0, 0.5, -4.0, 2.0])


def operation(name: str, **settings: Any) -> ChannelOperation:
    kind = CHANNELS.get(name)
    instance: ChannelOperation = kind(kind.Hyper(**settings))
    return instance


def send(name: str, values: Tensor, state: Any = None, draw: int = 0, **settings: Any) -> tuple[Update, Any]:
    return operation(name, **settings).send(Update.of(values), state or {}, generator("test", draw))
