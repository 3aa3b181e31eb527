"""Measure the rates of cells in rounds of few clients, for `bench run --dry-run --measure` and where there is a GPU."""

import math
import sys
import time
from collections.abc import Callable, Iterable

import torch

from bench.engine.backends.backends import EAGER
from bench.engine.sizes import lanes_on
from bench.federation.federation import Federation
from bench.runs.forecast.estimate import CellWork, Rates
from bench.runs.forecast.outline import ClientShares, client_steps, selected
from bench.runs.forecast.stand_in import ALIKE, stand_in
from bench.settings import Settings

_ROUND = 0.5  # seconds that a round and an evaluation should take; they have fewer samples where they would take longer
_FEWEST = 10  # samples of a client's tests, if it has so many
_WARM = 2.0  # seconds of rounds before those that are timed, in which steps are recorded
# The same of a GPU, where a step that is not recorded takes tens of times longer.
_ROUND_ON_GPU = 1.5
_WARM_ON_GPU, _WARM_ROUNDS = 10.0, 8  # no round for recording is begun after so many seconds or rounds
_CALL, _CORES = 2e-3, 400.0  # seconds of a cohort's call at the least, and how many cores of today compute as much
_SENT = "up", "up_buffers", "down_receivers", "down_receivers_buffers"


def kind(settings: Settings) -> str:
    """The settings that decide a cell's rates, as text."""
    return settings.model_copy(update=ALIKE).model_dump_json()


def measured(works: Iterable[CellWork], device: str, limit: float) -> dict[str, Rates]:
    """Return the rates of cells by their kind, one of each, none of which begins after so many seconds."""
    end, rates = time.monotonic() + limit, dict[str, Rates]()
    for key, work in {kind(work.settings): work for work in works}.items():
        if time.monotonic() >= end:
            break
        print(f"measuring {work.settings.name}, {end - time.monotonic():.0f} s left", file=sys.stderr, flush=True)
        try:
            rates[key] = measured_rates(work, device)
        except Exception as error:  # a method or a network of the user's may raise anything
            print(f"{work.settings.name} could not be timed: {error}", file=sys.stderr, flush=True)
    return rates


def measured_rates(work: CellWork, device: str) -> Rates:
    """Time two rounds and two evaluations of a cell with few clients, after rounds in which steps are recorded.

    Raises:
        UserError: the cell would be refused.
    """
    few, cut = fewer(work, device)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        federation = stand_in(few, work.size, cut, device=device)
        warm_up(federation, device)
        rounds, eager = list[float](), list[int]()
        for _ in range(2):
            rounds.append(_timed(federation.advance, device))
            eager.append(federation.engine.calls[EAGER])
        each = min(rounds) / selected(few, cut.clients)
        evaluation = min(_timed(federation.evaluate, device) for _ in range(2))
    finally:
        torch.set_num_threads(threads)
    steps = client_steps(few, cut.train)
    return Rates(
        step=each / steps if steps else 0.0,
        client=0.0 if steps else each,
        evaluated=evaluation / max(1, cut.clients * (cut.validation + cut.test) + cut.common),
        sent=sum(federation.ledger[-1][column] for column in _SENT) / selected(few, cut.clients),
        recorded=device == "cpu" or eager[0] == eager[1],
    )


def warm_up(federation: Federation, device: str) -> None:
    """Run rounds in which steps are recorded: on a GPU until one had recorded steps only."""
    if device == "cpu":
        warm = time.process_time() + _WARM
        while not federation.version or time.process_time() < warm:
            federation.advance()
        return
    end = time.monotonic() + _WARM_ON_GPU
    for _ in range(_WARM_ROUNDS):
        eager = federation.engine.calls[EAGER]
        federation.advance()
        if federation.engine.calls[EAGER] == eager or time.monotonic() >= end:
            return


def fewer(work: CellWork, device: str) -> tuple[Settings, ClientShares]:
    """Settings and samples of the stand-in: two cohorts of clients, or on a GPU all that take part if there is time,
    with fewer batches where a round would be long."""
    settings, whole, rates = work.settings, work.shares, work.rates()
    alone = device == "cpu" and any(network.alone for network in work.networks)
    lanes = 1 if alone else lanes_on(device, round(work.model))
    limit, cores = (_ROUND, 1.0) if device == "cpu" else (_ROUND_ON_GPU, _CORES)

    def seconds(clients: int) -> float:
        """An estimate of a round's."""
        calls = 0 if device == "cpu" else math.ceil(clients / lanes) * work.steps
        return calls * _CALL + clients * work.steps * rates.step / cores

    clients = max(2, len(work.networks), min(2 * lanes, work.selected))
    if device != "cpu" and seconds(work.selected) < limit:
        clients = max(clients, work.selected)
    part = min(1.0, limit / max(1e-9, seconds(clients)))
    tests = max(_FEWEST, round(limit * cores / max(1e-9, 3 * clients * rates.evaluated)))
    shares = ClientShares(
        clients=clients,
        train=min(whole.train, max(settings.batch_size, round(part * whole.train))),
        validation=min(whole.validation, tests),
        test=min(whole.test, tests),
        common=round(min(whole.common, whole.clients * tests) * clients / whole.clients),
    )
    steps = None if settings.steps is None else max(1, round(part * settings.steps))
    return settings.model_copy(update={"steps": steps, "clients": clients, "participation": 1.0}), shares


def _timed(work: Callable[[], object], device: str) -> float:
    """Seconds of some work: of a CPU those of this process, which others do not lengthen."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    start = clock()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - start
