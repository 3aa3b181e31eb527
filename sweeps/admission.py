"""Which entries a league admits: packed runs of one method whose cells and budgets are those of its study file.

An entry may leave out cells (its method then has no rank). Everything else must be as defined, because a method is
compared with others on the same tasks and seeds, tuned with the same budget (docs/league.md).
"""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.config.validation import shown
from bench.errors import UserError
from bench.runs.pack import TUNING
from bench.runs.results import CellView, RunView, dataset_name, task_name
from bench.settings import Settings
from sweeps.study import Arm, Study


class Admission:
    """Checks the entries of one league, one after the other.

    Args:
        study: the league's definition, with any method.
        names: of entries that come with the harness, which no other file may have.
    """

    def __init__(self, study: Study, names: Mapping[str, Path]) -> None:
        self._name = study.name
        self._arms = {_task(arm.cells[0]): arm for arm in study.arms}
        self._searched = [one for one in study.arms[0].dimensions if "." not in one.key]
        self._cells = {
            (_task(cell), cell.seed): self._fixed(cell)
            for arm in study.arms
            for cell in arm.reported({}, study.file.report_seeds)
        }
        self._files = dict(names)

    @property
    def names(self) -> list[str]:
        """Of the entries that come with the harness and of those that were admitted."""
        return sorted(self._files)

    def admit(self, file: Path, run: RunView) -> None:
        """Check an entry and remember its name.

        Args:
            file: where it lies, for messages.
            run: what `bench.runs.pack.unpack` made of it.

        Raises:
            UserError: it is not an entry of this league, or another one has its name.
        """
        labels = list(dict.fromkeys(cell.label for cell in run.cells))
        if len(labels) != 1:
            raise UserError(f"{file}: an entry is of one method, and this one has {', '.join(labels) or 'none'}")
        if (other := self._files.get(labels[0], file)) != file:
            raise UserError(
                f"{file}: there is an entry {labels[0]!r} already, {other}. Give your method another name; if it is to "
                "be the same entry, remove one of the files (`bench verify` compares results)"
            )
        for cell in run.cells:
            self._check_cell(file, cell)
        self._check_settings(file, run.cells)
        self._check_budget(file, run)
        self._files[labels[0]] = file

    def _check_cell(self, file: Path, cell: CellView) -> None:
        settings, where = cell.settings, f"{file}: {cell.name}"
        if _task(settings) not in self._arms:
            tasks = ", ".join(arm.task for arm in self._arms.values())
            raise UserError(f"{where}: {self._name} has no such task. Its tasks: {tasks}")
        defined, found = self._cells.get((_task(settings), settings.seed)), self._fixed(settings)
        if defined is None:
            raise UserError(f"{where}: {self._name} has the seeds {', '.join(map(str, self._seeds()))} only")
        if different := [name for name in defined if found[name] != defined[name]]:
            values = "; ".join(f"{name} is {shown(found[name])}, not {shown(defined[name])}" for name in different)
            raise UserError(f"{where}: not a cell of {self._name}: {values}")
        for one in self._searched:
            if not one.has(value := getattr(settings, one.key)):
                raise UserError(f"{where}: {one.key} = {value:g} is outside the range of {self._name}, {one.text}")

    def _check_settings(self, file: Path, cells: list[CellView]) -> None:
        """All seeds of a task have the one setting that its tuning chose."""
        chosen: dict[tuple[str, str], Settings] = {}
        names = {"method", "hp", *(one.key for one in self._searched)}
        for cell in cells:
            first = chosen.setdefault(_task(cell.settings), cell.settings)
            if first.model_dump(include=names) != cell.settings.model_dump(include=names):
                raise UserError(
                    f"{file}: {cell.name}: its settings are not those of seed {first.seed}; tuning chooses one setting "
                    "for all seeds of a task"
                )

    def _check_budget(self, file: Path, run: RunView) -> None:
        if not (table := run.path / TUNING.name).exists():
            raise UserError(f"{file} has no {TUNING.name}: it was not tuned with the budget of {self._name}")
        budgets = _budgets(table)
        for task in dict.fromkeys(_task(cell.settings) for cell in run.cells):
            arm = self._arms[task]
            row = next((budgets[name] for name in _names(arm) if name in budgets), None)
            if row is None:
                raise UserError(f"{file}: {arm.task}: {TUNING.name} has no line of it, so it was not tuned")
            if row["trials"] != str(arm.trials):
                raise UserError(f"{file}: {arm.task}: tuned with {row['trials']} trials; {self._name} has {arm.trials}")
            for one in self._searched:
                if (said := f"{one.name}: {one.text}") not in row["range"].split("; "):
                    raise UserError(f"{file}: {arm.task}: tuned over {row['range']}; {self._name} has {said}")

    def _fixed(self, settings: Settings) -> dict[str, Any]:
        """The settings that every entry has in common."""
        return settings.model_dump(exclude={"method", "label", "hp", *(one.key for one in self._searched)})

    def _seeds(self) -> list[int]:
        return sorted({seed for _, seed in self._cells})


def _task(settings: Settings) -> tuple[str, str]:
    """A task of the league: its data set and its case's name."""
    return settings.dataset, settings.case


def _names(arm: Arm) -> tuple[str, ...]:
    """What `tuning.csv` may call a task: some shipped entries are older than the present way to name a labelled one."""
    cell = arm.cells[0]
    return task_name(cell), f"{dataset_name(cell)} {cell.case}"


def _budgets(table: Path) -> dict[str, dict[str, str]]:
    """The lines of a `tuning.csv` by task, each with its number or its text by column."""
    budgets: dict[str, dict[str, str]] = {}
    row: dict[str, str] = {}
    with open(table, encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            if line["column"] == "task":
                row = budgets[line["note"]] = {}
            row[line["column"]] = line["value"] or line["note"]
    return budgets
