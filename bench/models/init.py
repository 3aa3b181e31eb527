"""Initial weights from an explicit generator, with torch's usual distributions but without its global random state."""

import contextlib
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from bench.data import Floats
from bench.errors import UserError
from bench.models import adapters
from bench.rng import generator, key
from bench.tensors import statistics

Rule = Callable[[nn.Module, str, np.random.Generator], Floats]  # (layer, name of its tensor, generator) -> values
Rules = Mapping[type[nn.Module], Rule]


def uniform_fan_in(layer: nn.Module, name: str, rng: np.random.Generator) -> Floats:
    """Weights and biases from U(-1/√fan_in, 1/√fan_in): torch's default for linear and convolutional layers.

    He et al. 2015 (arXiv:1502.01852), eq. 10 with the gain of a leaky ReLU of slope √5.
    """
    weight: Tensor = layer.weight  # type: ignore[assignment]  # a parametrisation's is no parameter
    bound = 1 / math.sqrt(weight[0].numel())
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
    """Weights from N(0, 1), and zeros for the padding token (`padding_idx`): torch's default for embeddings."""
    return without_padding(layer, rng.normal(0.0, 1.0, layer.get_parameter(name).shape))


def without_padding(layer: nn.Module, weights: Floats) -> Floats:
    """Set an embedding's row of the padding token to zero, in place: no gradient moves it from where it starts."""
    at = getattr(layer, "padding_idx", None)
    if at is not None:
        weights[at] = 0.0
    return weights


DEFAULT_RULES: Rules = {
    nn.Linear: uniform_fan_in,
    nn.Conv1d: uniform_fan_in,
    nn.Conv2d: uniform_fan_in,
    nn.modules.batchnorm._BatchNorm: unit,
    nn.GroupNorm: unit,
    nn.LayerNorm: unit,
    nn.Embedding: normal,
}


_NAMES = ("weight", "bias", "running_mean", "running_var")
"""Tensors of the layers in `DEFAULT_RULES`; a class derived from such a layer may have more."""


def initialise(
    module: nn.Module,
    rng: np.random.Generator,
    dtype: torch.dtype = torch.float32,
    constructed: Callable[[], Mapping[str, Tensor]] | None = None,
) -> dict[str, Tensor]:
    """Initial values of all parameters, in the order of `named_parameters`, and then of all statistics, on the CPU.

    A model that consists of layers in `DEFAULT_RULES`, and in its class attribute `rules`, is drawn by these rules. Any
    other model, and one with `rules = None`, starts with the values that its constructor gives it, except for layers in
    `rules`. Draws are made in float64 and then rounded to `dtype`, so that a float64 run starts from the same weights.
    Adapters are drawn after all others, which are thus the same with adapters as without.

    Args:
        module: the module, on any device; its values are not read.
        rng: generator for the rules.
        dtype: type of the values.
        constructed: returns the constructor's values by name; it is called if they are needed.

    Raises:
        UserError: a tensor has neither a rule nor a constructor's value, or a rule that was made for other tensors.
    """
    rules = rules_of(module)
    start: Mapping[str, Tensor] = {}
    if None in rules.values():
        if constructed is None:
            path = next((path for path in rules if _rule(DEFAULT_RULES, module, path) is None), next(iter(rules)))
            raise UserError(
                f"no rule for the initial values of {path!r} ({type(_layer(module, path)).__name__}): "
                f"give one in the class attribute `rules` of the model, as bench/models/network.py explains."
            )
        start = constructed()
    values = {}
    for path, rule in rules.items():
        if rule is None:
            values[path] = start[path].detach().to(dtype)
        else:
            layer, name = _layer(module, path), path.rpartition(".")[2]
            values[path] = torch.from_numpy(rule(layer, name, rng)).to(dtype)
    if adapters.tensors_of_adapters(module):
        address = int(rng.integers(2**63))
        of_adapters = adapters.initial(module, lambda layer: generator("adapters", address, layer))
        values |= {path: torch.from_numpy(value).to(dtype) for path, value in of_adapters.items()}
        values = {path: values[path] for path, _ in itertools.chain(module.named_parameters(), statistics(module))}
    return values


def rules_of(module: nn.Module) -> dict[str, Rule | None]:
    """The rule for each parameter and statistic of a model but those of adapters; None for what its constructor leaves.

    Raises:
        UserError: a tensor would be drawn by a rule that was made for others.
    """
    given = getattr(module, "rules", {})
    added = adapters.tensors_of_adapters(module)
    tensors = itertools.chain(module.named_parameters(), statistics(module))
    paths = [path for path, _ in tensors if path not in added]
    rules = {path: _rule({} if given is None else {**DEFAULT_RULES, **given}, module, path) for path in paths}
    if None in rules.values():
        return {path: _rule(given or {}, module, path) for path in paths}
    return rules


def _layer(module: nn.Module, path: str) -> nn.Module:
    return module.get_submodule(path.rpartition(".")[0])


def _rule(rules: Rules, module: nn.Module, path: str) -> Rule | None:
    """The rule for a tensor; None if there is none.

    Raises:
        UserError: the tensor is one that a derived layer adds to a layer in `DEFAULT_RULES`.
    """
    layer = _layer(module, path)
    kind = next((kind for kind in type(layer).__mro__ if kind in rules), None)
    if kind is None:
        return None
    if rules[kind] is DEFAULT_RULES.get(kind) and path.rpartition(".")[2] not in _NAMES:
        raise UserError(
            f"{path!r} is no tensor of {kind.__name__}, by whose rule its layer {type(layer).__name__} would be drawn: "
            f"give the model `rules = None`, so that it starts from its constructor's values, or a rule for that layer"
        )
    return rules[kind]


@contextlib.contextmanager
def seeded(*address: int | str) -> Iterator[None]:
    """Seed the global generators of torch (on the CPU), numpy and Python by an address for this block.

    What a constructor draws is then the same whatever ran before, and what runs later is not affected. Within the block
    torch's default type is float64.
    """
    seed = key(*address)
    states = torch.get_rng_state(), np.random.get_state(), random.getstate(), torch.get_default_dtype()
    torch.default_generator.manual_seed(seed % 2**63)
    np.random.seed(seed % 2**32)
    random.seed(seed)
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
        torch.set_default_dtype(states[3])
