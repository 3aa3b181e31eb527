"""Time rounds of few clients of a cell, for `bench run --dry-run --measure`."""

from pathlib import Path

from bench.runs.forecast.costs import StepRates
from bench.runs.forecast.counts import PATIENCE, ROUND, TESTS, few_clients, time_rounds
from bench.runs.forecast.estimate import CellCosts
from bench.runs.forecast.outline import ClientShares
from bench.settings import Settings


def measured_rates(settings: Settings, data_root: Path, device: str, until: float = float("inf")) -> StepRates | None:
    """Time two rounds and an evaluation of a cell with few clients, after its steps are recorded where they can be.

    Args:
        settings: the cell's.
        data_root: the folder of the data files.
        device: `cpu` or `cuda`.
        until: when to give up, as `time.monotonic` counts; a round that has begun ends.

    Returns:
        Its rates; None if there was no time for two rounds, or the size of its data set is not known.
    """
    cell = CellCosts.of(settings, data_root)
    return None if cell is None else _timed(cell, device, until)


def _timed(cell: CellCosts, device: str, until: float) -> StepRates | None:
    whole, settings = cell.shares, cell.settings
    clients = max(2, 2 * cell.lanes(device)) * len(cell.models)
    batch = min(settings.batch_size, whole.train)
    expected = sum(model.rates.step + model.rates.sample * batch for model in cell.models) / len(cell.models)
    part = min(1.0, ROUND / max(1e-9, clients * cell.steps * expected))
    share = ClientShares(
        clients=clients,
        train=max(batch, round(part * whole.train)),
        validation=min(whole.validation, TESTS),
        test=min(whole.test, TESTS),
        common=round(min(whole.common, whole.clients * TESTS) * clients / whole.clients),
    )
    steps = None if settings.steps is None else max(1, round(part * settings.steps))
    few = settings.model_copy(update={"steps": steps})
    federation = few_clients(few, cell.size.shape, cell.size.classes, share, public=cell.public, device=device)
    times = time_rounds(federation, device, until, PATIENCE)
    return StepRates(times[0], 0.0, times[1] / max(1, share.evaluated(clients))) if times else None
