"""Small real problems for tests of the engine and of methods: digits, unequal clients, tiny models."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bench.data import Dataset, Partition
from bench.engine.batches import DrawAddress
from bench.engine.programs import ProgramRun
from bench.federation.federation import Evaluation, Federation
from bench.method import Program
from bench.params import Params, Spec
from bench.plugin import METHODS, MODELS
from bench.settings import Settings

METHOD_NAMES = [name for name in METHODS.names() if METHODS.get(name).__module__.startswith("methods.")]
"""Only the project's own methods: test files register others, and which files are imported depends on what is run."""
ONE_OF_A_KIND = {"fedavg", "fedper", "scd", "fedbuff", "comet", "fedgen", "pgfedmo", "spfl"}
"""One method for each kind of state and of server; they stand for all where a promise does not depend on the method."""
EVERY_METHOD = [pytest.param(name, marks=[] if name in ONE_OF_A_KIND else [pytest.mark.long]) for name in METHOD_NAMES]
"""All methods in `make test-all`; in `make test` one for each kind."""

BOTH_MODELS = [pytest.param("test_linear", marks=pytest.mark.long), "test_norm"]
"""Models for identities between methods: the one with running statistics has more that can differ, and is quick."""

QUICK: dict[str, dict[str, Any]] = {  # where defaults take long on toy data, or need more than `test_linear` has
    "ccvr": {"calibration_steps": 5},
    "fedap": {"warmup": 1},  # toy runs would not see the end of its warm-up
    "feddf": {"distil_steps": 20},
    "fedgen": {"generator_steps": 3},
    "fedl2g": {"quiz": 0.3, "warmup": 1, "server_lr": 1.0},
    "fedmd": {"pretrain_epochs": 2},
    "fedproto": {"predict": "head"},  # prototypes need a head with a bias
    "fedrep": {"head_epochs": 2},
    "fedtgp": {"predict": "head", "server_steps": 5},
    "flute": {"head_epochs": 2},
    "metafed": {"pretrain_epochs": 1},
    "perada": {"distil_steps": 5},
}


def needed(method: str) -> dict[str, Any]:
    """Settings without which a method is refused."""
    kind = METHODS.get(method).adapter
    return {"adapters": {"name": kind, "rank": 2, "alpha": 2}} if kind else {}


OF_ANY_MODEL = [parameter for parameter in EVERY_METHOD if not needed(str(parameter.values[0]))]
"""As `EVERY_METHOD`, without those that need adapters, which cannot stand beside `frozen`."""


class _Normed(nn.Module):
    """Two linear layers with BatchNorm between them."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.inner = nn.Linear(inputs, 6)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, classes)

    def features(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.inner(x.flatten(1))))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x))
        return out


@MODELS.register("test_norm")
def normed(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A model with running statistics."""
    return _Normed(int(np.prod(shape)), classes)


class _Linear(nn.Module):
    """Two linear layers without an activation between them, so that formulas in numpy stay short."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.inner = nn.Linear(inputs, 3, bias=False)
        self.head = nn.Linear(3, classes, bias=False)

    def features(self, x: Tensor) -> Tensor:
        return self.inner(x.flatten(1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x))
        return out


@MODELS.register("test_linear")
def linear(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The two-layer linear model of the reference tests."""
    return _Linear(int(np.prod(shape)), classes)


def numbered_model() -> Params:
    """The model with running statistics, each of its numbers another one."""
    with torch.device("meta"):
        module = normed((4,), 3)
    for layer in module.modules():
        if isinstance(layer, torch.nn.BatchNorm1d):
            layer.register_buffer("num_batches_tracked", None)
    spec = Spec.of("norm", module)
    return Params(torch.arange(float(spec.d)), -torch.arange(float(spec.b)), spec)


def toy_data(samples: int = 60, features: int = 4, classes: int = 3, seed: int = 0) -> Dataset:
    """Separable points with noise, float32; the last third is the test part."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, samples)
    x = (rng.normal(size=(classes, features))[y] + 0.5 * rng.normal(size=(samples, features))).astype(np.float32)
    return Dataset("toy", x, y, samples * 2 // 3, classes, (0.0,) * features, (1.0,) * features, "toy")


def toy_partition(data: Dataset, sizes: list[int], validation: int = 0) -> Partition:
    """Consecutive training samples in parts of the given sizes; every client with samples has its own part of the
    test samples."""
    cuts = np.cumsum([0, *sizes])
    assert cuts[-1] <= data.n_train
    train = tuple(np.arange(a, b) for a, b in itertools.pairwise(cuts))
    tests = np.array_split(np.arange(data.n_train, len(data.y)), len(sizes))
    held = tuple(t[:validation] if len(t) > validation else t[:0] for t in train)
    kept = tuple(t[len(h) :] for t, h in zip(train, held, strict=True))
    return Partition(kept, held, tuple(tests), np.arange(data.n_train, len(data.y)))


def toy(method: str, *, sizes: list[int] | None = None, executor: Any = "cohort", **settings: Any) -> Federation:
    """A federation on toy data, by default in float64 with unequal clients (one has a single sample, one has none)."""
    sizes = sizes if sizes is not None else [13, 7, 1, 0, 9, 5]
    data = settings.pop("data", None) or toy_data()
    public = settings.pop("public", None) or toy_data(seed=9)
    hp = {**QUICK.get(method, {}), **settings.pop("hp", {})}
    passed = ("device", "offload", "recordings", "features", "threads")
    options = {name: settings.pop(name) for name in passed if name in settings}
    chosen: dict[str, Any] = {
        "model": "test_linear", "dtype": "float64", "lr": 0.1, "momentum": 0.5, "batch_size": 4, "epochs": 2,
        "clients": len(sizes), "seed": 3, **needed(method),
    }  # fmt: skip
    return Federation(
        Settings(method=method, hp=hp, **{**chosen, **settings}),
        dataset=data,
        partition=toy_partition(data, sizes),
        executor=executor,
        public=public,
        **options,
    )


def asked(
    program: Callable[[Params], Program], *, owners: Iterable[int] = (0, 1, 2, 4, 5), **settings: Any
) -> tuple[dict[int, ProgramRun], Federation, Params]:
    """Have each owner run a program on the initial model; returns the ended programs and the model."""
    federation = toy("fedavg", **settings)
    w = federation.server.initial_model()
    running = {i: ProgramRun(i, program(w), DrawAddress(0, 0, i)) for i in owners}
    federation.engine.run(list(running.values()))
    return running, federation, w


def remarks(federation: Federation) -> list[str]:
    """The warnings of a federation, except those of a backend that failed."""
    return [warning for warning in federation.warnings if not warning.startswith("the backend ")]


def run(federation: Federation, versions: int) -> Evaluation:
    """Run some rounds and evaluate after the last one."""
    for _ in range(versions):
        federation.advance()
    return federation.evaluate()


def generic(federation: Federation) -> Tensor:
    """The weights of the generic model."""
    evaluator, version = federation.evaluator, federation.version
    found = evaluator.generic(version, evaluator.personal(version) if federation.method.trains != "gm" else {})
    assert found is not None
    return found.weights


def personal(federation: Federation) -> dict[int, Tensor]:
    """The weights of the personalized models."""
    return {i: w.weights for i, w in federation.evaluator.personal(federation.version).items()}


def everything(federation: Federation) -> dict[str, Tensor]:
    """All state as named tensors."""
    return federation.state()[0]


def assert_same_personal(a: Federation, b: Federation) -> None:
    """Check that the clients' states have the same bytes under `personal`, including running statistics."""
    for i in a.clients.ids:
        one, other = (federation.clients[i].state["personal"] for federation in (a, b))
        assert one.weights.numpy().tobytes() == other.weights.numpy().tobytes()
        assert one.buffers.numpy().tobytes() == other.buffers.numpy().tobytes()


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-9) -> None:
    """Check that names and numbers are equal, on any device, up to a relative and absolute tolerance (0: the same
    bytes)."""
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor.cpu(), expected[name].cpu(), rtol=tolerance, atol=tolerance)
