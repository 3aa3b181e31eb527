"""The GPU memory that the dry run predicts, compared with the tensors on a simulated device that counts them.

    python -m tests.runs.device_memory

prints the table of docs/performance-log.md.
"""

from unittest.mock import patch

import numpy as np
import torch

from bench.data import Dataset, Partition
from bench.federation.federation import Federation
from bench.runs.forecast.estimate import CellWork, keep_on_host, memory
from bench.runs.forecast.networks import network_size
from bench.runs.forecast.outline import ClientShares, DataSize
from bench.settings import Settings
from tests.engine.second_device import NAME, SecondDevice

SHAPE, OWN, CLASSES = (1, 28, 28), 10, 10
CELLS = [("fedavg", "cnn", 70), ("ditto", "cnn", 70), ("scd", "cnn", 70), ("local", "mlp", 100)]


def device_memory(method: str, model: str, clients: int, on_host: bool) -> tuple[float, int]:
    """Predicted and measured bytes, for models that stay on the device or on the host."""
    x = np.zeros((clients * OWN, *SHAPE), np.uint8)
    data = Dataset("zeros", x, np.arange(len(x)) % CLASSES, len(x), CLASSES, (0.5,), (0.2,), "")
    train = tuple(np.arange(i * OWN, (i + 1) * OWN) for i in range(clients))
    none = tuple(np.zeros(0, np.int64) for _ in range(clients))
    settings = Settings(method=method, model=model, clients=clients, steps=1, batch_size=OWN)
    size = DataSize(SHAPE, CLASSES, len(x), 0)
    shares, network = ClientShares(clients, OWN, 0, 0, 0), network_size(settings, model, SHAPE, CLASSES)
    work = CellWork(settings, size, shares, clients, clients, 1, (network,))
    with patch("torch.cuda.mem_get_info", return_value=(0, 0 if on_host else 10**12)):
        assert keep_on_host(settings, settings.clients, SHAPE, CLASSES, "cuda") == on_host
        _, predicted = memory(work, "cuda", 1)
    with SecondDevice() as device:
        federation = Federation(
            settings,
            dataset=data,
            partition=Partition(train, none, none, none[0]),
            public=None,
            device=NAME,
            offload=on_host,
        )
        for _ in range(2):
            federation.advance()
    return predicted, device.peak


def main() -> None:
    """Print a line per cell."""
    torch.set_num_threads(1)
    for on_host in (False, True):
        for cell in CELLS:
            predicted, measured = device_memory(*cell, on_host)
            more = f"{predicted / measured - 1:+.0%}"
            where = "host" if on_host else "device"
            print(
                *cell, f"on the {where}: {predicted / 1e6:.0f} MB, measured {measured / 1e6:.0f} MB, {more}", flush=True
            )


if __name__ == "__main__":
    main()
