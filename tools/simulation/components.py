"""Levels and noise of a league's entries, as simulations of leagues take them.

`python -m tools.simulation.components league_2_small` reads them off the entries that come with the harness and
writes `league_2_small.json` beside this file; simulations read that file, and league-1's, whose entries are in the
history.
"""

import csv
import json
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from bench.data import Floats
from bench.results.pack import TRIALS, TUNING, unpack
from reports.reading.load import PM, Store
from reports.statistics import best

_HERE = Path(__file__).parent
_DIGITS = 4


@dataclass(frozen=True)
class Components:
    """Levels and noise of a league's entries, as arrays `[tasks, methods]` in logits.

    Attributes:
        levels: means over seeds.
        noise: standard deviations over result seeds of a draw of tuning, without what all methods share in a seed.
        trials: by task and method, validation accuracies of the trials that came to their end.
        families: the data family of each task.
        seconds: seconds of a core for a result cell, `[tasks, methods]`.
        draws: deviations of the draws of tuning from a method's mean, without what all methods share in a draw,
            `[tasks, methods, draws]`; empty where all seeds have the settings of one draw.
    """

    levels: Floats
    noise: Floats
    trials: list[list[Floats]]
    families: list[str]
    seconds: Floats
    draws: Floats


@cache
def components(study: str, *, erratic: bool = True, first: str = "") -> Components:
    """Read the components of personalized models that were written for a league.

    Args:
        study: the league's study.
        erratic: whether methods are among them that diverged in some cells of a task and not in others.
        first: a method that comes before the others.
    """
    record = json.loads((_HERE / f"{study}.json").read_text(encoding="utf-8"))
    kept = [at for at, row in enumerate(record["methods"]) if erratic or row not in record["erratic"]]
    kept.sort(key=lambda at: record["methods"][at] != first)
    names = ("levels", "noise", "seconds", "draws")
    levels, noise, seconds, draws = (np.array(record[name], dtype=float)[:, kept] for name in names)
    trials = [[np.array(task[at]) for at in kept] for task in record["trials"]]
    return Components(levels, noise, trials, record["families"], seconds, draws)


def fit(study: str) -> dict[str, object]:
    """Read the components off the entries that come with the harness, tuned in several draws."""
    from reports.league.rule import by_case, data_families, ranked
    from reports.league.shipped import shipped
    from reports.reading.load import load

    with tempfile.TemporaryDirectory() as scratch:
        runs = [Path(scratch, file.name) for file in shipped(study)]
        for file, run in zip(shipped(study), runs, strict=True):
            unpack(file, run)
        store = by_case(load(runs))
        compared, _ = ranked(store, PM)
        rows = list(compared.scores)
        logits = np.array([best.logits(np.array(task)) for task in zip(*compared.scores.values(), strict=True)])
        cells = {row: [store.of(row, task) for task in store.tasks] for row in rows}
        seconds = [[np.mean([_seconds(cell.view.folder) for cell in task]) for task in cells[row]] for row in rows]
        trials = [_trials(cells[row][0][0].view.folder.parent, len(store.tasks)) for row in rows]
        return {
            "study": study,
            "methods": rows,
            "erratic": sorted(compared.erratic.intersection(rows)),
            "tasks": store.tasks,
            "families": data_families(store, store.tasks),
            "levels": logits.mean(axis=2).round(_DIGITS).tolist(),
            "draws": _deviations(logits).round(_DIGITS).tolist(),
            "noise": [_noise(store, rows, task) for task in store.tasks],
            "seconds": np.round(np.array(seconds).T, _DIGITS).tolist(),
            "trials": [[values.round(_DIGITS).tolist() for values in task] for task in zip(*trials, strict=True)],
        }


def _noise(store: Store, rows: list[str], task: str) -> list[float]:
    """Standard deviations over the seeds of a draw of tuning, of the residuals from the draw's mean."""

    units = {cell.seed: cell.unit for cell in store.cells if cell.task == task}
    by_row = [store.by_seed(row, task, PM) for row in rows]
    seeds = sorted(units)
    logits = best.logits(np.array([[accuracies[seed] for seed in seeds] for accuracies in by_row]))
    groups = [[at for at, seed in enumerate(seeds) if units[seed] == unit] for unit in sorted(set(units.values()))]
    residuals = np.hstack([_deviations(logits[:, group]) for group in groups])
    deviations = np.sqrt(np.square(residuals).sum(axis=1) / (len(seeds) - len(groups)))
    return [round(float(value), _DIGITS) for value in deviations]


def _deviations(values: Floats) -> Floats:
    """Deviations from a method's mean, without what all methods share: arrays `[..., methods, units]`."""
    residuals = values - values.mean(axis=-1, keepdims=True)
    residuals = residuals - np.median(residuals, axis=-2, keepdims=True)
    centred: Floats = residuals - residuals.mean(axis=-1, keepdims=True)
    return centred


def _seconds(folder: Path) -> float:
    timing = json.loads((folder / "timing.json").read_text(encoding="utf-8"))
    return float(timing["seconds"])


def _trials(entry: Path, tasks: int) -> list[Floats]:
    """Validation accuracies in logits of the complete trials of an entry, by task; those of all draws together."""
    with open(entry / TUNING.name, encoding="utf-8", newline="") as file:
        tables = sum(line["column"] == "task" for line in csv.DictReader(file))
    values = []
    for at in range(tables):
        with open(entry / TRIALS.replace("*", str(at)), encoding="utf-8", newline="") as file:
            of_table = [line["value"] for line in csv.DictReader(file) if line["column"] == "PM"]
        values.append(best.logits(np.array([float(value) for value in of_table if value])))
    draws = tables // tasks
    return [np.concatenate(values[draws * task : draws * (task + 1)]) for task in range(tasks)]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        (_HERE / f"{name}.json").write_text(json.dumps(fit(name)) + "\n", encoding="utf-8")
