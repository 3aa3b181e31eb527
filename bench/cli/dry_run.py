"""Dry runs of grids and studies: which cells are done, which data are missing, and how much the cells will cost.

What is printed is arithmetic on settings, data and tables of costs (`bench/runs/forecast/`). Torch is imported only
where a cell has something of the user's own, or where rounds are to be timed.
"""

import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import UserError

if TYPE_CHECKING:
    from bench.runs.forecast.costs import StepRates
    from bench.runs.forecast.estimate import Estimate
    from bench.runs.plan import PlannedCell
    from bench.settings import Settings
    from sweeps.study import Arm, Study

LIMIT = 60.0
"""Seconds after which no further rounds are timed, whatever the grid."""
SHARED = 900_000_000
"""Approximate bytes of Python and its libraries that the command and its processes take together."""
PYTHON = 300_000_000
"""Approximate bytes of Python and its libraries that each cell's process takes beside them."""

BASIS = """\
Time: {basis}; a busy machine takes longer.
Memory: data and models at the peak of a round; Python and its libraries come on top, about 0.9 GB and 0.3 GB for each
cell that runs. Disk: the cells' folders, and of each cell that runs two checkpoints and one being written."""
RATES = "not measured here, but an order of magnitude, from one core's rates of each model (`--measure` times rounds)"
MEASURED = "rounds of {measured} of {kinds} kinds of cells, timed here and now"
REST = "; of the others an order of magnitude, from one core's rates of each model"


def print_outline(cells: "Sequence[Settings]", data_root: Path) -> None:
    """Print what settings and data say by themselves: numbers of cells, rounds, clients, samples and steps."""
    methods, data = len({cell.name for cell in cells}), ", ".join(dict.fromkeys(cell.dataset for cell in cells))
    print(f"{len(cells)} cells of {methods} methods on {data}: {sum(cell.rounds for cell in cells)} rounds", flush=True)
    _print_workloads(indices_by_task(cells), cells, data_root)


def print_study_outline(study: "Study", data_root: Path) -> None:
    """Print the same of a study: numbers of its cells and rounds by purpose, and the tasks' clients."""
    counts, rounds = Counter[str](), Counter[str]()
    for arm in study.arms:
        for name, count in _study_cells(arm).items():
            counts[name] += count
            rounds[name] += count * arm.cells[0].rounds
    for name, count in counts.items():
        print(f"{name}: {count} cells, at most {rounds[name]} rounds")
    cells = [arm.cells[0] for arm in study.arms]
    _print_workloads(indices_by_task(cells), cells, data_root)


def _print_workloads(tasks: dict[str, list[int]], cells: "Sequence[Settings]", data_root: Path) -> None:
    from bench.runs.forecast.outline import outlined_shares, steps_of_a_training, that_train

    for task, indices in tasks.items():
        settings = cells[indices[0]]
        mean = outlined_shares(settings, data_root)
        if mean is not None:
            count, steps = that_train(settings, mean.clients), steps_of_a_training(settings, mean.train)
            clients = f"{settings.selected(count)} of {count} clients, each with about {mean.train} samples"
            print(f"{task}: {settings.rounds} rounds of {clients} and {steps} steps whenever it trains a model")
    sys.stdout.flush()


def print_forecast(
    cells: "Sequence[Settings]",
    folder: Path,
    data_root: Path,
    device: str,
    jobs: int | None,
    *,
    verbose: bool,
    measure: bool = False,
    quiet: bool = False,
) -> None:
    """Print a line per task, or per cell if `verbose`, and the totals; warn where this machine has too little.

    Raises:
        UserError: a method refuses its settings.
    """
    from bench.runs.plan import plan_available

    _check(cells, quiet=quiet)
    planned, missing = plan_available(cells, data_root)
    runs = list(zip(cells, _shares_left(folder, planned, cells), strict=True))
    forecast = _Forecast(runs, data_root, device, jobs, measure=measure)
    tasks = indices_by_task(cells)
    lines = cell_lines(runs, forecast.costs, folder) if verbose else task_lines(tasks, runs, forecast.costs)
    lines += [f"missing, for {count} cells: {reason}" for reason, count in [*missing.items(), *forecast.notes.items()]]
    done = sum(not share for _, share in runs)
    total = f"{len(cells)} cells, {done} done before, {len(cells) - done} to run"
    print("\n".join([*lines, *sum_lines(total, runs, forecast.costs, folder, forecast.side_by_side)]))


def print_study_forecast(
    study: "Study",
    folder: Path,
    data_root: Path,
    device: str,
    jobs: int | None,
    *,
    measure: bool = False,
    quiet: bool = False,
) -> None:
    """Print a line per method and task and the totals of a whole study: what is done already is not subtracted, and
    trials that are pruned will train fewer rounds.

    Raises:
        UserError: a method refuses its settings.
    """
    from bench.runs.plan import plan_available

    cells = [arm.cells[0] for arm in study.arms]
    _check([cell for arm in study.arms for cell in arm.cells], quiet=quiet)
    runs = [(arm.cells[0], float(sum(_study_cells(arm).values()))) for arm in study.arms]
    forecast, missing = _Forecast(runs, data_root, device, jobs, measure=measure), plan_available(cells, data_root)[1]
    reasons = [*missing.items(), *forecast.notes.items()]
    lines = arm_lines(study, runs, forecast.costs)
    lines += [f"missing, for {count} of {len(runs)} tunings: {reason}" for reason, count in reasons]
    rounds = sum(int(count) * arm.rounds for arm, count in runs)
    total = f"{sum(int(count) for _, count in runs)} cells, at most {rounds} rounds"
    print("\n".join([*lines, *sum_lines(total, runs, forecast.costs, folder, forecast.side_by_side)]))


def _check(cells: "Sequence[Settings]", *, quiet: bool) -> None:
    """Refuse what a run of these cells would refuse, and warn of what it would warn of."""
    from bench.runs.plan import check_methods, pointless

    check_methods(cells)
    for warning in [] if quiet else pointless(cells):
        print(f"warning: {warning}", file=sys.stderr)


class _Forecast:
    """The costs of runs on this machine; equal runs have the very same estimate.

    Args:
        runs: pairs of settings and how often they run: the share of a cell's rounds that is left, or a number of cells.
        data_root: the folder of the data files.
        device, jobs: options of the command.
        measure: whether to time rounds, of those kinds first that will take longest.

    Attributes:
        side_by_side: number of cells at a time.
        costs: of each run; None if it runs no more, if its data are not there or it is refused (`plan_available` says
            so), or if its method cannot be counted.
        notes: reasons why methods cannot be counted, with numbers of runs.
    """

    def __init__(
        self, runs: "Sequence[tuple[Settings, float]]", data_root: Path, device: str, jobs: int | None, *, measure: bool
    ) -> None:
        from bench.runs.forecast.costs import CannotCountError, kind
        from bench.runs.session_options import choose_device
        from bench.runs.workers import threads_each, worker_count

        workers = worker_count(jobs, device)
        self.side_by_side = max(1, min(workers, sum(_cells(repeats) for _, repeats in runs if repeats)))
        self._execution = data_root, choose_device(device), threads_each(self.side_by_side), workers
        keys = [kind(settings) if repeats else "" for settings, repeats in runs]
        self._kinds = {key: settings for key, (settings, _) in zip(keys, runs, strict=True) if key}
        self._estimates: dict[str, Estimate | None] = {}
        reasons: dict[str, str] = {}
        for key, settings in self._kinds.items():
            try:
                self._estimates[key] = self._estimate(settings)
            except UserError:
                self._estimates[key] = None
            except CannotCountError as error:
                reasons[key] = f"{settings.name} has no estimate, as its rounds cannot be counted: {error}"
        if measure:
            self._measure(keys, [repeats for _, repeats in runs])
        self.costs = [self._estimates.get(key) for key in keys]
        self.notes = Counter(reasons[key] for key in keys if key in reasons)

    def _estimate(self, settings: "Settings", rates: "StepRates | None" = None) -> "Estimate | None":
        from bench.runs.forecast.estimate import estimate

        return estimate(settings, *self._execution, rates)

    def _measure(self, keys: Sequence[str], repeats: Sequence[float]) -> None:
        from bench.runs.forecast.timing import measured_rates

        seconds: dict[str, float] = {}
        for key, times in zip(keys, repeats, strict=True):
            if cost := self._estimates.get(key):
                seconds[key] = seconds.get(key, 0.0) + times * cost.seconds
        end = time.monotonic() + LIMIT
        for i, key in enumerate(sorted(seconds, key=lambda key: -seconds[key])):
            left, settings = end - time.monotonic(), self._kinds[key]
            if left <= 0:
                return
            said = f"measuring {settings.name} ({i + 1} of {len(seconds)} kinds of cells), {left:.0f} s left"
            print(said, file=sys.stderr, flush=True)
            data_root, device, *_ = self._execution
            if rates := measured_rates(settings, data_root, device, end):
                self._estimates[key] = self._estimate(settings, rates)


def _study_cells(arm: "Arm") -> dict[str, int]:
    """Numbers of cells that a study runs of one method on one task in one draw, by purpose."""
    from sweeps.study import FINALISTS

    return {
        "trials": arm.trials * len(arm.cells),
        "best trials again": min(FINALISTS, arm.trials) * len(arm.final_seeds),
        "results": len(arm.report_seeds),
    }


def indices_by_task(cells: "Sequence[Settings]") -> dict[str, list[int]]:
    """The positions of the cells of each task, by its name."""
    from bench.results.cell_names import task_name

    tasks: dict[str, list[int]] = {}
    for i, settings in enumerate(cells):
        tasks.setdefault(task_name(settings), []).append(i)
    return tasks


def _shares_left(folder: Path, planned: "Sequence[PlannedCell]", cells: "Sequence[Settings]") -> list[float]:
    """Share of each cell's rounds that is still to do: 0 for a finished cell, 1 for one without a checkpoint."""
    from bench.store.store import FINISHED, read_status

    places = {id(cell.settings): folder / cell.id for cell in planned}  # comparing thousands of settings takes seconds
    shares = []
    for settings in cells:
        place = places.get(id(settings), folder / "missing")
        status = read_status(place, settings)
        if status.state in FINISHED:
            shares.append(0.0)
        else:
            rounds_done = status.rounds if (place / "checkpoint").is_dir() else 0
            shares.append(max(1, settings.rounds - rounds_done) / settings.rounds)
    return shares


def cell_lines(runs: "Sequence[tuple[Settings, float]]", costs: "Sequence[Estimate | None]", folder: Path) -> list[str]:
    """A line for each cell: its time, and its checkpoint in `folder`; `runs` are settings and the share left to run."""
    from bench.results.cell_names import cell_name
    from bench.runs.progress import duration_text

    rate, lines = writing_rate(folder), []
    for (settings, share), cost in zip(runs, costs, strict=True):
        text = "no estimate" if share else "done"
        if cost:
            basis = "measured" if cost.measured else "by rates"
            saving = f"a checkpoint of {_bytes(cost.checkpoint)} in about {cost.checkpoint / rate:.2g} s"
            text = f"about {duration_text(cost.seconds * share)} ({basis}), {saving}"
        lines.append(f"{cell_name(settings)}: {text}")
    return lines


def writing_rate(folder: Path) -> float:
    """Measure how many bytes are written per second, until they are on the disk, with 64 MB next to `folder`."""
    place = next(place for place in (folder, *folder.resolve().parents) if place.is_dir())
    content = bytes(64 * 2**20)
    with tempfile.TemporaryFile(dir=place) as file:
        start = time.perf_counter()
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        return len(content) / (time.perf_counter() - start)


def task_lines(
    tasks: dict[str, list[int]], runs: "Sequence[tuple[Settings, float]]", costs: "Sequence[Estimate | None]"
) -> list[str]:
    """A line for each task of a grid; `tasks` are the positions of its cells in `runs`."""
    lines = []
    for task, indices in tasks.items():
        methods, done = len({runs[i][0].name for i in indices}), sum(not runs[i][1] for i in indices)
        cost = _text_of([(cost, runs[i][1]) for i in indices if (cost := costs[i])])
        known = all(costs[i] or not runs[i][1] for i in indices)
        lines.append(
            f"{task}: {len(indices)} cells of {methods} methods, {done} done, {cost if known else 'no estimate'}"
        )
    return lines


def arm_lines(
    study: "Study", runs: "Sequence[tuple[Settings, float]]", costs: "Sequence[Estimate | None]"
) -> list[str]:
    """A line for each arm of a study; `runs` are settings and the number of cells."""
    lines = []
    for arm, (settings, cells), cost in zip(study.arms, runs, costs, strict=True):
        text = _text_of([(cost, cells)]) if cost else "no estimate"
        lines.append(f"{arm.label} {arm.title}: {cells:.0f} cells of {settings.rounds} rounds, {text}")
    return lines


def _text_of(costs: "Sequence[tuple[Estimate, float]]") -> str:
    """Time, steps and traffic of cells, each with how often it runs."""
    from bench.runs.progress import duration_text

    seconds, steps, sent = (
        sum(getattr(cost, amount) * repeats for cost, repeats in costs) for amount in ("seconds", "steps", "sent")
    )
    work = f", {steps:.2g} steps of clients, {_bytes(sent)} sent" if costs else ""
    return f"about {duration_text(seconds)} of computing{work}"


def sum_lines(
    total: str,
    runs: "Sequence[tuple[Settings, float]]",
    costs: "Sequence[Estimate | None]",
    folder: Path,
    side_by_side: int,
) -> list[str]:
    """Lines for all together: time, memory and disk of so many cells side by side, and what this machine lacks."""
    from bench.runs.progress import duration_text

    total = f"{total}, {side_by_side} side by side"
    estimates = [(cost, repeats) for (_, repeats), cost in zip(runs, costs, strict=True) if cost and repeats]
    if not estimates:
        return [
            f"{total}, {side_by_side} side by side: "
            + ("no estimate, see `missing` above" if any(share for _, share in runs) else "nothing to do")
        ]
    seconds = sum(cost.seconds * repeats for cost, repeats in estimates) / side_by_side
    memory, gpu, disk = (
        _largest([(getattr(cost, resource), _cells(repeats)) for cost, repeats in estimates], side_by_side)
        for resource in ("memory", "gpu", "disk")
    )
    disk += sum(cost.folder * _cells(repeats) for cost, repeats in estimates)
    memory_text = f"{_bytes(memory)} of memory" + (f", {_bytes(gpu)} of the GPU's" if gpu else "")
    basis, measured = RATES, sum(cost.measured for cost in {cost for cost, _ in estimates})
    if measured:
        different = len({cost for cost, _ in estimates})
        basis = MEASURED.format(measured=measured, kinds=different) + REST * (measured < different)
    left_out = sum(_cells(repeats) for (_, repeats), cost in zip(runs, costs, strict=True) if repeats and not cost)
    return [
        f"{total}: about {duration_text(seconds)}, {memory_text}, at most {_bytes(disk)} of disk",
        BASIS.format(basis=basis),
        *(f"missing: {text}" for text in _shortages(memory, gpu, disk, folder, side_by_side)),
        *([f"{left_out} cells are left out: see `missing` above."] if left_out else []),
    ]


def _cells(repeats: float) -> int:
    """A number of cells; a share of one is one."""
    return max(1, round(repeats))


def _largest(amounts: list[tuple[int, int]], places: int) -> int:
    """Sum of the largest amounts that so many places have; each amount is there as often as the second number says."""
    total = 0
    for amount, count in sorted(amounts, reverse=True):
        total += amount * min(count, places)
        places -= min(count, places)
    return total


def _shortages(memory: int, gpu: int, disk: int, folder: Path, side_by_side: int) -> list[str]:
    """One text for each resource of which this machine has too little, with a remedy."""
    from bench.runs.forecast.estimate import memory_here

    if gpu:
        import torch  # here, as it takes seconds

    place = next(place for place in (folder, *folder.resolve().parents) if place.is_dir())
    hint = f"try --jobs {side_by_side // 2}" if side_by_side > 1 else "take fewer clients or a smaller model"
    needs = [
        ("memory, Python's own with it", memory + SHARED + PYTHON * side_by_side, memory_here(), hint),
        ("the GPU's memory", gpu, torch.cuda.mem_get_info()[1] if gpu else 0, hint),
        ("disk", disk, shutil.disk_usage(place).free, "give another --out"),
    ]
    return [
        f"{_bytes(need)} of {resource}; this machine has {_bytes(available)}: {remedy}"
        for resource, need, available, remedy in needs
        if need > available
    ]


def _bytes(count: float) -> str:
    if count >= 1e12:
        return f"{count / 1e12:.1f} TB"
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
