"""Features of a cell's samples, computed once, where all that comes before the head is frozen.

The cell then trains on features: they are its samples, and the head is its network, so a step costs what a head costs.
"""

import ast
import copy
import hashlib
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bench.config.digests import sources
from bench.data import Array, Dataset, TokenShape
from bench.engine.device import cpu_kernels
from bench.engine.device_data import Pool, home_of
from bench.engine.predict import outputs
from bench.federation.setup import frozen_tensors
from bench.model_call import Arithmetic
from bench.models.network import Network
from bench.params import Entry, Params, Spec
from bench.plugin import METHODS
from bench.settings import Settings

_LIBRARIES = {"bench", "methods", "torch", "numpy", "scipy", "pydantic"} | sys.stdlib_module_names
_RUNS = {"model", "model.features"}
_UNSEEN = {"getattr", "vars", "asdict", "replace"}  # of a batch, they may read its inputs under no name

Shelf = Callable[[str, tuple[int, int], Callable[[], Array]], Array]
"""Gives the features of a key, `[n, width]` of this shape: kept from before, or computed by the function."""


def computed(key: str, shape: tuple[int, int], compute: Callable[[], Array]) -> Array:
    """Compute features anew: the shelf that keeps nothing."""
    return compute()


class Head(nn.Module):
    """The head of a network as a network of its own: its inputs are features."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.head = net.head
        # What the trial of the whole found is not seen in a part of it.
        self.draws_in_training = getattr(net, "draws_in_training", False)
        self.moves_statistics = getattr(net, "moves_statistics", False)

    def features(self, x: Tensor) -> Tensor:
        """The inputs themselves, `[batch, width]`."""
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[batch, classes]`."""
        out: Tensor = self.head(x)
        return out


def can_take_their_place(settings: Settings, net: nn.Module) -> bool:
    """Whether features can take the samples' place: neither these nor what comes before the head ever change."""
    if settings.augment != "none" or {*settings.architectures} - {settings.model}:
        return False
    frozen = frozen_tensors(settings, settings.model, net)
    names = [name for name, _ in itertools.chain(net.named_parameters(), net.named_buffers())]
    body = [name for name in names if not Entry(name, ()).under(("head",))]
    if not body or not all(name in frozen for name in body):
        return False
    if any(isinstance(layer, _BatchNorm) and layer.running_mean is None for layer in net.modules()):
        return False  # a sample's features depend on the others of its batch
    if getattr(net, "draws_in_training", False) and not isinstance(net, Network):
        return False  # what lies between body and head may draw
    return reads_inputs_by_models_only(settings.method)


def head_spec(whole: Spec) -> Spec:
    """The spec of the head of a network whose body is frozen, for features as inputs."""
    held = whole.held.on(torch.device("cpu"))
    frozen = {e.name: held[e.name] for e in whole.frozen if e.under(("head",))}
    return Spec.of(f"head on features of {whole.arch}", Head(whole.module), frozen)


def with_features(
    pool: Pool, w: Params, data: Dataset, arithmetic: Arithmetic, threads: int = 1, shelf: Shelf = computed
) -> Pool:
    """A pool with the features of its samples in their place.

    Args:
        pool, data: the samples on the device, and as they were read.
        w: the cell's model, whose body is frozen.
        arithmetic: that of the cell's evaluation.
        threads: parts of the samples at a time; they change no byte.
        shelf: where features are kept.
    """

    def compute() -> Array:
        everything = np.arange(len(data.y))
        rows: Array = outputs(pool, [(w, everything)], arithmetic, output="features", threads=threads)[0].cpu().numpy()
        return rows

    shape = len(data.y), width(w.spec.module, data.shape)
    x = torch.from_numpy(shelf(_key(pool, w, data, arithmetic), shape, compute))
    return replace(pool, x=x.to(home_of(x.nbytes, pool.y.device)), normalisation=None)


def width(module: nn.Module, shape: tuple[int, ...]) -> int:
    """Count the numbers in a network's features of a sample of this shape, on the meta device."""
    net: Any = copy.deepcopy(module).to("meta").eval()
    with torch.device("meta"):
        x = torch.zeros(1, shape[0], dtype=torch.int64) if isinstance(shape, TokenShape) else torch.zeros(1, *shape)
    return int(net.features(x).shape[1])


def _key(pool: Pool, w: Params, data: Dataset, arithmetic: Arithmetic) -> str:
    """Digest of all that features depend on: the samples, the body, and what computes them."""
    samples = data.x.shape, data.x.dtype, data.mean, data.std
    how = w.spec.arch, pool.dtype, arithmetic, pool.y.device.type, cpu_kernels(), torch.__version__
    total = hashlib.blake2b(repr((samples, how)).encode(), digest_size=16)
    for start in range(0, len(data.x), 1000):
        total.update(data.x[start : start + 1000].tobytes())
    return total.hexdigest()


def reads_inputs_by_models_only(method: str) -> bool:
    """Whether a method's code hands samples to its models and does nothing else with them.

    Every `batch.x` must be an argument of `model(...)` or `model.features(...)`, and so must the inputs of a function
    that `compose` gets. Whoever makes networks of its own, imports other packages than those that are known here, or
    has no source file may do something else: the answer is no.
    """
    kind = METHODS.get(method)
    try:
        file = Path(inspect.getsourcefile(kind) or "")
    except TypeError:
        return False
    return file.is_file() and _by_models_only(kind.__module__, file)


def _by_models_only(module: str, file: Path) -> bool:
    files = sources(module, file)
    trees = [ast.parse(source.read_bytes()) for source in files.values()]
    known = _LIBRARIES | {name.partition(".")[0] for name in files}
    if any(name.partition(".")[0] not in known for tree in trees for name in _imported(tree)):
        return False
    nodes = [node for tree in trees for node in ast.walk(tree)]
    calls = [(ast.unparse(node.func), node.args) for node in nodes if isinstance(node, ast.Call)]
    typed = {a.arg for a in nodes if isinstance(a, ast.arg) and a.annotation and ast.unparse(a.annotation) == "Batch"}
    renames = any(isinstance(node, ast.alias) and node.name == "compose" and node.asname for node in nodes)
    builds = any(name.endswith(".build") for name, _ in calls)
    looks = any(name in _UNSEEN and args and ast.unparse(args[0]) in typed | {"batch"} for name, args in calls)
    if renames or builds or looks:
        return False
    functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
    inputs: list[ast.expr] = [node for node in nodes if isinstance(node, ast.Attribute) and node.attr == "x"]
    for args in (args for name, args in calls if name.rpartition(".")[2] == "compose"):
        definition = functions.get(ast.unparse(args[0])) if args else None
        if definition is None or len(definition.args.args) != 3:
            return False
        third = definition.args.args[2].arg
        inputs += [node for node in ast.walk(definition) if isinstance(node, ast.Name) and node.id == third]
    given = {id(argument) for name, args in calls if name in _RUNS for argument in args}
    return all(id(node) in given for node in inputs)


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "bench"  # a relative import is of the method's own package
