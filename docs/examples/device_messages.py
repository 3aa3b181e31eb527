"""How long weights take from one device of a cell to another: `python docs/examples/device_messages.py` (needs Ray)."""

import time
from typing import Any

import ray
import torch

from bench.cluster.wire import FlatTensor, _tensor, flat

RESNET18 = 11_173_962
REPEATS = 4


@ray.remote
class Far:
    """The other end."""

    def take(self, references: list[Any]) -> None:
        """Weights that go out."""
        self.found = [_tensor(one) for one in ray.get(references)]

    def give(self) -> list[FlatTensor]:
        """Weights that come back."""
        return [flat(one) for one in self.found]


def main() -> None:
    """Print the seconds of each way."""
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=600 * 2**20, log_to_driver=False)
    far, weights = Far.remote(), torch.randn(RESNET18)
    for attempt in range(1 + REPEATS):
        start = time.perf_counter()
        ray.get(far.take.remote([ray.put(flat(weights))]))
        middle = time.perf_counter()
        [_tensor(one) for one in ray.get(far.give.remote())]
        if attempt:  # the first one starts the process
            out, back = middle - start, time.perf_counter() - middle
            print(f"{weights.nbytes / 1e6:.1f} MB: {out:.3f} s out, {back:.3f} s back")


if __name__ == "__main__":
    main()
