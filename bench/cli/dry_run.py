"""Dry runs of grids and studies: which cells are done, which data are missing, and how much the cells will cost.

A dry run is arithmetic (`bench.runs.forecast.estimate`). Torch is imported only where cells are checked or timed by it.
"""

import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.errors import UserError

if TYPE_CHECKING:
    from bench.runs.forecast.estimate import Estimate
    from bench.runs.options import SessionOptions
    from bench.settings import Settings
    from sweeps.study import Study

MEASURING = 60.0
"""Seconds in which a dry run times rounds (`--measure`)."""
CALIBRATION = 10.0
"""Seconds in which it does so on a GPU, whose rates nothing else says."""
SHARED, PYTHON = 900_000_000, 300_000_000
"""Approximate bytes of Python and its libraries: of the command, and of each cell's process beside it."""

_UNRECORDED = " (timed with steps that were not recorded: a run whose steps are may be tens of times as fast)"
BASIS = """\
Time: an estimate to within a factor of two or so, by {timed} kinds of cells that were timed here (`--measure`), else by
the rates of a core of today; a busy machine takes longer. Sent: one model each way for each client's round, or what
was sent where it was timed. Memory: data and models at the peak of a round; Python and its libraries come on top,
about 0.9 GB and 0.3 GB for each cell that runs. Disk: of each cell that runs two checkpoints and one being written;
tables come on top."""


class Run(NamedTuple):
    """Cells of equal settings, in a line with others of a group: how many are done, and how many are left to run."""

    group: str
    settings: "Settings"
    done: int
    left: int


def print_forecast(
    cells: "Sequence[Settings]", folder: Path, options: "SessionOptions", *, known: bool, measure: bool = False
) -> None:
    """Print a line per task, or per cell if `options.verbose`, and the totals; warn where this machine has too little.

    Args:
        known: whether the grid is a built-in one as it came, which nothing can refuse but for lack of data.
        measure: whether to time rounds.

    Raises:
        UserError: a method refuses its settings.
    """
    from bench.results.cell_names import cell_name, task_name

    methods, data = len({cell.name for cell in cells}), ", ".join(dict.fromkeys(cell.dataset for cell in cells))
    print(f"{len(cells)} cells of {methods} methods on {data}: {sum(cell.rounds for cell in cells)} rounds", flush=True)
    name = cell_name if options.verbose else task_name
    finished, missing = _checked(cells, folder, options, known=known)
    runs = [Run(name(cell), cell, done, 1 - done) for cell, done in zip(cells, finished, strict=True)]
    total = f"{len(cells)} cells, {sum(finished)} done before, {len(cells) - sum(finished)} to run"
    _print_runs(runs, missing, total, folder, options, measure=measure)


def print_study_forecast(study: "Study", folder: Path, options: "SessionOptions", *, measure: bool = False) -> None:
    """Print a line per method and task and the totals of a whole study: what is done already is not subtracted, and
    trials that are pruned will train fewer rounds.

    Raises:
        UserError: a method refuses its settings.
    """
    from sweeps.study import FINALISTS

    runs, counts, rounds = list[Run](), Counter[str](), 0
    for arm in study.arms:
        of_arm = {
            "trials": arm.trials * len(arm.cells),
            "best trials again": min(FINALISTS, arm.trials) * len(arm.final_seeds),
            "results": len(arm.report_seeds),
        }
        counts.update(of_arm)
        runs.append(Run(f"{arm.label} {arm.title}", arm.cells[0], 0, sum(of_arm.values())))
        rounds += runs[-1].left * arm.cells[0].rounds
    print(", ".join(f"{name}: {count} cells" for name, count in counts.items()), flush=True)
    _, missing = _checked([run.settings for run in runs], folder, options, known=False)
    _print_runs(runs, missing, f"{counts.total()} cells, at most {rounds} rounds", folder, options, measure=measure)


def _checked(
    cells: "Sequence[Settings]", folder: Path, options: "SessionOptions", *, known: bool
) -> tuple[list[bool], Mapping[str, int]]:
    """Check cells as a run would, and warn of what is pointless.

    Returns:
        Whether each cell has finished, and numbers of cells that cannot run by reason.

    Raises:
        UserError: a method refuses its settings.
    """
    from bench.runs.forecast.outline import missing_file
    from bench.runs.plan import check_methods, plan_available, pointless
    from bench.store.store import FINISHED, read_status

    for text in [] if options.quiet else pointless(cells):
        print(f"warning: {text}", file=sys.stderr, flush=True)
    if known and not (folder / "run.json").exists():
        sets = [name for cell in cells for name in {cell.dataset, *([cell.public.name] if cell.public else [])}]
        reasons = [missing_file(name, options.data_root) for name in sets]
        return [False] * len(cells), Counter(reason for reason in reasons if reason)
    check_methods(cells)
    planned, missing = plan_available(cells, options.data_root)
    finished = {id(cell.settings) for cell in planned if read_status(folder / cell.id, cell.settings).state in FINISHED}
    return [id(cell) in finished for cell in cells], missing  # comparing thousands of settings takes seconds


def _print_runs(
    runs: Sequence[Run],
    missing: Mapping[str, int],
    total: str,
    folder: Path,
    options: "SessionOptions",
    *,
    measure: bool,
) -> None:
    """Print a line for each group, and what all cells need together."""
    from bench.runs.cell_options import choose_device
    from bench.runs.progress import duration_text
    from bench.runs.workers import threads_each, worker_count
    from bench.store.store import GENERATIONS

    device = choose_device(options.device)
    workers = worker_count(options.jobs, device, [run.settings for run in runs], options.data_root)
    side_by_side = max(1, min(workers, sum(run.left for run in runs)))
    limit = MEASURING if measure else CALIBRATION if device == "cuda" else 0.0
    costs, timed = _costs(runs, (options.data_root, device, threads_each(side_by_side), workers), limit)
    groups: dict[str, list[tuple[Run, Estimate | None]]] = {}
    for run, cost in zip(runs, costs, strict=True):
        groups.setdefault(run.group, []).append((run, cost))
    for group, members in groups.items():
        print(_line(group, members))
    for reason, count in missing.items():
        print(f"missing, for {count} of {len(runs)}: {reason}")
    total += f", {side_by_side} side by side"
    known = [(run, cost) for run, cost in zip(runs, costs, strict=True) if cost]
    if not known:
        print(f"{total}: {'no estimate' if any(run.left for run in runs) else 'nothing to do'}")
        return

    def largest(amount: "Callable[[Estimate], int]") -> int:
        """The sum of the largest amounts that cells side by side have."""
        amounts = [amount(cost) for run, cost in known for _ in range(min(run.left, side_by_side))]
        return sum(sorted(amounts)[-side_by_side:])

    memory, gpu = largest(lambda cost: cost.memory), largest(lambda cost: cost.gpu)
    # One generation more than stays, as the newest is written before the oldest goes.
    disk = (GENERATIONS + 1) * largest(lambda cost: cost.checkpoint)
    # Cells that share a GPU are not taken to be faster than one after the other.
    seconds = sum(cost.seconds * run.left for run, cost in known) / (1 if gpu else side_by_side)
    needs = f"{_bytes(memory)} of memory" + (f", {_bytes(gpu)} of the GPU's" if gpu else "")
    eager = _UNRECORDED * any(run.left and not cost.recorded for run, cost in known)
    print(f"{total}: about {duration_text(seconds)}{eager}, {needs}, at most {_bytes(disk)} of disk for checkpoints")
    print(BASIS.format(timed=timed))
    _print_shortages(memory + SHARED + PYTHON * side_by_side, gpu, disk, folder)


def _costs(
    runs: Sequence[Run], execution: tuple[Path, str, int, int], limit: float
) -> "tuple[list[Estimate | None], int]":
    """The costs of runs, and how many kinds of cells were timed.

    Args:
        runs: those of which nothing is left to do have no cost, nor those whose data or models are not known.
        execution: data root, device, threads of a cell, cells at a time.
        limit: seconds in which kinds of cells are timed; the others are scaled as the timed ones together.
    """
    from bench.runs.forecast.estimate import Rates, estimate

    def cost_of(run: Run, rates: Rates | None = None) -> "Estimate | None":
        try:
            return estimate(run.settings, *execution, rates) if run.left else None
        except UserError:
            return None

    costs = [cost_of(run) for run in runs]
    if not limit:
        return costs, 0
    from bench.runs.forecast.timing import kind, measured

    rates = measured([cost.work for cost in costs if cost], execution[1], limit)
    timed = {i: cost_of(run, rates[key]) for i, run in enumerate(runs) if (key := kind(run.settings)) in rates}
    usual = {i: cost for i, cost in timed.items() if cost and cost.recorded}
    before = sum(cost.seconds for i in usual if (cost := costs[i]))
    after = sum(cost.seconds for cost in usual.values())
    scaled = [cost and cost._replace(seconds=cost.seconds * (after / before if before else 1)) for cost in costs]
    return [timed.get(i, cost) for i, cost in enumerate(scaled)], len(rates)


def _line(group: str, members: "Sequence[tuple[Run, Estimate | None]]") -> str:
    """Describe the cells of a group in a line: what they are, and their time, steps and traffic."""
    from bench.runs.progress import duration_text

    done, left = sum(run.done for run, _ in members), sum(run.left for run, _ in members)
    text = f"{group}: {done + left} cells" + f", {done} done" * bool(done)
    known = [(run, cost) for run, cost in members if cost]
    if not left or any(run.left and not cost for run, cost in members):
        return text + ", no estimate" * bool(left)
    seconds, steps, sent = (
        sum(getattr(cost, amount) * run.left for run, cost in known) for amount in ("seconds", "steps", "sent")
    )
    work = known[0][1].work
    eager = _UNRECORDED * any(run.left and not cost.recorded for run, cost in known)
    return (
        f"{text}, {work.settings.rounds} rounds of {work.selected} of {work.clients} clients with about "
        f"{work.shares.train} samples each, about {duration_text(seconds)} of computing{eager}, "
        f"{steps:.2g} steps of clients, "
        f"{_bytes(sent)} sent"
    )


def _print_shortages(memory: int, gpu: int, disk: int, folder: Path) -> None:
    """Print a line for each resource of which this machine has too little, with a remedy."""
    from bench.runs.forecast.estimate import memory_here

    place = next(place for place in (folder, *folder.resolve().parents) if place.is_dir())
    fewer = "take fewer --jobs, fewer clients or a smaller model"
    needs = [
        ("memory, Python's own with it", memory, memory_here(), fewer),
        ("disk", disk, shutil.disk_usage(place).free, "give another --out"),
    ]
    if gpu:
        import torch  # here, as it takes seconds

        needs.append(("the GPU's memory", gpu, torch.cuda.mem_get_info()[1], fewer))
    for resource, need, available, remedy in needs:
        if need > available:
            print(f"missing: {_bytes(need)} of {resource}; this machine has {_bytes(available)}: {remedy}")


def _bytes(count: float) -> str:
    if count >= 1e12:
        return f"{count / 1e12:.1f} TB"
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
