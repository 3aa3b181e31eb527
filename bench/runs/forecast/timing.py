"""Time rounds of stand-ins of a grid's cells, for `bench run --dry-run --measure`.

What is measured is by how much a few real rounds of few clients take longer than what was counted for the same rounds;
the estimate of the cell is scaled by that. It ends after a minute, whatever the grid.
"""

import contextlib
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from bench.data import Dataset, noise
from bench.engine.backends.backends import EAGER
from bench.rng import generator
from bench.runs.forecast.estimate import Estimate, network_of, round_seconds
from bench.runs.forecast.limit import LIMIT, OutOfTimeError, alarm
from bench.runs.forecast.machine import Machine, this_machine
from bench.runs.forecast.outline import DataSize, data_size, shares
from bench.runs.forecast.rehearsal import rehearse, samples, stand_in
from bench.settings import Settings

_ROUND = 0.5  # seconds that a round should take; it has fewer samples where it would take longer
_TESTS = 20
_SETTLED = 3  # rounds that are timed once steps are recorded


def measured(
    kinds: Mapping[str, tuple[Settings, Estimate]], data_root: Path, device: str, limit: float = LIMIT
) -> dict[str, Estimate]:
    """Return estimates of kinds of cells, in their order, as far as `limit` seconds suffice; the others are left out.

    Each kind may take an equal share of what is left of the time.
    """
    end = time.monotonic() + limit
    machine, scaled = this_machine(device), dict[str, Estimate]()
    torch.set_num_threads(1)
    with contextlib.suppress(OutOfTimeError), alarm(limit):
        for i, (key, (settings, cost)) in enumerate(kinds.items()):
            now = time.monotonic()
            if now >= end:
                break
            until = now + (end - now) / (len(kinds) - i)
            said = f"measuring {settings.name} ({i + 1} of {len(kinds)} kinds of cells), {end - now:.0f} s left"
            print(said, file=sys.stderr, flush=True)
            ratio = _ratio(settings, data_root, device, machine, until)
            if ratio is not None:
                scaled[key] = replace(cost, seconds=ratio * cost.seconds, warm_up=ratio * cost.warm_up, measured=True)
    return scaled


def _ratio(settings: Settings, data_root: Path, device: str, machine: Machine, until: float) -> float | None:
    """Return how many times longer rounds take than was counted; None if there was no time for two rounds."""
    size, dataset = data_size(settings, data_root) or (None, None)
    if size is None or dataset is None:
        return None
    whole, network = shares(settings, dataset), network_of(settings, size, device)
    clients = max(2, 2 * network.lanes) * max(1, len(settings.architectures))
    counted = round_seconds(rehearse(settings, size, whole), network, machine, clients, recorded=True)
    part = min(1.0, _ROUND / counted)
    cut = whole._replace(
        train=max(1, round(part * whole.train)),
        validation=min(whole.validation, _TESTS),
        test=min(whole.test, _TESTS),
        common=min(whole.common, whole.clients * _TESTS),
    )
    rehearsal = rehearse(settings, size, cut)
    federation = stand_in(settings, size, *samples(size, cut, clients, _noise), device=device)
    clock = (
        time.perf_counter if device == "cuda" else time.process_time
    )  # the latter does not depend on other processes
    ratios: dict[bool, list[float]] = {True: [], False: []}  # by whether most steps were recorded
    while len(ratios[True]) < _SETTLED and time.monotonic() < until:
        before, start = federation.engine.calls, clock()
        federation.advance()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds, calls = clock() - start, federation.engine.calls - before
        recorded = 2 * calls[EAGER] < calls.total()
        ratios[recorded].append(seconds / round_seconds(rehearsal, network, machine, clients, recorded=recorded))
    timed = ratios[True][1:] or ratios[False][1:]  # the first of either also loads libraries, or records
    return statistics.median(timed) if timed else None


def _noise(size: DataSize, count: int) -> Dataset:
    return noise(size.shape, size.classes, count, generator("estimate", count))
