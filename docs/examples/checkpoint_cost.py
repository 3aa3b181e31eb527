"""What does a checkpoint of 100 ResNet-18 clients cost, and what does the dry run say beforehand?

    python docs/examples/checkpoint_cost.py SCRATCH_FOLDER

Needs 16 GB of memory and 15 GB of disk. The clients train one step each (method `local`), so that every one of them has
weights of its own; docs/run-store.md shows what came out.
"""

import sys
import time
from pathlib import Path

import numpy as np
import torch

from bench.data import Dataset, Partition
from bench.federation.federation import Federation
from bench.runs.forecast.estimate import estimate
from bench.settings import Settings
from bench.store.checkpoint import Checkpoint, Writer

CLIENTS = 100


def main(scratch: Path) -> None:
    """Print the estimate and the measurement."""
    torch.set_num_threads(1)
    settings = Settings(
        method="local", dataset="cifar10", model="resnet18", clients=CLIENTS, alpha=1.0, steps=1, batch_size=2
    )
    expected = estimate(settings, scratch, "cpu")
    assert expected is not None
    print(f"dry run:  {expected.checkpoint / 1e9:.2f} GB")
    federation = trained(settings)
    tensors, plain = federation.state()
    writer = Writer(scratch / "checkpoint")
    for what in ("first", "nothing changed"):
        start = time.perf_counter()
        writer.start(Checkpoint(federation.version, tensors, {"federation": plain}))
        waited = time.perf_counter() - start
        writer.wait()
        seconds = time.perf_counter() - start
        size = sum(file.stat().st_size for file in (scratch / "checkpoint").glob("*/*.pt"))
        print(f"measured, {what}: {size / 1e9:.2f} GB in {seconds:.1f} s, of which training waits {waited:.3f} s")


def trained(settings: Settings) -> Federation:
    """A federation whose clients have all taken one step."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (2 * CLIENTS + 2, 3, 32, 32), np.uint8)
    y = rng.integers(0, 10, len(x))
    data = Dataset("noise", x, y, 2 * CLIENTS, 10, (0.5,) * 3, (0.25,) * 3, "")
    none = tuple(np.zeros(0, np.int64) for _ in range(CLIENTS))
    train = tuple(np.arange(2 * i, 2 * i + 2) for i in range(CLIENTS))
    federation = Federation(
        settings, dataset=data, partition=Partition(train, none, none, np.arange(2 * CLIENTS, len(x))), public=None
    )
    federation.advance()
    return federation


if __name__ == "__main__":
    main(Path(sys.argv[1]))
