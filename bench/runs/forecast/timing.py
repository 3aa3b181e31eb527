"""Measure the rates of cells in rounds of few clients, for `bench run --dry-run --measure` and where there is a GPU."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from bench.engine.backends.backends import EAGER
from bench.engine.sizes import lanes_on
from bench.plugin import METHODS
from bench.runs.forecast.estimate import CellWork, Rates
from bench.runs.forecast.outline import ClientShares, client_steps, selected
from bench.runs.forecast.stand_in import stand_in
from bench.settings import Settings

_ROUND = 0.5  # seconds that a round and an evaluation should take; they have fewer samples where they would take longer
_FEWEST = 10  # samples of a client's tests, if it has so many
_TIMED = 3  # rounds, once steps are recorded
_PATIENCE = 5.0  # seconds of computing until steps should be recorded
_SENT = "up", "up_buffers", "down_receivers", "down_receivers_buffers"
_LATER: dict[str, Any] = {
    "seed": 0, "partition_seed": None, "alpha": None, "label": "", "case": "", "lr": 0.1, "metrics": (),
    "select_by": "accuracy", "tests": (), "rounds": 1,
}  # fmt: skip
"""Settings in which cells of equal rates differ, and a value that stands for all."""


def kind(settings: Settings) -> str:
    """The settings that decide a cell's rates, as text.

    Fractional hyperparameters do not, as steps get them as tensors; static ones do, which may be shares of samples.
    """
    fields = METHODS.options(settings.method).model_fields
    extras = {name: field.json_schema_extra or {} for name, field in fields.items()}
    hp = {n: v for n, v in settings.hp.items() if not isinstance(v, float) or extras[n].get("static")}  # type: ignore[union-attr]
    return settings.model_copy(update={**_LATER, "hp": hp}).model_dump_json()


def measured(kinds: Mapping[str, Settings], data_root: Path, device: str, limit: float) -> dict[str, Rates]:
    """Return the rates of kinds of cells, in their order, none of which begins after so many seconds."""
    end, rates = time.monotonic() + limit, dict[str, Rates]()
    for i, (key, settings) in enumerate(kinds.items()):
        left = end - time.monotonic()
        if left <= 0:
            break
        text = f"measuring {settings.name} ({i + 1} of {len(kinds)} kinds of cells), {left:.0f} s left"
        print(text, file=sys.stderr, flush=True)
        try:
            of_kind = measured_rates(settings, data_root, device)
        except Exception as error:  # a method or a network of the user's may raise anything
            print(f"{settings.name} could not be timed: {error}", file=sys.stderr, flush=True)
            continue
        if of_kind is not None:
            rates[key] = of_kind
    return rates


def measured_rates(settings: Settings, data_root: Path, device: str) -> Rates | None:
    """Time rounds and an evaluation of a cell with few clients, once its steps are recorded where they can be.

    Args:
        settings: the cell's.
        data_root: the folder of the data files.
        device: `cpu` or `cuda`.

    Returns:
        The rates; None if the size of its data is not known.

    Raises:
        UserError: the cell would be refused.
    """
    work = CellWork.of(settings, data_root)
    if work is None:
        return None
    few, cut = _few(work, device)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        federation = stand_in(few, work.size, cut, device=device)
        seconds = _settled_round(federation, device)
        evaluated = cut.clients * (cut.validation + cut.test) + cut.common
        evaluation = min(_timed(federation.evaluate, device) for _ in range(2)) / max(1, evaluated)
    finally:
        torch.set_num_threads(threads)
    trained, steps = selected(few, cut.clients), client_steps(few, cut.train)
    sent = sum(federation.ledger[-1][column] for column in _SENT) / trained
    each = seconds / trained
    return Rates(each / steps, 0.0, evaluation, sent) if steps else Rates(0.0, each, evaluation, sent)


def _few(work: CellWork, device: str) -> tuple[Settings, ClientShares]:
    """Settings and samples of the stand-in: two cohorts of clients, with fewer batches where a round would be long."""
    settings, whole = work.settings, work.shares
    alone = device == "cpu" and any(network.alone for network in work.networks)
    lanes = 1 if alone else lanes_on(device, round(work.model))
    clients = max(2, len(work.networks), min(2 * lanes, work.selected))
    rates = work.rates()
    part = min(1.0, _ROUND / max(1e-9, clients * work.steps * rates.step))
    # Of validation, own and common ones each.
    tests = max(_FEWEST, round(_ROUND / max(1e-9, 3 * clients * rates.evaluated)))
    batch = min(settings.batch_size, whole.train)
    shares = ClientShares(
        clients=clients,
        train=whole.train if part == 1.0 else max(batch, round(part * whole.train)),
        validation=min(whole.validation, tests),
        test=min(whole.test, tests),
        common=round(min(whole.common, whole.clients * tests) * clients / whole.clients),
    )
    steps = None if settings.steps is None else max(1, round(part * settings.steps))
    return settings.model_copy(update={"steps": steps, "clients": clients, "participation": 1.0}), shares


def _settled_round(federation: Any, device: str) -> float:
    """Seconds of the quickest of some rounds in which no step was recorded any more."""
    begun, seconds = time.process_time(), list[float]()
    while len(seconds) < _TIMED:
        before = federation.engine.calls
        last = _timed(federation.advance, device)
        eager = (federation.engine.calls - before)[EAGER]
        if seconds or not eager or time.process_time() - begun > _PATIENCE:
            seconds.append(last)
    return min(seconds)


def _timed(work: Any, device: str) -> float:
    """Seconds of some work: of a CPU those of this process, which others do not lengthen."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    start = clock()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - start
