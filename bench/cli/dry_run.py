"""Dry runs of grids and studies: which cells are done, which data are missing, and how much the cells will cost."""

import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import UserError

if TYPE_CHECKING:
    from bench.runs.forecast.estimate import Estimate
    from bench.runs.plan import PlannedCell
    from bench.settings import Settings
    from sweeps.study import Arm, Study

PYTHON = 300_000_000
"""Approximate bytes that Python and its libraries take for a cell."""

BASIS = """\
Time: {basis}; a busy machine takes longer.
Memory: data and models at the peak of a round; Python and its libraries, about 0.3 GB, come on top for each cell that
runs. Disk: the cells' folders, and of each cell that runs two checkpoints and one being written."""
COUNTED = "not measured, but the operations of two rounds, counted, at this machine's speed (`--measure` times rounds)"
MEASURED = "rounds of {measured} of {kinds} kinds of cells, timed here and now"
REST = "; of the others the operations, counted, at this machine's speed"


def print_forecast(
    cells: "Sequence[Settings]",
    folder: Path,
    data_root: Path,
    device: str,
    jobs: int | None,
    *,
    verbose: bool,
    measure: bool = False,
) -> None:
    """Print a line per task, or per cell if `verbose`, and the totals; warn where this machine has too little."""
    from bench.runs.plan import plan_available
    from bench.runs.session_options import choose_device
    from bench.runs.workers import worker_count

    methods, data = len({cell.name for cell in cells}), ", ".join(dict.fromkeys(cell.dataset for cell in cells))
    print(f"{len(cells)} cells of {methods} methods on {data}: {sum(cell.rounds for cell in cells)} rounds", flush=True)
    workers, device_kind = worker_count(jobs, device), choose_device(device)
    planned, missing = plan_available(cells, data_root)
    shares = _shares_left(folder, planned, cells)
    side_by_side = max(1, min(workers, sum(share > 0 for share in shares)))
    forecast = _Forecast(data_root, device_kind, side_by_side, workers)
    costs = [forecast.cost(settings) if share else None for settings, share in zip(cells, shares, strict=True)]
    if measure:
        remaining = [(cell, share) for cell, share in zip(cells, shares, strict=True) if share]
        forecast.measure(remaining)
        costs = [forecast.cost(settings) if share else None for settings, share in zip(cells, shares, strict=True)]
    (_print_cells if verbose else _print_tasks)(cells, shares, costs, folder)
    for reason, count in [*missing.items(), *forecast.notes.items()]:
        print(f"missing, for {count} cells: {reason}")
    done = sum(not share for share in shares)
    print(f"{len(cells)} cells, {done} done before, {len(cells) - done} to run, {side_by_side} side by side", end="")
    _print_sum([(cost, share) for cost, share in zip(costs, shares, strict=True) if share], folder, side_by_side)


def print_study_forecast(
    study: "Study", folder: Path, data_root: Path, device: str, jobs: int | None, *, measure: bool = False
) -> None:
    """Print a line per method and task and the totals of a whole study: what is done already is not subtracted, and
    trials that are pruned will train fewer rounds."""
    from bench.runs.plan import plan_available
    from bench.runs.progress import duration_text
    from bench.runs.session_options import choose_device
    from bench.runs.workers import worker_count

    workers, device_kind = worker_count(jobs, device), choose_device(device)
    parts = {arm: _study_cells(study, arm) for arm in study.arms}
    total = sum(sum(counts.values()) for counts in parts.values())
    side_by_side = min(workers, total)
    forecast = _Forecast(data_root, device_kind, side_by_side, workers)
    if measure:
        forecast.measure([(arm.cells[0], float(sum(counts.values()))) for arm, counts in parts.items()])
    costs: list[tuple[Estimate | None, float]] = []
    for arm, counts in parts.items():
        cells, cell = sum(counts.values()), arm.cells[0]
        cost = forecast.cost(cell)
        costs += [(cost, 1.0)] * cells
        time = f"about {duration_text(cost.seconds * cells)} of computing" if cost else "no estimate"
        print(f"{arm.label} {arm.task}: {cells} cells of {cell.rounds} rounds, {time}", flush=True)
    rounds = Counter[str]()
    for arm, counts in parts.items():
        rounds.update({name: count * arm.cells[0].rounds for name, count in counts.items()})
    for name in rounds:
        print(f"{name}: {sum(counts[name] for counts in parts.values())} cells, at most {rounds[name]} rounds")
    missing = plan_available([arm.cells[0] for arm in study.arms], data_root)[1]
    for reason, count in [*missing.items(), *forecast.notes.items()]:
        print(f"missing, for {count} tasks: {reason}")
    print(f"{total} cells, at most {rounds.total()} rounds, {side_by_side} side by side", end="")
    _print_sum(costs, folder, side_by_side)


class _Forecast:
    """Costs of cells; equal ones are counted once.

    Attributes:
        notes: reasons why methods cannot be counted, with numbers of cells.
    """

    def __init__(self, data_root: Path, device: str, side_by_side: int, workers: int) -> None:
        from bench.runs.workers import threads_each

        self._data_root = data_root
        self._device = device
        self._threads = threads_each(side_by_side)
        self._workers = workers
        self._estimates: dict[str, Estimate | None] = {}
        self._reasons: dict[str, str] = {}
        self.notes = Counter[str]()

    def cost(self, settings: "Settings") -> "Estimate | None":
        """The cost of a cell; None if its data are not there, it is refused (`plan_available` says so), or its method
        cannot be counted."""
        from bench.runs.forecast.rehearsal import plain

        key = plain(settings)
        if key not in self._estimates:
            self._estimates[key] = self._estimate(settings, key)
        if key in self._reasons:
            self.notes[self._reasons[key]] += 1
        return self._estimates[key]

    def _estimate(self, settings: "Settings", key: str) -> "Estimate | None":
        from bench.runs.forecast.estimate import estimate
        from bench.runs.forecast.rehearsal import CannotRehearseError

        if sys.stderr.isatty():
            print(f"counting {settings.name:60}", end="\r", file=sys.stderr, flush=True)
        try:
            return estimate(settings, self._data_root, self._device, self._threads, self._workers)
        except UserError:
            return None
        except CannotRehearseError as error:
            self._reasons[key] = f"{settings.name} has no estimate, as its rounds cannot be counted: {error}"
            return None

    def measure(self, cells: "Sequence[tuple[Settings, float]]") -> None:
        """Time rounds of cells, those first whose kind will take longest, for a minute at most.

        Args:
            cells: pairs of settings and how often they will run.
        """
        from bench.runs.forecast.rehearsal import plain
        from bench.runs.forecast.timing import measured

        kinds: dict[str, Settings] = {}
        seconds = Counter[str]()
        for settings, repeats in cells:
            cost, key = self.cost(settings), plain(settings)
            kinds.setdefault(key, settings)
            seconds[key] += cost.seconds * repeats if cost else 0.0  # type: ignore[assignment]
        self.notes.clear()
        longest = {key: (kinds[key], cost) for key, _ in seconds.most_common() if (cost := self._estimates[key])}
        self._estimates |= measured(longest, self._data_root, self._device)


def _study_cells(study: "Study", arm: "Arm") -> dict[str, int]:
    """Numbers of cells that a study runs of one method on one task, by purpose."""
    from sweeps.finals import FINALISTS

    return {
        "trials": arm.trials * len(arm.cells),
        "best trials again": min(FINALISTS, arm.trials) * len(study.final_seeds),
        "results": len(study.file.report_seeds),
    }


def _shares_left(folder: Path, planned: "Sequence[PlannedCell]", cells: "Sequence[Settings]") -> list[float]:
    """Share of each cell's rounds that is still to do: 0 for a finished cell, 1 for one without a checkpoint."""
    from bench.store.store import FINISHED, read_status

    places = {cell.settings.model_dump_json(): folder / cell.id for cell in planned}
    shares = []
    for settings in cells:
        place = places.get(settings.model_dump_json(), folder / "missing")
        status = read_status(place, settings)
        if status.state in FINISHED:
            shares.append(0.0)
        else:
            rounds_done = status.rounds if (place / "checkpoint").is_dir() else 0
            shares.append(max(1, settings.rounds - rounds_done) / settings.rounds)
    return shares


def _print_cells(
    cells: "Sequence[Settings]", shares: Sequence[float], costs: "Sequence[Estimate | None]", folder: Path
) -> None:
    from bench.results.results import cell_name
    from bench.runs.forecast.estimate import checkpoint_rate
    from bench.runs.progress import duration_text

    rate = checkpoint_rate(folder)
    for settings, share, cost in zip(cells, shares, costs, strict=True):
        text = "no estimate" if share else "done"
        if cost:
            basis = "measured" if cost.measured else "counted"
            saving = f"a checkpoint of {_bytes(cost.checkpoint)} in about {cost.checkpoint / rate:.2g} s"
            text = f"about {duration_text(cost.seconds * share)} ({basis}), {saving}"
        print(f"{cell_name(settings)}: {text}")


def _print_tasks(
    cells: "Sequence[Settings]", shares: Sequence[float], costs: "Sequence[Estimate | None]", folder: Path
) -> None:
    from bench.results.results import task_name
    from bench.runs.progress import duration_text

    for task in dict.fromkeys(map(task_name, cells)):
        indices = [i for i, settings in enumerate(cells) if task_name(settings) == task]
        methods, done = len({cells[i].name for i in indices}), sum(not shares[i] for i in indices)
        seconds = sum(cost.seconds * shares[i] for i in indices if (cost := costs[i]))
        is_complete = all(costs[i] or not shares[i] for i in indices)
        time = f"about {duration_text(seconds)} of computing" if is_complete else "no estimate"
        if is_complete and done < len(indices):
            time += f", {sum(cost.steps * shares[i] for i in indices if (cost := costs[i])):.2g} steps of clients"
        print(f"{task}: {len(indices)} cells of {methods} methods, {done} done, {time}")


def _print_sum(costs: "Sequence[tuple[Estimate | None, float]]", folder: Path, side_by_side: int) -> None:
    from bench.runs.progress import duration_text

    estimates = [(cost, share) for cost, share in costs if cost]
    if not estimates:
        print(": no estimate, see `missing` above" if costs else ": nothing to do")
        return
    # the warm-up happens once per kind of cell and worker: later cells use the steps recorded for the first one
    kinds = Counter(cost for cost, _ in estimates)
    warm = sum(cost.warm_up * min(side_by_side, count) for cost, count in kinds.items())
    seconds = (sum(cost.seconds * share for cost, share in estimates) + warm) / side_by_side
    memory, gpu, disk = (
        sum(sorted((getattr(cost, resource) for cost, _ in estimates), reverse=True)[:side_by_side])
        for resource in ("memory", "gpu", "disk")
    )
    disk += sum(cost.folder for cost, _ in estimates)
    memory_text = f"{_bytes(memory)} of memory" + (f", {_bytes(gpu)} of the GPU's" if gpu else "")
    print(f": about {duration_text(seconds)}, {memory_text}, at most {_bytes(disk)} of disk")
    measured_kinds = sum(cost.measured for cost in kinds)
    basis = MEASURED.format(measured=measured_kinds, kinds=len(kinds)) + REST * (measured_kinds < len(kinds))
    print(BASIS.format(basis=basis if measured_kinds else COUNTED))
    for text in _shortages(memory, gpu, disk, folder, side_by_side):
        print(f"missing: {text}")
    if len(estimates) < len(costs):
        print(f"{len(costs) - len(estimates)} cells are left out: see `missing` above.")


def _shortages(memory: int, gpu: int, disk: int, folder: Path, side_by_side: int) -> list[str]:
    """One text for each resource of which this machine has too little, with a remedy."""
    import torch

    from bench.runs.forecast.estimate import memory_here

    place = next(place for place in (folder, *folder.resolve().parents) if place.is_dir())
    hint = f"try --jobs {side_by_side // 2}" if side_by_side > 1 else "take fewer clients or a smaller model"
    needs = [
        ("memory, Python's own with it", memory + PYTHON * side_by_side, memory_here(), hint),
        ("the GPU's memory", gpu, torch.cuda.mem_get_info()[1] if gpu else 0, hint),
        ("disk", disk, shutil.disk_usage(place).free, "give another --out"),
    ]
    return [
        f"{_bytes(need)} of {resource}; this machine has {_bytes(available)}: {remedy}"
        for resource, need, available, remedy in needs
        if need > available
    ]


def _bytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
