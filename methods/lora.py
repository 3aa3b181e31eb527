"""LoRA's matrices in a model value: A and B of each layer, their product, and messages of smaller rank."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bench.method import Params


def layers_of(w: Params) -> list[str]:
    """Names of the layers that have LoRA's matrices."""
    return [name.removesuffix(".lora_a") for name in w.spec.named("lora_a")]


def product(w: Params, layer: str) -> Tensor:
    """The product B A of a layer, in the shape of the layer's weight and without the factor alpha / rank."""
    tensors, module = w.tensors(), w.spec.module.get_submodule(layer)
    matrix = tensors[f"{layer}.lora_b"] @ tensors[f"{layer}.lora_a"].flatten(1)
    return matrix.view(module.get_parameter("weight").shape)


def scale(w: Params, layer: str) -> float:
    """The factor alpha / rank of a layer's product."""
    module: Any = w.spec.module.get_submodule(layer)
    return float(module.lora_scale)


def replaced(w: Params, tensors: Mapping[str, Tensor]) -> Params:
    """The model value `w` with other values of some tensors."""
    old = w.tensors()
    pieces = [tensors.get(e.name, old[e.name]).reshape(-1) for e in w.spec.params]
    return w.with_weights(torch.cat([w.weights[:0], *pieces]))


def rank_of(w: Params) -> int:
    """The cell's rank, by the rows of a matrix A."""
    return len(w.tensors()[w.spec.named("lora_a")[0]])


def cut(w: Params, rank: int) -> dict[str, Any]:
    """A message: the first rows of A and the first columns of B of each layer, and the rest of the model."""
    tensors = w.tensors()
    a = [tensors[f"{layer}.lora_a"][:rank] for layer in layers_of(w)]
    b = [tensors[f"{layer}.lora_b"][:, :rank] for layer in layers_of(w)]
    return {"a": a, "b": b, "rest": w.without(*w.spec.named("lora_a", "lora_b"))}


def padded(message: Mapping[str, Any]) -> Params:
    """The model of a message from `cut`, A and B filled up with zeros."""
    rest: Params = message["rest"]
    whole = rest.spec.whole or rest.spec
    tensors, shapes = rest.tensors(), {e.name: e.shape for e in whole.params}
    for layer, a, b in zip(layers_of(rest), message["a"], message["b"], strict=True):
        missing = shapes[f"{layer}.lora_a"][0] - len(a)
        tensors[f"{layer}.lora_a"] = torch.cat([a, a.new_zeros(missing, *a.shape[1:])])
        tensors[f"{layer}.lora_b"] = torch.cat([b, b.new_zeros(len(b), missing)], 1)
    return Params(torch.cat([tensors[e.name].reshape(-1) for e in whole.params]), rest.buffers, whole)
