"""Recurrent layers written out step by step, so that they run under `vmap`; those of `torch.nn` do not.

For one client on a CPU, torch's LSTM is called, which is twice as fast; torch's GRU is not called.
"""

import math

import numpy as np
import torch
from torch import Tensor, nn

from bench.data import Floats


class Recurrent(nn.Module):
    """Base class of both layers: weights with torch's names and shapes, and a zero initial state."""

    def __init__(self, gates: int, inputs: int, hidden: int) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.empty(gates * hidden, inputs))
        self.weight_hh = nn.Parameter(torch.empty(gates * hidden, hidden))
        self.bias_ih = nn.Parameter(torch.empty(gates * hidden))
        self.bias_hh = nn.Parameter(torch.empty(gates * hidden))

    def _start(self, x: Tensor) -> Tensor:
        return x.new_zeros(len(x), self.weight_hh.shape[1])


class LSTM(Recurrent):
    """One layer of `nn.LSTM` (Hochreiter and Schmidhuber 1997, forget gates); gates: input, forget, cell, output."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(4, inputs, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states `[batch, time, hidden]` of inputs `[batch, time, inputs]`."""
        if x.device.type == "cpu" and not torch._C._are_functorch_transforms_active():
            weights: list[Tensor] = [self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh]
            start = self._start(x).unsqueeze(0)
            # one layer in one direction, without dropout; computed by oneDNN
            by_torch: Tensor = torch.lstm(x, (start, start), weights, True, 1, 0.0, True, False, True)[0]
            return by_torch
        products = nn.functional.linear(x, self.weight_ih, self.bias_ih + self.bias_hh)  # one product for all steps
        hidden = cell = self._start(x)
        states = []
        for product in products.unbind(1):
            i, f, g, o = (product + nn.functional.linear(hidden, self.weight_hh)).chunk(4, dim=1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            hidden = o.sigmoid() * cell.tanh()
            states.append(hidden)
        return torch.stack(states, dim=1)


class GRU(Recurrent):
    """One layer of `nn.GRU` (Cho et al. 2014, arXiv:1406.1078); gates: reset, update, new."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(3, inputs, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states `[batch, time, hidden]` of inputs `[batch, time, inputs]`."""
        products = nn.functional.linear(x, self.weight_ih, self.bias_ih)
        hidden = self._start(x)
        states = []
        for product in products.unbind(1):
            r, z, n = product.chunk(3, dim=1)
            of_r, of_z, of_n = nn.functional.linear(hidden, self.weight_hh, self.bias_hh).chunk(3, dim=1)
            update = (z + of_z).sigmoid()
            new = (n + (r + of_r).sigmoid() * of_n).tanh()
            hidden = new + update * (hidden - new)
            states.append(hidden)
        return torch.stack(states, dim=1)


def uniform_hidden(layer: nn.Module, name: str, rng: np.random.Generator) -> Floats:
    """Weights and biases from U(-1/√hidden, 1/√hidden): torch's default for recurrent layers."""
    bound = 1 / math.sqrt(layer.get_parameter("weight_hh").shape[1])
    return rng.uniform(-bound, bound, layer.get_parameter(name).shape)
