"""Dry runs of grids and studies: which cells are done, which data are missing, and how much the cells will cost.

A dry run is arithmetic (`bench.runs.forecast.estimate`). Torch is imported only where cells are checked or timed by it:
those that have more to refuse than settings and files say, those of a folder that has cells, or on a GPU.
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cli.cost_lines import arm_lines, cell_lines, sum_lines, task_lines
from bench.errors import UserError

if TYPE_CHECKING:
    from bench.runs.forecast.estimate import Estimate, Rates
    from bench.runs.options import SessionOptions
    from bench.runs.plan import PlannedCell
    from bench.settings import Settings
    from sweeps.study import Arm, Study

MEASURING = 60.0
"""Seconds in which a dry run times rounds (`--measure`)."""
CALIBRATION = 10.0
"""Seconds in which it does so on a GPU, whose rates nothing else says."""


def print_outline(cells: "Sequence[Settings]", data_root: Path) -> None:
    """Print what settings and data say: numbers of cells, rounds, clients, samples and steps."""
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
    cells: "Sequence[Settings]", folder: Path, options: "SessionOptions", *, measure: bool = False
) -> None:
    """Print a line per task, or per cell if `options.verbose`, and the totals; warn where this machine has too little.

    Raises:
        UserError: a method refuses its settings.
    """
    _warn(cells, options)
    missing, shares = _checked(cells, folder, options.data_root)
    runs = list(zip(cells, shares, strict=True))
    forecast = _Forecast(runs, options, measure=measure)
    tasks = indices_by_task(cells)
    lines = cell_lines(runs, forecast.costs) if options.verbose else task_lines(tasks, runs, forecast.costs)
    lines += [f"missing, for {count} cells: {reason}" for reason, count in missing.items()]
    done = sum(not share for share in shares)
    total = f"{len(cells)} cells, {done} done before, {len(cells) - done} to run, {forecast.side_by_side} side by side"
    print("\n".join([*lines, *sum_lines(total, runs, forecast.costs, folder, forecast.side_by_side)]))


def print_study_forecast(study: "Study", folder: Path, options: "SessionOptions", *, measure: bool = False) -> None:
    """Print a line per method and task and the totals of a whole study: what is done already is not subtracted, and
    trials that are pruned will train fewer rounds.

    Raises:
        UserError: a method refuses its settings.
    """
    _warn([cell for arm in study.arms for cell in arm.cells], options)
    missing, _ = _checked([arm.cells[0] for arm in study.arms], folder, options.data_root)
    runs = [(arm.cells[0], float(sum(_study_cells(arm).values()))) for arm in study.arms]
    forecast = _Forecast(runs, options, measure=measure)
    lines = arm_lines(study, runs, forecast.costs)
    lines += [f"missing, for {count} of {len(runs)} tunings: {reason}" for reason, count in missing.items()]
    rounds = sum(int(count) * settings.rounds for settings, count in runs)
    total = (
        f"{sum(int(count) for _, count in runs)} cells, at most {rounds} rounds, {forecast.side_by_side} side by side"
    )
    print("\n".join([*lines, *sum_lines(total, runs, forecast.costs, folder, forecast.side_by_side)]))


def _warn(cells: "Sequence[Settings]", options: "SessionOptions") -> None:
    """Warn of what is pointless, as a run would."""
    from bench.runs.plan import pointless

    for text in [] if options.quiet else pointless(cells):
        print(f"warning: {text}", file=sys.stderr, flush=True)


def _checked(cells: "Sequence[Settings]", folder: Path, data_root: Path) -> tuple[Mapping[str, int], list[float]]:
    """Check cells as a run would, by torch where that can tell more than settings and files.

    Returns:
        Numbers of cells that cannot run by reason, and the share of each cell's rounds that is still to do.

    Raises:
        UserError: a method refuses its settings.
    """
    from bench.declared import read_without_torch
    from bench.runs.plan import check_methods, is_plain, plan_available

    if read_without_torch() and not (folder / "run.json").exists() and all(is_plain(cell, data_root) for cell in cells):
        return _missing_files(cells, data_root), [1.0] * len(cells)
    check_methods(cells)
    planned, missing = plan_available(cells, data_root)
    return missing, _shares_left(folder, planned, cells)


def _missing_files(cells: "Sequence[Settings]", data_root: Path) -> Counter[str]:
    """Numbers of cells by the file that they lack, in the words of the data sets' loaders."""
    from bench.runs.forecast.outline import missing_file

    reasons = (missing_file(name, data_root) for cell in cells for name in _data_sets(cell))
    return Counter(reason for reason in reasons if reason)


def _data_sets(cell: "Settings") -> set[str]:
    return {cell.dataset, *([cell.public.name] if cell.public else [])}


class _Forecast:
    """The costs of runs on this machine.

    Args:
        runs: pairs of settings and how often they run: the share of a cell's rounds that is left, or a number of cells.
        options: of the command.
        measure: whether to time rounds, of those kinds first that will take longest.

    Attributes:
        side_by_side: number of cells at a time.
        costs: of each run; None if it runs no more, if its data are not known, or if a model does not take the samples.
    """

    def __init__(self, runs: "Sequence[tuple[Settings, float]]", options: "SessionOptions", *, measure: bool) -> None:
        from bench.runs.cell_options import choose_device
        from bench.runs.workers import threads_each, worker_count

        device = choose_device(options.device)
        workers = worker_count(options.jobs, device, [settings for settings, _ in runs], options.data_root)
        self.side_by_side = max(1, min(workers, sum(max(1, round(repeats)) for _, repeats in runs if repeats)))
        self._execution = options.data_root, device, threads_each(self.side_by_side), workers
        self.costs = [self._estimate(settings) if repeats else None for settings, repeats in runs]
        limit = MEASURING if measure else CALIBRATION if device == "cuda" else 0.0
        if limit:
            self._measure(runs, limit)

    def _estimate(self, settings: "Settings", rates: "Rates | None" = None) -> "Estimate | None":
        from bench.runs.forecast.estimate import estimate

        try:
            return estimate(settings, *self._execution, rates)
        except UserError:
            return None

    def _measure(self, runs: "Sequence[tuple[Settings, float]]", limit: float) -> None:
        """Time kinds of cells for so many seconds; the others are scaled as the timed ones together."""
        from bench.runs.forecast.timing import kind, measured

        keys = [kind(settings) if cost else "" for (settings, _), cost in zip(runs, self.costs, strict=True)]
        kinds: dict[str, Settings] = {}
        seconds = Counter[str]()
        for key, (settings, repeats), cost in zip(keys, runs, self.costs, strict=True):
            if cost:
                kinds[key] = settings
                seconds[key] += repeats * cost.seconds  # type: ignore[assignment]
        order = {key: kinds[key] for key, _ in seconds.most_common()}
        rates = measured(order, *self._execution[:2], limit)
        before = after = 0.0
        for i, key in enumerate(keys):
            if (cost := self.costs[i]) and key in rates:
                self.costs[i] = timed = self._estimate(runs[i][0], rates[key])
                assert timed is not None, "its rates could be measured"
                before, after = before + cost.seconds, after + timed.seconds
        for i, cost in enumerate(self.costs):
            if cost and before and keys[i] not in rates:
                self.costs[i] = replace(cost, seconds=cost.seconds * after / before, basis="scaled")


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
