"""How much memory does a cell take, and what does the dry run say beforehand?

    python docs/examples/memory_cost.py MNIST.NPZ METHOD MODEL CLIENTS THREADS

Prints one line; docs/performance-log.md shows some. Measured is by how much the process exceeds what it had before it
loaded any data, at its peak so far after each of eight rounds of one step. Before that a cell of four clients has run,
so that Python has loaded what training needs. Linux only.
"""

import gc
import multiprocessing
import sys
from pathlib import Path

import torch

from bench.federation.federation import Federation
from bench.runs.forecast.estimate import estimate
from bench.settings import Settings

ROUNDS = 8


def federation(settings: Settings, threads: int) -> Federation:
    """A cell's, on a CPU."""
    return Federation.of(settings, threads=threads)


def peak_bytes() -> int:
    """The most memory that this process has had since its peak was last forgotten."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def predict(settings: Settings, threads: int, into: "multiprocessing.SimpleQueue[int]") -> None:
    """What the dry run says, from a process of its own."""
    found = estimate(settings, Path("data"), "cpu", threads)
    into.put(found.memory if found else 0)


def main(path: str, method: str, model: str, clients: int, threads: int) -> None:
    """Print prediction and measurement in MB."""
    torch.set_num_threads(1)
    settings = Settings(
        method=method, dataset="npz", dataset_options={"path": path}, partition="iid", clients=clients, model=model,
        steps=1, rounds=ROUNDS,
    )  # fmt: skip
    context = multiprocessing.get_context("spawn")
    answer = context.SimpleQueue()
    process = context.Process(target=predict, args=(settings, threads, answer))
    process.start()
    predicted = answer.get()
    process.join()
    small = federation(settings.model_copy(update={"clients": 4}), threads)
    for _ in range(130):  # more than it takes to record a step
        small.advance()
    del small
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget the peak
    before = peak_bytes()
    cell, measured = federation(settings, threads), []
    for _ in range(ROUNDS):
        cell.advance()
        measured.append((peak_bytes() - before) / 1e6)
    rounds = ", ".join(f"{value:.0f}" for value in measured)
    who = f"{method}, {model}, {clients} clients, {threads} at a time"
    print(f"{who}: dry run {predicted / 1e6:.0f} MB, measured {rounds} MB")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
