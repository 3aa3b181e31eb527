"""Seconds of a step on features and of one through a frozen ResNet-18: `python docs/examples/frozen_body.py`."""

import time

import torch

from bench.federation import cell as cells
from bench.federation.federation import Federation
from bench.speed.workloads import WORKLOADS


def milliseconds(before: int, rounds: int) -> tuple[float, float]:
    """Processor time of a client's step, after some rounds in which steps are recorded; and seconds until the first."""
    workload = WORKLOADS["resnet18_head"]
    data = workload.dataset()
    start = time.process_time()
    federation = Federation(workload.settings, dataset=data, partition=workload.partition(data), public=None)
    begun = time.process_time() - start
    for _ in range(before):
        federation.advance()
    steps, start = federation.engine.steps, time.process_time()
    for _ in range(rounds):
        federation.advance()
    return 1e3 * (time.process_time() - start) / (federation.engine.steps - steps), begun


def main() -> None:
    """Print both."""
    torch.set_num_threads(1)
    on, begun = milliseconds(60, 40)
    print(f"on features: {on:.2f} ms a step, {begun:.0f} s before the first")
    cells.can_take_their_place = lambda settings, net: False
    print(f"through the body: {milliseconds(2, 3)[0]:.1f} ms a step")


if __name__ == "__main__":
    main()
