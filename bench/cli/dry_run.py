"""Dry runs of grids and studies: which cells are done, which data are missing, and how much the cells will cost.

What settings say by themselves is printed at once. The costs follow, counted kind by kind, for a minute at most: in
a terminal they are shown as they become known, elsewhere they are printed at the end.
"""

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cli.cost_lines import arm_lines, cell_lines, sum_lines, task_lines
from bench.errors import UserError

if TYPE_CHECKING:
    from bench.runs.forecast.estimate import Estimate
    from bench.runs.plan import PlannedCell
    from bench.settings import Settings
    from sweeps.study import Arm, Study

Show = Callable[[Callable[[], Sequence[str]]], None]


def print_outline(cells: "Sequence[Settings]", data_root: Path) -> None:
    """Print what settings and data say without torch: numbers of cells, rounds, clients, samples and steps."""
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
) -> None:
    """Print a line per task, or per cell if `verbose`, and the totals; warn where this machine has too little."""
    from bench.runs.plan import plan_available
    from bench.runs.session_options import choose_device
    from bench.runs.workers import worker_count

    workers, device_kind = worker_count(jobs, device, cells, data_root), choose_device(device)
    planned, missing = plan_available(cells, data_root)
    shares = _shares_left(folder, planned, cells)
    side_by_side = max(1, min(workers, sum(share > 0 for share in shares)))
    runs = list(zip(cells, shares, strict=True))
    forecast = _Forecast(runs, data_root, device_kind, side_by_side, workers)
    tasks = indices_by_task(cells)
    forecast.run(lambda: task_lines(tasks, runs, forecast.costs()), measure=measure)
    costs = forecast.costs()
    lines = cell_lines(runs, costs, folder) if verbose else task_lines(tasks, runs, costs)
    lines += [
        f"missing, for {count} cells: {reason}" for reason, count in [*missing.items(), *forecast.notes().items()]
    ]
    done = sum(not share for share in shares)
    total = f"{len(cells)} cells, {done} done before, {len(cells) - done} to run, {side_by_side} side by side"
    lines += sum_lines(total, runs, costs, folder, side_by_side)
    print("\n".join(lines))


def print_study_forecast(
    study: "Study", folder: Path, data_root: Path, device: str, jobs: int | None, *, measure: bool = False
) -> None:
    """Print a line per method and task and the totals of a whole study: what is done already is not subtracted, and
    trials that are pruned will train fewer rounds."""
    from bench.runs.plan import plan_available
    from bench.runs.session_options import choose_device
    from bench.runs.workers import worker_count

    workers, device_kind = worker_count(jobs, device), choose_device(device)
    runs = [(arm.cells[0], float(sum(_study_cells(arm).values()))) for arm in study.arms]
    total, rounds = sum(int(cells) for _, cells in runs), sum(int(cells) * arm.rounds for arm, cells in runs)
    side_by_side = min(workers, total)
    forecast = _Forecast(runs, data_root, device_kind, side_by_side, workers)
    forecast.run(lambda: arm_lines(study, runs, forecast.costs()), measure=measure)
    costs = forecast.costs()
    lines = arm_lines(study, runs, costs)
    missing = plan_available([arm.cells[0] for arm in study.arms], data_root)[1]
    lines += [
        f"missing, for {count} of {len(runs)} tunings: {reason}"
        for reason, count in [*missing.items(), *forecast.notes().items()]
    ]
    total_text = f"{total} cells, at most {rounds} rounds, {side_by_side} side by side"
    print("\n".join([*lines, *sum_lines(total_text, runs, costs, folder, side_by_side)]))


class _Forecast:
    """Costs of cells; equal ones are counted once.

    Args:
        runs: pairs of settings and how often they run: the share of a cell's rounds that is left, or a number of cells.
    """

    def __init__(
        self,
        runs: "Sequence[tuple[Settings, float]]",
        data_root: Path,
        device: str,
        side_by_side: int,
        workers: int,
    ) -> None:
        from bench.runs.forecast.rehearsal import kind
        from bench.runs.workers import threads_each

        self._data_root = data_root
        self._device = device
        self._threads = threads_each(side_by_side)
        self._workers = workers
        self._keys = [kind(settings) if repeats else "" for settings, repeats in runs]
        self._repeats = [repeats for _, repeats in runs]
        self._kinds = {key: settings for key, (settings, _) in zip(self._keys, runs, strict=True) if key}
        self._estimates: dict[str, Estimate | None] = {}
        self._reasons: dict[str, str] = {}

    def costs(self) -> "list[Estimate | None]":
        """The cost of each run; None if it runs no more, its data are not there, it is refused (`plan_available` says
        so), or its method cannot be counted. Kinds that were not counted yet have the cost of others of their model."""
        kinds = {key: self._estimates[key] if key in self._estimates else self._borrowed(key) for key in self._kinds}
        return [kinds.get(key) for key in self._keys]

    def notes(self) -> Counter[str]:
        """Reasons why methods were not counted, with numbers of runs."""
        from bench.runs.forecast.limit import LIMIT

        reasons, uncounted = dict(self._reasons), dict[str, list[str]]()
        for key in self._kinds.keys() - self._estimates.keys():
            scaled = ", so taken as others of the model, by what clients train" if self._borrowed(key) else ""
            uncounted.setdefault(scaled, []).append(key)
        for scaled, keys in uncounted.items():
            names = ", ".join(sorted({self._kinds[key].name for key in keys}))
            reasons |= dict.fromkeys(keys, f"not counted within {LIMIT:.0f} s{scaled}: {names}")
        return Counter(reasons[key] for key in self._keys if key in reasons)

    def run(self, lines: Callable[[], list[str]], *, measure: bool) -> None:
        """Count the kinds of cells, each model's first one first, and then time them if asked; a minute in all.

        Args:
            lines: what is known, for a terminal.
            measure: time rounds in half of the time, those kinds first that will take longest.
        """
        from bench.runs.forecast.limit import LIMIT, OutOfTimeError, alarm
        from bench.runs.forecast.timing import measured

        end = time.monotonic() + LIMIT
        with _display() as show:
            for number, key in enumerate(self._in_turns()):
                left = end - time.monotonic() - (LIMIT / 2 if measure else 0.0)
                if left <= 0:
                    break
                which = f"{self._kinds[key].name} ({number + 1} of {len(self._kinds)} kinds of cells)"
                at = f"counting {which}, {left:.0f} s left"
                show(lambda at=at: [*lines(), at])  # type: ignore[misc]
                with contextlib.suppress(OutOfTimeError), alarm(left):
                    self._estimates[key] = self._estimate(self._kinds[key], key)
        if measure:
            self._estimates |= measured(self._longest(), self._data_root, self._device, end - time.monotonic())

    def _in_turns(self) -> list[str]:
        """The kinds, the first of each data set and model before the second ones."""
        place, count = dict[str, int](), Counter[str]()
        for key, settings in self._kinds.items():
            group = _group(settings)
            place[key], count[group] = count[group], count[group] + 1
        return sorted(self._kinds, key=lambda key: place[key])

    def _estimate(self, settings: "Settings", key: str) -> "Estimate | None":
        from bench.runs.forecast.estimate import estimate
        from bench.runs.forecast.rehearsal import CannotRehearseError

        try:
            return estimate(settings, self._data_root, self._device, self._threads, self._workers)
        except UserError:
            return None
        except CannotRehearseError as error:
            self._reasons[key] = f"{settings.name} has no estimate, as its rounds cannot be counted: {error}"
            return None

    def _borrowed(self, key: str) -> "Estimate | None":
        """The mean cost of the counted kinds of the same data set and model, scaled by what clients train."""
        from bench.runs.forecast.estimate import borrowed

        settings = self._kinds[key]
        counted = [(self._kinds[other], cost) for other, cost in self._estimates.items() if cost]
        peers = [(other, cost) for other, cost in counted if _group(other) == _group(settings)]
        return borrowed(settings, peers, self._data_root) if peers else None

    def _longest(self) -> "dict[str, tuple[Settings, Estimate]]":
        """The kinds that were counted, those first that will take longest in all their runs."""
        seconds = Counter[str]()
        for key, repeats in zip(self._keys, self._repeats, strict=True):
            cost = self._estimates.get(key)
            seconds[key] += repeats * cost.seconds if cost else 0.0  # type: ignore[assignment]
        return {key: (self._kinds[key], cost) for key, _ in seconds.most_common() if (cost := self._estimates.get(key))}


@contextlib.contextmanager
def _display() -> Iterator[Show]:
    """Yield a function that shows lines, in a terminal: in place on the output, or a line on the standard errors."""
    from bench.runs.progress import steps

    if not sys.stdout.isatty():
        with steps("dry run") as step:
            yield lambda lines: step(lines()[-1]) if sys.stderr.isatty() else None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(), auto_refresh=False, transient=True) as live:
        yield lambda lines: live.update(Text("\n".join(lines())), refresh=True)


def _group(settings: "Settings") -> str:
    """The data set and the model of a cell."""
    same = {"dataset", "dataset_options", "model", "model_options", "client_models", "frozen"}
    return settings.model_dump_json(include=same)


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
