"""Initial weights from an explicit generator, with torch's usual distributions but without its global random state."""

import itertools
import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from bench.data import Floats
from bench.errors import UserError

Rule = Callable[[nn.Module, str, np.random.Generator], Floats]  # (layer, name of its tensor, generator) -> values
Rules = Mapping[type[nn.Module], Rule]


def uniform_fan_in(layer: nn.Module, name: str, rng: np.random.Generator) -> Floats:
    """Weights and biases from U(-1/√fan_in, 1/√fan_in): torch's default for linear and convolutional layers.

    He et al. 2015 (arXiv:1502.01852), eq. 10 with the gain of a leaky ReLU of slope √5.
    """
    bound = 1 / math.sqrt(layer.get_parameter("weight")[0].numel())
    return rng.uniform(-bound, bound, layer.get_parameter(name).shape)


def kaiming_normal_fan_out(layer: nn.Module, name: str, rng: np.random.Generator) -> Floats:
    """Weights from N(0, 2/fan_out), He et al. 2015 (arXiv:1502.01852), eq. 14, and biases of zero: for convolutions."""
    weight = layer.get_parameter(name)
    if name == "bias":
        return np.zeros(weight.shape)
    fan_out = weight[:, 0].numel()
    return rng.normal(0.0, math.sqrt(2 / fan_out), weight.shape)


def unit(layer: nn.Module, name: str, rng: np.random.Generator) -> Floats:
    """Initial values of a normalisation layer: scale and variance one, shift and mean zero."""
    tensor: Tensor = getattr(layer, name)
    return np.full(tensor.shape, 1.0 if name in ("weight", "running_var") else 0.0)


def normal(layer: nn.Module, name: str, rng: np.random.Generator) -> Floats:
    """Weights from N(0, 1): torch's default for embeddings."""
    return rng.normal(0.0, 1.0, layer.get_parameter(name).shape)


DEFAULT_RULES: Rules = {
    nn.Linear: uniform_fan_in,
    nn.Conv1d: uniform_fan_in,
    nn.Conv2d: uniform_fan_in,
    nn.modules.batchnorm._BatchNorm: unit,
    nn.GroupNorm: unit,
    nn.LayerNorm: unit,
    nn.Embedding: normal,
}


def initialise(module: nn.Module, rng: np.random.Generator, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Initial values of all parameters, in the order of `named_parameters`, and then of all buffers, on the CPU.

    Draws are made in float64 and then rounded to `dtype`, so that a float64 run starts from the same weights. Layers
    follow `DEFAULT_RULES`; a model with other layers or distributions gives them in its class attribute `rules`.

    Raises:
        UserError: there is no rule for a layer.
    """
    rules = {**DEFAULT_RULES, **getattr(module, "rules", {})}
    values = {}
    for path, _ in itertools.chain(module.named_parameters(), module.named_buffers()):
        parent, _, name = path.rpartition(".")
        layer = module.get_submodule(parent)
        values[path] = torch.from_numpy(_rule(rules, layer, path)(layer, name, rng)).to(dtype)
    return values


def _rule(rules: Rules, layer: nn.Module, path: str) -> Rule:
    for kind in type(layer).__mro__:
        if kind in rules:
            return rules[kind]
    raise UserError(
        f"no rule for the initial values of {path!r} ({type(layer).__name__}): "
        f"give one in the class attribute `rules` of the model, as bench/models/network.py explains."
    )
