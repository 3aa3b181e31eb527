"""Remarks that users should see although no cell failed: clients without samples, methods with identical accuracies,
cells that trained in a slower way than they should.

`bench run` prints them at its start and end; `bench status` and the report repeat them.
"""

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from bench.results import figures
from bench.results.cell_names import task_name
from bench.results.privacy import privacy_notes
from bench.results.results import CellView
from bench.settings import RECORDED, Settings
from bench.store import documents
from bench.store.store import FINISHED

_FELL_BACK = (" takes its place: ", " runs one by one: ")  # parts of the engine's notices of it
_TRAINED = ("gm", "pm")
_NAMED = 20  # groups
_Curve = tuple[tuple[str, ...], ...]


def partition_remarks(record: dict[str, Any]) -> list[str]:
    """Return remarks on how the samples are divided.

    Args:
        record: the content of a cell's `partition.json`.
    """
    stages = [record, *record.get("changes", ())]
    sizes, tests = (
        [max(of) for of in zip(*(stage[key] for stage in stages), strict=True)] for key in ("n_train", "n_test")
    )
    held = {label for stage in stages for counts in stage["counts"] for label, count in enumerate(counts) if count}
    classes, absent = len(record["counts"][0]), record.get("left_out", ())
    empty = sum(size == 0 for size in sizes)
    untested = sum(test == 0 < size for size, test in zip(sizes, tests, strict=True))
    missing = sorted(set(range(classes)) - held)
    texts = []
    if classes == 1:
        texts.append("all samples have one label, so every model is right: are these the labels?")
    if empty:
        texts.append(f"{empty} of {len(sizes)} clients have no training samples and take no part")
    if untested and any(tests):
        texts.append(f"{untested} of {len(sizes)} clients train and have no test samples: no local figure counts them")
    if missing:
        texts.append(
            f"no client trains on class {_first(map(str, missing), 5)}, of labels 0 to {classes - 1}"
            + (": do your labels start from 1?" if missing == [0] else "")
        )
    if absent:
        listed = _first(absent, _NAMED)
        texts.append(f"{len(sizes)} groups of the data take part, and {len(absent)} are left out: {listed}")
    return texts


def _first(names: Iterable[str], count: int) -> str:
    """The first of some names."""
    names = list(names)
    return ", ".join(names[:count]) + (", ..." if len(names) > count else "")


def gathered(remarks: Iterable[tuple[Settings, Sequence[str]]]) -> list[str]:
    """Merge remarks on partitions: one line per remark, with the tasks and seeds that it concerns."""
    seeds: dict[str, dict[str, dict[int, None]]] = defaultdict(lambda: defaultdict(dict))
    for settings, texts in remarks:
        for text in texts:
            seed = settings.seed if settings.partition_seed is None else settings.partition_seed
            seeds[text][task_name(settings)][seed] = None
    lines = []
    for text, tasks in seeds.items():
        of_seeds = {
            task: f"(seed{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))})" for task, numbers in tasks.items()
        }
        where = "; ".join(f"{task} {numbers}" for task, numbers in of_seeds.items())
        (task, numbers), *others = of_seeds.items()
        lines.append(f"{where}: {text}" if others else f"{task}: {text} {numbers}")
    return lines


def run_remarks(cells: Sequence[CellView]) -> list[str]:
    """Return the remarks on a run, read from its folder: on data and partitions, on what its cells did, and on what
    their noise covers."""
    folders = dict.fromkeys(cell.folder.parent for cell in cells)
    notes = dict.fromkeys(note for run in folders for note in (documents.read_run_file(run) or {}).get("notes", ()))
    records = ((cell.settings, documents.read(cell.folder, "partition.json")) for cell in cells)
    partitions = gathered((settings, partition_remarks(record)) for settings, record in records if record is not None)
    noise = privacy_notes((cell.label, cell.privacy) for cell in cells)
    return [*notes, *partitions, *end_remarks(cells), *untimed(cells), *noise]


def end_remarks(cells: Sequence[CellView]) -> list[str]:
    """Return remarks that are known only after training: identical accuracies, cells that fell back to slower steps,
    scores that finished cells lack."""
    return [*equal_figures(cells), *fallbacks(cells), *missing_scores(cells)]


def fallbacks(cells: Sequence[CellView]) -> list[str]:
    """Say in one line how many cells fell back to slower steps, and why most of them did."""
    statuses = {cell.id: cell.status for cell in cells}
    fallen = [status for status in statuses.values() if status.steps == "fallen back"]
    notices = [text for status in fallen for text in status.warnings if any(part in text for part in _FELL_BACK)]
    if not notices:
        return []
    (first, _), *others = Counter(notices).most_common()
    more = f" (other reasons: {len(others)}; `bench log RUN CELL` has them)" if others else ""
    return [f"{len(fallen)} of {len(statuses)} cells trained more slowly than they could: {first}{more}"]


def missing_scores(cells: Sequence[CellView]) -> list[str]:
    """Say how many finished cells lack scores that the grid asks for, as they ran when it did not."""
    lacking: dict[str, set[str]] = defaultdict(set)
    unselected = set()
    for cell in (cell for cell in cells if cell.status.state == "done"):
        settings = cell.settings
        if settings.protocol == "tuning" or not (settings.further_metrics or settings.tests):
            continue
        names = {label: f"the test {test.name}" for test in settings.tests for label in test.labels}
        for label, quantity in figures.missing_scores(cell.folder, settings.tests, settings.further_metrics):
            lacking[names.get(label, quantity)].add(cell.id)
        recorded = set(cell.table("scores")["quantity"])
        if settings.select_by not in (*RECORDED, *recorded):
            unselected.add(cell.id)
    if not (lacking or unselected):
        return []
    texts = []
    if lacking:
        count = len(set.union(*lacking.values()))
        texts.append(
            f"{count} finished cells ran without {', '.join(lacking)}, which the grid asks for: `bench evaluate` "
            "computes it where models were kept (--keep best), else `bench run --fresh` runs the cells again"
        )
    if unselected:
        texts.append(
            f"{len(unselected)} finished cells lack the validation score of `select_by`: they report the last round, "
            "and are left out where other cells of their task have it; `bench run --fresh` runs them again"
        )
    return texts


def unused_fallbacks(names: Sequence[str], cells: Sequence[CellView]) -> list[str]:
    """Say which names of `--allow-fallback` no cell used: one that is misspelt allows nothing.

    Args:
        names: as the user gave them.
        cells: that ran.
    """
    warnings = {text for cell in cells for text in cell.status.warnings}
    unused = [name for name in names if not any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", w) for w in warnings)]
    return [f"--allow-fallback {name}: nothing of that name failed on a GPU; leave it out" for name in unused]


def untimed(cells: Sequence[CellView]) -> list[str]:
    """Say how many finished cells have no usable time: it is measured while they run and cannot be made again."""
    finished = {cell.id: cell.folder for cell in cells if cell.status.state in FINISHED}
    without = sum(bool(documents.problem(folder / "timing.json")) for folder in finished.values())
    if not without:
        return []
    return [f"{without} of {len(finished)} finished cells have no readable timing.json: their seconds are left out"]


def equal_figures(cells: Sequence[CellView]) -> list[str]:
    """Find methods all of whose accuracies, at every evaluation and seed, equal another method's to the last digit.

    A method that trains only one kind of model is compared with methods that train only that kind: Ditto's generic
    model equals FedAvg's by construction, which says nothing about FedAvg.
    """
    groups: dict[tuple[str, int, int | None, str], dict[str, tuple[str, dict[str, _Curve]]]] = defaultdict(dict)
    for cell in cells:
        if cell.status.state == "done" and cell.settings.protocol != "tuning" and (curves := _curves(cell)):
            group = (task_name(cell.settings), cell.settings.seed, cell.settings.partition_seed, cell.settings.protocol)
            groups[group].setdefault(cell.id, (cell.label, curves))  # one cell under two labels is meant to agree
    twins: dict[tuple[str, str], list[dict[str, set[str]]]] = defaultdict(list)
    for (task, *_), labels in groups.items():
        rivals = dict(labels.values())
        for label, curves in rivals.items():
            twins[label, task].append({metric: _methods_with_equal_curves(label, metric, rivals) for metric in curves})
    tasks: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (label, task), seeds in twins.items():
        common = {metric: set.intersection(*(seed.get(metric, set()) for seed in seeds)) for metric in seeds[0]}
        if all(common.values()):
            text = ", ".join(f"{metric.upper()}: {' and '.join(sorted(names))}" for metric, names in common.items())
            tasks[label, text].append(task)
    return [
        f"{label}: every accuracy is another method's to the last digit ({text}) on {', '.join(names_of_tasks)}"
        for (label, text), names_of_tasks in tasks.items()
    ]


def _curves(cell: CellView) -> dict[str, _Curve]:
    """Return the stored accuracies of the models that the method itself trains, by model."""
    path = cell.folder / "metrics.csv"
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        rows = [tuple(row) for row in csv.reader(file) if "accuracy" in row]
    curves = {metric: tuple(row for row in rows if row[1] == metric) for metric in _TRAINED}
    return {metric: curve for metric, curve in curves.items() if curve and metric not in cell.status.derived}


def _methods_with_equal_curves(label: str, metric: str, rivals: dict[str, dict[str, _Curve]]) -> set[str]:
    reference = rivals[label]
    return {
        other
        for other, others in rivals.items()
        if other != label and others.get(metric) == reference[metric] and (len(reference) > 1 or len(others) == 1)
    }
