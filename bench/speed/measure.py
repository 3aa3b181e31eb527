"""Computes figures from turns: milliseconds per step, shares, and ratios to the plain loop."""

import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from bench.data import TokenShape
from bench.federation.features import Head, can_take_their_place, width
from bench.models.factory import build
from bench.speed.contestants import PLAIN, Contestant, Turn, contestants, take_turns
from bench.speed.workloads import WORKLOADS, Workload
from bench.store.provenance import cores, provenance

SPARSE = 10  # rounds between two evaluations for the figures with `_sparse`


@dataclass(frozen=True)
class Figures:
    """The results of one contestant: medians over its turns, except `memory` and `stolen`, which are maxima.

    Attributes:
        ms: milliseconds per client step if every round is evaluated.
        ms_sparse: milliseconds per client step if every tenth round is evaluated.
        ms_training: milliseconds per client step for training alone.
        images: images per second of training.
        outside: share of time outside training if every tenth round is evaluated; for the plain loop, evaluation only.
        memory: peak memory in bytes.
        stolen: the largest share of the cores' time that the host of a virtual machine took from a turn.
        ceiling: arithmetic speed of training, as a share of the machine's measured ceiling in this precision.
        times, times_sparse, times_training: speed relative to the faster of the two plain loops, by `ms`, `ms_sparse`
            and `ms_training`; the median over repeats of the ratios within a repeat.
    """

    ms: float
    ms_sparse: float
    ms_training: float
    images: float
    outside: float
    memory: int
    stolen: float
    ceiling: float
    times: float
    times_sparse: float
    times_training: float


def measure(names: list[str], device: str, repeats: int) -> dict[str, Any]:
    """All contestants on the named workloads; `results[workload][contestant]` are the fields of `Figures`."""
    entered = contestants(device)
    precisions = sorted({contestant.precision for contestant in entered})
    first_ceilings = {p: ceiling(device, p) for p in precisions}
    turns = {name: take_turns(entered, name, device, repeats) for name in names}
    # The ceiling is measured twice, because a busy machine may reach less at one of the two times.
    peaks = {p: max(first_ceilings[p], ceiling(device, p)) for p in precisions}
    results = {name: _figures(name, entered, turns[name], peaks) for name in names}
    return {
        **provenance(),
        "device": device,
        "repeats": repeats,
        "contestants": [asdict(contestant) for contestant in entered],
        "ceiling_gflops": {p: peak / 1e9 for p, peak in peaks.items()},
        "results": {name: {who: asdict(f) for who, f in figures.items()} for name, figures in results.items()},
    }


def _figures(
    name: str, entered: list[Contestant], rounds: dict[str, list[Turn]], peaks: dict[str, float]
) -> dict[str, Figures]:
    loops = [contestant for contestant in entered if contestant.executor == PLAIN and not contestant.captured]
    plain = min((rounds[contestant.name] for contestant in loops), key=_milliseconds)
    work = operations(WORKLOADS[name])
    return {
        contestant.name: summary(rounds[contestant.name], plain, work / peaks[contestant.precision])
        for contestant in entered
    }


def summary(rounds: list[Turn], plain: list[Turn], seconds_at_peak: float) -> Figures:
    """Figures of a contestant; `seconds_at_peak`: seconds to train on one image at the arithmetic ceiling."""

    def times(every: int) -> float:
        return statistics.median(_per_step(p, every) / _per_step(r, every) for p, r in zip(plain, rounds, strict=True))

    images = statistics.median(r.images / r.training for r in rounds)
    return Figures(
        ms=_milliseconds(rounds),
        ms_sparse=_milliseconds(rounds, SPARSE),
        ms_training=1e3 * statistics.median(r.training / r.steps for r in rounds),
        images=images,
        outside=statistics.median(1 - r.training / (r.steps * _per_step(r, SPARSE)) for r in rounds),
        memory=max(r.memory for r in rounds),
        stolen=max(r.stolen for r in rounds),
        ceiling=images * seconds_at_peak,
        times=times(1),
        times_sparse=times(SPARSE),
        times_training=statistics.median(
            p.training / p.steps / (r.training / r.steps) for p, r in zip(plain, rounds, strict=True)
        ),
    )


def _milliseconds(rounds: list[Turn], every: int = 1) -> float:
    return 1e3 * statistics.median(_per_step(r, every) for r in rounds)


def _per_step(r: Turn, every: int) -> float:
    """Seconds per client step of a round, if one round in `every` is evaluated."""
    return (r.training + r.other + r.evaluation / every) / r.steps


def operations(workload: Workload) -> float:
    """Floating-point operations of the forward and backward pass for one image; a multiply-add counts as two.

    Where features take the images' place they are those of the head.
    """
    settings, shape = workload.settings, workload.shape
    net = build(settings.model, shape, 10, settings.model_options).to("meta")
    if can_take_their_place(settings, net):
        net, shape = Head(net), (width(net, shape),)
    samples = settings.batch_size
    with FlopCounterMode(display=False) as counter, torch.device("meta"):
        tokens = isinstance(shape, TokenShape)
        x = torch.zeros(samples, shape[0]).long() if tokens else torch.empty(samples, *shape)
        loss = nn.functional.cross_entropy(net(x), torch.zeros(samples).long())
        torch.autograd.backward([loss])
    total: int = counter.get_total_flops()
    return total / samples


def ceiling(device: str, precision: str, repeats: int = 10) -> float:
    """Operations per second of the fastest of `repeats` large matrix products; on a CPU, all cores are used."""
    threads, precision_before = torch.get_num_threads(), torch.backends.cuda.matmul.fp32_precision
    torch.set_num_threads(cores())
    torch.backends.cuda.matmul.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    try:
        size = 8192 if device == "cuda" else 2048  # with 2048, a GPU would wait for the CPU as long as it multiplies
        a = torch.ones(size, size, device=device, dtype=torch.bfloat16 if precision == "bf16" else torch.float32)
        return max(_product(a) for _ in range(repeats))
    finally:
        torch.set_num_threads(threads)
        torch.backends.cuda.matmul.fp32_precision = precision_before


def _product(a: torch.Tensor) -> float:
    start = time.perf_counter()
    float((a @ a)[0, 0])  # reading a number waits for the device
    return 2 * len(a) ** 3 / (time.perf_counter() - start)
