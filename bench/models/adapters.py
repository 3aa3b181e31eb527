"""Adapters: few numbers that are trained in the layers of a network that is frozen otherwise.

An adapter is a forward hook of its layer and some parameters of that layer, so that the layer keeps its class and all
tensors keep their names: beside `body.fc1.weight` there is `body.fc1.lora_a`. What `Settings.adapters` says is put in
by `insert`; what stays as it is afterwards, `frozen` lists; `merged` computes a network without adapters again.
"""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.data import Floats
from bench.errors import UserError
from bench.model_call import Composed
from bench.settings import AdapterSettings, BottleneckSettings, LoraSettings, PlainAdapters
from bench.tensors import statistics

_CONVOLUTIONS = nn.Conv1d, nn.Conv2d, nn.Conv3d


class Adapter:
    """Base of the kinds of adapters: tensors in a layer, and their effect on the layer's outputs."""

    kind: ClassVar[str]

    def obstacle(self, network: nn.Module, path: str, layer: nn.Module) -> str:
        """Say why a layer cannot have this adapter; empty if it can."""
        if not isinstance(layer, (nn.Linear, *_CONVOLUTIONS)):
            return f"is {type(layer).__name__}, not a linear or convolutional layer"
        if isinstance(network.get_submodule(path.rpartition(".")[0]), nn.MultiheadAttention):
            return "is read by nn.MultiheadAttention, which never calls it"
        return ""

    def shapes(self, layer: Any) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors that the layer gets, by name."""
        raise NotImplementedError

    def initial(self, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
        """Initial values of such a tensor."""
        raise NotImplementedError

    def __call__(self, layer: Any, inputs: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
        """Change the layer's outputs; `torch.nn.Module.register_forward_hook` says how it is called."""
        raise NotImplementedError

    def merge(self, layer: Any) -> None:
        """Change the layer's own tensors in place, so that it gives without the adapter what it gave with it."""
        raise NotImplementedError


@dataclass(frozen=True)
class Lora(Adapter):
    """Low-rank adaptation (Hu et al. 2022, arXiv:2106.09685, eq. 3): alpha / rank B A is added to the weight.

    A, `lora_a`, has the shape of `rank` of the layer's output channels: for a convolution it is a convolution of the
    same kernel, stride and padding. B, `lora_b [outputs, rank]`, mixes them in every place, as in the library PEFT.
    No gradient reaches the layer's inputs through the first `layer.lora_detached` ranks.

    Attributes:
        rank, scale: of B A, and what it is multiplied by.
        dropout: share of A's inputs that are dropped in training, as in the code of LoRA's authors.
    """

    kind = "lora"

    rank: int
    scale: float
    dropout: float

    def obstacle(self, network: nn.Module, path: str, layer: nn.Module) -> str:
        if isinstance(layer, _CONVOLUTIONS) and layer.groups > 1:
            return "is a convolution in groups, whose weight is no product of two matrices"
        return super().obstacle(network, path, layer)

    def shapes(self, layer: Any) -> dict[str, tuple[int, ...]]:
        return {"lora_a": (self.rank, *layer.weight.shape[1:]), "lora_b": (layer.weight.shape[0], self.rank)}

    def initial(self, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
        return np.zeros(shape) if name == "lora_b" else _uniform_fan_in(shape, rng)

    def __call__(self, layer: Any, inputs: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
        a: Tensor = layer.lora_a
        x = functional.dropout(inputs[0], self.dropout, layer.training)
        inner = functional.linear(x, a) if isinstance(layer, nn.Linear) else layer._conv_forward(x, a, None)
        if k := layer.lora_detached:
            at = -1 if isinstance(layer, nn.Linear) else 1
            inner = torch.cat([inner.narrow(at, 0, k).detach(), inner.narrow(at, k, self.rank - k)], at)
        return outputs + self.scale * _mixed(layer, layer.lora_b, inner)

    def merge(self, layer: Any) -> None:
        layer.weight += self.scale * (layer.lora_b @ layer.lora_a.flatten(1)).view_as(layer.weight)


@dataclass(frozen=True)
class Ia3(Adapter):
    """(IA)^3 (Liu et al. 2022, arXiv:2205.05638, sec. 3.3): a factor for each output of the layer, `ia3`, from 1.

    The paper rescales keys, values and the hidden units of feed-forward layers: name the layers that compute them. It
    rescales hidden units after their activation; here a layer's outputs are rescaled before it.
    """

    kind = "ia3"

    def shapes(self, layer: Any) -> dict[str, tuple[int, ...]]:
        return {"ia3": (layer.weight.shape[0],)}

    def initial(self, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
        return np.ones(shape)

    def __call__(self, layer: Any, inputs: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
        return outputs * _by_channel(layer, layer.ia3)

    def merge(self, layer: Any) -> None:
        layer.weight *= layer.ia3.view(-1, *[1] * (layer.weight.dim() - 1))
        if layer.bias is not None:
            layer.bias *= layer.ia3


@dataclass(frozen=True)
class BiasOnly(Adapter):
    """BitFit (Ben Zaken et al. 2022, arXiv:2106.10199): biases are trained, those of norms, too; nothing is added."""

    kind = "bias_only"

    def obstacle(self, network: nn.Module, path: str, layer: nn.Module) -> str:
        return "" if layer._parameters.get("bias") is not None else f"({type(layer).__name__}) has no bias"

    def shapes(self, layer: Any) -> dict[str, tuple[int, ...]]:
        return {}


@dataclass(frozen=True)
class Bottleneck(Adapter):
    """Bottleneck after a layer (Houlsby et al. 2019, arXiv:1902.00751, sec. 2.1): h + up(gelu(down(h))).

    Outputs of a convolution are mixed in every place. `up` is zero in the beginning, so that the network starts as it
    is; the paper draws it near zero.
    """

    kind = "adapter"

    rank: int

    def shapes(self, layer: Any) -> dict[str, tuple[int, ...]]:
        outputs = layer.weight.shape[0]
        return {
            "adapter_down": (self.rank, outputs),
            "adapter_down_bias": (self.rank,),
            "adapter_up": (outputs, self.rank),
            "adapter_up_bias": (outputs,),
        }

    def initial(self, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
        return _uniform_fan_in(shape, rng) if name == "adapter_down" else np.zeros(shape)

    def __call__(self, layer: Any, inputs: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
        hidden = _mixed(layer, layer.adapter_down, outputs) + _by_channel(layer, layer.adapter_down_bias)
        change = _mixed(layer, layer.adapter_up, functional.gelu(hidden)) + _by_channel(layer, layer.adapter_up_bias)
        return outputs + change

    def merge(self, layer: Any) -> None:
        raise UserError("adapters: a bottleneck is no linear function of its layer's outputs, so it cannot be merged")


def insert(net: nn.Module, settings: AdapterSettings, name: str, called: frozenset[str] | None = None) -> nn.Module:
    """Put adapters into the layers of a network on the meta device, in place.

    Args:
        net, name: the network, and the name of its model for messages.
        settings: kind of the adapters, and which layers get one.
        called: names of the layers that training calls; None for a model of the package, which calls all of them.

    Raises:
        UserError: a name of `layers` or `train` means no layer, or a layer that cannot have such an adapter, or one
            that is never called, on whose outputs an adapter has no effect.
    """
    adapter = _adapter(settings)
    paths = _chosen(net, adapter, settings, name)
    if called is not None and (never := [p for p in paths if p not in called and adapter.shapes(net.get_submodule(p))]):
        raise UserError(
            f"adapters: model {name!r} never calls {_short(never)}: it reads their weights itself, or does not use "
            "them, and an adapter would do nothing. Name others by `layers`"
        )
    for path in paths:
        layer: Any = net.get_submodule(path)
        shapes = adapter.shapes(layer)
        for tensor, shape in shapes.items():
            layer.register_parameter(tensor, nn.Parameter(torch.empty(shape, device="meta")))
        if shapes:
            layer.register_forward_hook(adapter)
        if isinstance(adapter, Lora):
            layer.lora_scale = adapter.scale  # for methods that compute products themselves
            layer.lora_detached = 0
            layer.draws_in_training = adapter.dropout > 0
    return net


def adapted(net: nn.Module) -> Iterator[tuple[str, Any, Adapter]]:
    """Name, layer and adapter of each layer that has one."""
    for path, layer in net.named_modules():
        for hook in layer._forward_hooks.values():
            if isinstance(hook, Adapter):
                yield path, layer, hook


def tensors_of_adapters(net: nn.Module) -> set[str]:
    """Names of all tensors that `insert` added to a network."""
    return {f"{path}.{tensor}" for path, layer, adapter in adapted(net) for tensor in adapter.shapes(layer)}


def initial(net: nn.Module, generator_of: Callable[[str], np.random.Generator]) -> dict[str, Floats]:
    """Initial values of the adapters' tensors, by name; a layer draws the same whichever others have one."""
    values = {}
    for path, layer, adapter in adapted(net):
        rng = generator_of(path)
        for tensor, shape in adapter.shapes(layer).items():
            values[f"{path}.{tensor}"] = adapter.initial(tensor, shape, rng)
    return values


def frozen(net: nn.Module, settings: AdapterSettings, name: str) -> tuple[str, ...]:
    """Names of the tensors of a network with adapters that stay as they are.

    Running statistics do so with their layer; those of a layer that is trained in part, as its bias, move.
    """
    trained = tensors_of_adapters(net)
    if settings.name == BiasOnly.kind:
        trained |= {f"{path}.bias" for path in _chosen(net, BiasOnly(), settings, name)}
    trained |= {path for path, _ in net.named_parameters() if _under(path, settings.train)}
    moving = {path.rpartition(".")[0] for path in trained}
    buffers = [path for path, _ in statistics(net) if path.rpartition(".")[0] not in moving]
    return (*(path for path, _ in net.named_parameters() if path not in trained), *buffers)


def merged(network: nn.Module) -> nn.Module:
    """Copy a network with the effect of its adapters in its own weights, and without adapters.

    Args:
        network: a network with values, such as `cell.model()` or its part `network`.

    Raises:
        UserError: an adapter is no linear function of its layer's outputs, or a method composed the network of several.
    """
    if any(isinstance(layer, Composed) for layer in network.modules()):
        raise UserError("adapters: the method composed this model of several networks, so it cannot be merged into one")
    plain = copy.deepcopy(network)
    with torch.no_grad():
        for _, layer, adapter in list(adapted(plain)):
            adapter.merge(layer)
            for tensor in adapter.shapes(layer):
                delattr(layer, tensor)
            for key in [key for key, hook in layer._forward_hooks.items() if hook is adapter]:
                del layer._forward_hooks[key]
    return plain


def _adapter(settings: AdapterSettings) -> Adapter:
    match settings:
        case LoraSettings():
            return Lora(settings.rank, settings.alpha / settings.rank, settings.dropout)
        case BottleneckSettings():
            return Bottleneck(settings.rank)
        case PlainAdapters():
            return Ia3() if settings.name == "ia3" else BiasOnly()


def _chosen(net: nn.Module, adapter: Adapter, settings: AdapterSettings, name: str) -> list[str]:
    """Names of the layers that get an adapter, in their order."""
    layers = {path: layer for path, layer in net.named_modules() if path and layer._parameters}
    for prefix in settings.train:
        if not any(_under(path, (prefix,)) for path, _ in net.named_parameters()):
            raise UserError(f"adapters.train: model {name!r} has no layer {prefix!r}; there are {_short(layers)}")
    obstacles = {path: adapter.obstacle(net, path, layer) for path, layer in layers.items()}
    obstacles |= {p: "is trained whole, as `train` says" for p in layers if _under(p, settings.train)}
    able = [path for path in layers if not obstacles[path]]
    if not able:
        raise UserError(f"adapters: model {name!r} has no layer that {adapter.kind} fits, beside those of `train`")
    chosen: set[str] = set()
    for entry in settings.layers:
        exact = [path for path in layers if entry in (path, path.rpartition(".")[2])]
        blocked = next((f" ({path!r} {obstacles[path]})" for path in exact if obstacles[path]), "")
        meant = [path for path in able if path in exact or _under(path, (entry,))]
        if blocked or not meant:
            raise UserError(
                f"adapters.layers: model {name!r} has no layer {entry!r} that {adapter.kind} fits{blocked}; "
                f"there are {_short(able)}"
            )
        chosen.update(meant)
    return [path for path in able if not settings.layers or path in chosen]


def _under(path: str, prefixes: tuple[str, ...]) -> bool:
    return any(path == prefix or path.startswith(prefix + ".") for prefix in prefixes)


def _short(paths: Any) -> str:
    """Last parts of names, each once; names of numbered layers of a sequence with the name of the sequence."""
    parts = [path.split(".") for path in paths]
    return ", ".join(dict.fromkeys(".".join(p[-2:] if p[-1].isdigit() else p[-1:]) for p in parts))


def _mixed(layer: nn.Module, matrix: Tensor, x: Tensor) -> Tensor:
    """Multiply the channels of a layer's outputs by a matrix `[outputs, inputs]`, in every place."""
    if isinstance(layer, nn.Linear):
        return functional.linear(x, matrix)
    return (matrix @ x.flatten(2)).view(len(x), len(matrix), *x.shape[2:])


def _by_channel(layer: nn.Module, values: Tensor) -> Tensor:
    """Reshape `[outputs]` to go with a layer's outputs."""
    return values if isinstance(layer, nn.Linear) else values.view(-1, *[1] * (len(layer.kernel_size)))  # type: ignore[arg-type]


def _uniform_fan_in(shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Draw from U(-1/√fan_in, 1/√fan_in): Kaiming's with a slope of √5, as in the code of LoRA's authors."""
    bound = 1 / math.sqrt(math.prod(shape[1:]))
    return rng.uniform(-bound, bound, shape)
