"""Names of cells in reports: the row and the column of each in tables, told apart by the settings that vary."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bench.results.cell_names import dataset_name
from bench.results.results import CellView
from bench.settings import PRESENTATION, Settings

TASK_FIELDS = (
    "dataset",
    "dataset_options",
    "partition",
    "partition_options",
    "shifts",
    "timeline",
    "attack",
    "alpha",
    "clients",
    "participation",
    "model",
    "model_options",
    "pretrained",
    "validation_share",
)
"""Settings that say what is to be learnt from what: cells that differ in one are not rivals but columns of a table."""

_SEED_FIELDS = ("seed", "partition_seed")
_SAME_DATA = ("attack", "participation")
"""Task fields that leave a task's data as they are: cases that differ in these alone are not other tasks."""
_HP = "hp."  # marks a method's own setting: FedDyn has an alpha that is not the partition's
_LISTS = {"shifts": "shift", "channel": "channel"}
"""Settings that are lists of named entries, each with the word for one of them."""
_ENTRIES = {"attack": "attack", "server": "server rule"}
"""Settings that are one entry with a name."""
_SHORT = {"alpha": "α", "participation": "C"}


class CellNames(NamedTuple):
    """Names of a cell, as `reports.reading.load.Cell` has them."""

    row: str
    task: str
    seed: str
    unit: str
    base: str
    case: str
    case_settings: tuple[str, ...]


class Cases(NamedTuple):
    """Cases of a grid, which move several settings together.

    Attributes:
        of_cells: the case of each cell; empty where a cell has none.
        settings: what differs between cases and nowhere else.
    """

    of_cells: Sequence[str]
    settings: frozenset[str]

    @property
    def same_data(self) -> bool:
        """Whether all cases have the same data, models and clients, so that they are not other tasks."""
        fields = {name.partition(".")[0] for name in self.settings}
        return bool(fields) and not fields & {*TASK_FIELDS} - {*_SAME_DATA}


def cases_of(views: Sequence[CellView], names: Sequence[str]) -> Cases:
    """Find the settings that belong to cases: they differ between those of a label and data set, and not within one.

    Args:
        names: the case of each.
    """
    if len(set(names)) < 2:
        return Cases([""] * len(names), frozenset())
    groups: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for view, case in zip(views, names, strict=True):
        settings = _opened(flat(view.settings))
        groups[view.label, settings["dataset"]][case].append(settings)
    known = dict.fromkeys(name for group in groups.values() for cells in group.values() for name in cells[0])
    return Cases(
        names,
        frozenset(
            name
            for name in known
            if name not in (*_SEED_FIELDS, *PRESENTATION)
            and not any(_varies(cells, name) for group in groups.values() for cells in group.values())
            and any(_varies([cells[0] for cells in group.values()], name) for group in groups.values())
        ),
    )


def names_of(views: Sequence[CellView], draws: Mapping[int, str], cases: Cases) -> list[CellNames]:
    """Names of cells, each no longer than needed to tell a cell from the others.

    Args:
        draws: the draw of tuning of each seed, where a study had several. Each chooses its own settings: these are one
            row of a method, which only settings that vary within a draw divide.
        cases: a task has the name of its case in place of the settings that belong to it.
    """
    plain = [{**flat(view.settings), "label": view.label} for view in views]
    names = list(dict.fromkeys(name for settings in plain for name in settings))
    row_names = [name for name in names if name not in (*TASK_FIELDS, *_SEED_FIELDS, *PRESENTATION, "protocol")]
    plain = [_opened(settings) for settings in plain]
    task_names = {
        dataset: [name for name in _task_names(plain, dataset) if name not in cases.settings]
        for dataset in {settings["dataset"] for settings in plain}
    }
    bases = [_task(settings, task_names[settings["dataset"]]) for settings in plain]
    several = len(set(bases)) > 1
    tasks = [
        ", ".join([*([base] if several or not case else []), *([case] if case else [])])
        for base, case in zip(bases, cases.of_cells, strict=True)
    ]
    partitions: dict[str, set[Any]] = defaultdict(set)
    # Within one task only: a learning rate that belongs to the data set does not make two rows of a method.
    rivals: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for settings, task in zip(plain, tasks, strict=True):
        partitions[task].add(_partition_seed(settings))
        rivals[settings["label"], task][draws.get(settings["seed"], "")].append(settings)
    vary = {
        at: [name for name in row_names if any(_varies(same, name) for same in of_draws.values())]
        for at, of_draws in rivals.items()
    }
    cells = []
    for settings, task, base, case in zip(plain, tasks, bases, cases.of_cells, strict=True):
        suffixes = [name for name in vary[settings["label"], task] if name in settings]
        row = ", ".join([settings["label"], *(setting_text(name, settings[name]) for name in suffixes)])
        of_case = [
            setting_text(name.rpartition(".")[2], value)
            for name, value in settings.items()
            if name in cases.settings and value not in (None, (), [], {})
        ]
        seed = "/".join(str(settings[name]) for name in _SEED_FIELDS if settings[name] is not None)
        unit = str(_partition_seed(settings) if len(partitions[task]) > 1 else settings["seed"])
        cells.append(CellNames(row, task, seed, unit, base, case, tuple(of_case)))
    return cells


def setting_text(name: str, value: Any) -> str:
    """`α=0.1`, `tau=0.4`: a setting as tables name it."""
    if name in _ENTRIES:
        return _entry_text(dict(value)) if value else f"no {_ENTRIES[name]}"
    if name in _LISTS:
        return " + ".join(_entry_text(dict(entry)) for entry in value) or f"no {_LISTS[name]}"
    if name == "timeline":
        return "; ".join(_change_text(change) for change in value) or "no change"
    shown = f"{value:g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
    return f"{_SHORT.get(name, name.removeprefix(_HP))}={shown}"


def _entry_text(entry: dict[str, Any]) -> str:
    """`label_noise share=0.4`: a shift, an attack or a channel's operation with its options, but for lists."""
    options = {key: value for key, value in entry.items() if key != "name" and not isinstance(value, list | None)}
    return " ".join([entry["name"], *(setting_text(*option) for option in options.items())])


def _change_text(change: dict[str, Any]) -> str:
    """`after round 20 concept_shift clusters=2`: a change of the data."""
    texts = [] if change["shifts"] is None else [setting_text("shifts", change["shifts"])]
    texts += [setting_text(name, change[name]) for name in ("exchange", "add_classes") if change[name] is not None]
    texts += [f"clients {change[name][0]} to {change[name][1]} {name}" for name in ("leave", "arrive") if change[name]]
    return f"after round {change['round']} {', '.join(texts)}"


def _partition_seed(settings: dict[str, Any]) -> int:
    seed: int = settings["seed"] if settings["partition_seed"] is None else settings["partition_seed"]
    return seed


def _opened(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with each option of the task as a setting of its own."""
    opened: dict[str, Any] = {}
    for name, value in settings.items():
        if _of_task(name) and isinstance(value, dict) and name != "attack":  # which is named as a whole
            opened |= {f"{name}.{key}": option for key, option in value.items()}
        else:
            opened[name] = value
    return opened


def _of_task(name: str) -> bool:
    return name.partition(".")[0] in TASK_FIELDS


def _task_names(flat: list[dict[str, Any]], dataset: str) -> list[str]:
    """List what names the tasks of a data set: alpha, settings that vary, options that vary between its cells."""
    cells = [settings for settings in flat if settings["dataset"] == dataset]
    names = [name for name in dict.fromkeys(name for settings in flat for name in settings) if _of_task(name)]
    return [
        name
        for name in names
        if name == "alpha" or (name != "dataset" and _varies(cells if "." in name else flat, name))
    ]


def _task(settings: dict[str, Any], names: list[str]) -> str:
    texts = [setting_text(name.rpartition(".")[2], settings[name]) for name in names if settings.get(name) is not None]
    return ", ".join([settings["dataset"], *texts])


def flat(settings: Settings) -> dict[str, Any]:
    """Settings with the method's own beside the common ones, under names that cannot clash; data by given names."""
    plain = settings.model_dump(exclude={"hp"})
    return {**plain, "dataset": dataset_name(settings), **{_HP + name: value for name, value in settings.hp.items()}}


def _varies(settings: list[dict[str, Any]], name: str) -> bool:
    values = {repr(value): value for value in (cell.get(name) for cell in settings)}  # a hundred times as fast as JSON
    return len({json.dumps(value, sort_keys=True) for value in values.values()}) > 1
