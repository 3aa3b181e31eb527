"""What a round moves on a GPU around its steps: models into lanes and back, batches, and the mean of the models.

    python -m tests.runs.device_traffic

A round of FedAvg with momentum over 100 clients with 10,000 pictures of 32 x 32 runs on the simulated device.
Operations on tensors as long as the weights are counted as if those were a ResNet-18's 11,173,962. A number that an
operation reads and writes counts twice. Printed are operations and megabytes for each step of a client.
"""

from collections import Counter
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from bench.data import Dataset
from bench.engine.backends import backends
from bench.engine.backends.loops import CohortLoop
from bench.federation.federation import Federation
from bench.samples.division import make_partition
from bench.settings import Settings
from tests.engine import problems  # noqa: F401  # registers the model
from tests.engine.second_device import NAME, SecondDevice

RESNET18 = 11_173_962
CLASSES, SAMPLES, TESTS = 10, 10_000, 500


class Traffic(TorchDispatchMode):
    """Counts operations and the bytes that they read and write, by name, but not those within a step.

    Args:
        d: length of the weights that stand for a ResNet-18's.
    """

    def __init__(self, d: int) -> None:
        super().__init__()
        self._scale = RESNET18 / d
        self._d = d
        self.in_step = False
        self.operations, self.bytes = Counter[str](), Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation."""
        out = func(*args, **(kwargs or {}))
        shows = any(result.alias_info and not result.alias_info.is_write for result in func._schema.returns)
        name = func._schema.name.removeprefix("aten::")
        if not (self.in_step or shows or name.startswith("empty")):
            given, results = ([t for t in pytree.tree_leaves(v) if isinstance(t, Tensor)] for v in (args, out))
            if name in ("index_select", "index"):  # they read what they write, of a larger tensor
                given = results
            if name == "zeros_like":
                given = []
            if name == "copy_":
                given = given[1:]
            as_weights = any(t.dim() and t.shape[-1] == self._d for t in (*given, *results))
            self.operations[name] += 1
            self.bytes[name] += sum(map(_read, (*given, *results))) * (self._scale if as_weights else 1)
        return out


def _read(tensor: Tensor) -> int:
    """Bytes of a tensor; a dimension that repeats numbers is read once."""
    numbers = tensor.element_size()
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        numbers *= size if stride else 1
    return numbers


def main() -> None:
    """Run a round and print a table."""
    labels = np.arange(SAMPLES + TESTS) % CLASSES
    pictures = np.random.default_rng(0).integers(0, 255, (SAMPLES + TESTS, 3, 32, 32)).astype(np.uint8)
    data = Dataset("noise", pictures, labels, SAMPLES, CLASSES, (0.5,) * 3, (0.2,) * 3, "")
    how: Any = {"clients": 100, "alpha": 1.0, "seed": 0, "protocol": "paper", "validation_share": 0.0, "options": {}}
    partition = make_partition(data, "dirichlet", **how)
    chosen: Any = {"model": "test_norm", "clients": 100, "momentum": 0.5, "batch_size": 10, "augment": "crop_flip"}
    calls, run = 0, CohortLoop.forward

    def counted(loop: CohortLoop, load: Any, *rest: Any) -> list[Tensor]:
        nonlocal calls
        calls += len(load)
        step = loop.step

        def paused(tensors: list[Tensor]) -> list[Tensor]:
            traffic.in_step = True
            try:
                return step(tensors)
            finally:
                traffic.in_step = False

        with mock.patch.dict(loop.__dict__, step=paused, owned=[True] * len(rest[3])):  # as of a recorded step
            return run(loop, load, *rest)

    with (
        SecondDevice(),
        mock.patch.object(CohortLoop, "forward", counted),
        mock.patch.object(backends, "_RECORD_AFTER", float("inf")),
    ):
        settings = Settings(method="fedavg", **chosen)
        how = {"dataset": data, "partition": partition, "public": None, "device": NAME, "executor": "cohort"}
        federation = Federation(settings, **how)
        traffic = Traffic(federation.server.initial_model().weights.numel())
        with traffic:
            federation.advance()
    steps = federation.engine.steps
    print(f"{steps} steps of clients in {calls} calls")
    print("| operation | calls | MB a step of a client |\n|---|---:|---:|")
    for name, size in traffic.bytes.most_common(12):
        print(f"| {name} | {traffic.operations[name]} | {size / steps / 1e6:.1f} |")
    print(f"| all | {traffic.operations.total()} | {traffic.bytes.total() / steps / 1e6:.1f} |")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
