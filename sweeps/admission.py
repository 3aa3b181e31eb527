"""Admission of entries to a league: packed runs of one method whose cells and budgets are those of its study file.

A method is compared with others on the same tasks and seeds, tuned with the same budget. So an entry has every cell of
every task, with the setting that the tables of its trials choose, and its files agree with each other and with what the
settings make here (docs/league.md). That the numbers are those of the settings only computing them again can tell.
"""

import csv
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from bench.config.identity import differing
from bench.config.validation import complete, shown
from bench.errors import UserError
from bench.plugin import METHODS
from bench.results.cell_names import dataset_name, drawn, task_name
from bench.results.pack import TRIALS, TUNING
from bench.results.results import CellView, RunView
from bench.settings import Settings
from bench.store.store import FINISHED
from reports.league.tuning import Trial, budgets, trials
from sweeps.space import Dimension, is_number
from sweeps.study import FINALISTS, Arm, Study, values_text
from sweeps.study_reader import searched_dimensions

LIST = "SHA256SUMS"
"""Beside the entries that come with the harness: their checksums."""
NOTHING_CHOSEN = "none: no trial came to its end"
"""What `tuning.csv` says of a draw of a task in which tuning chose no setting."""
_BOUND = "centralized"
Division = Literal["tuned", "default"]
"""Tuned with the league's budget, or the method's own defaults and the cell's one learning rate."""


def standing(study: str, division: Division) -> str:
    """Name of a league's division: of its runs' folder and of its entries."""
    return study if division == "tuned" else f"{study}_{division}"


class Admission:
    """Checks the entries of one league, one after the other.

    Args:
        study: the league's definition, with any method.
        names: of entries that come with the harness, which no other file may have. Whether their files agree was
            checked when their checksums were listed.
        data_root: folder of the data files.
        whole: whether an entry needs every task; of each that it has it needs every seed.
        division: entries of the default division have no tables of tuning.
    """

    def __init__(
        self,
        study: Study,
        names: Mapping[str, Path],
        data_root: Path = Path("data"),
        *,
        whole: bool = True,
        division: Division = "tuned",
    ) -> None:
        self._study, self._data_root, self._whole, self._tuned = study, data_root, whole, division == "tuned"
        self._files = dict(names)
        self._listed = _listed({file.parent for file in names.values()})
        self._name = standing(study.name, division)
        self._draws = study.report_draws if self._tuned else []
        self._searched = [dimension for dimension in study.arms[0].dimensions if "." not in dimension.key]
        arms = study.arms if self._tuned else [arm for arm in study.arms if arm.draw <= 1]
        self._seeds = {arm: sorted(arm.report_seeds if self._tuned else study.file.default_seeds) for arm in arms}
        self._arms = {(_task(arm.cells[0]), seed): arm for arm, seeds in self._seeds.items() for seed in seeds}

    @property
    def names(self) -> list[str]:
        """Names of the entries that come with the harness and of those that were admitted."""
        return sorted(self._files)

    def admit(self, file: Path, run: RunView) -> None:
        """Check an entry and remember its name.

        Args:
            file: the entry's file, for messages.
            run: the run that `bench.results.pack.unpack` made of it.

        Raises:
            UserError: the file is no entry of this league, or another entry has its name.
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
            if self._arm(cell.settings) is None:
                raise UserError(
                    f"{file}: {cell.name}: {self._name} has no such task with seed {cell.settings.seed}; its tasks and "
                    f"seeds are those of sweeps/studies/{self._study.name}.yaml"
                )
        dimensions = self._dimensions(file, run.cells)
        if (draws := run.info.get("draws", [])) != self._draws:
            raise UserError(f"{file}: its draws of tuning are {draws}, and those of {self._name} are {self._draws}")
        try:
            for arm in self._seeds:
                self._check_settings(file, arm, self._of(run.cells, arm), dimensions)
            self._check_tuning(file, run, dimensions)
        except (csv.Error, LookupError, OSError, TypeError, ValueError) as error:
            raise UserError(
                f"{file}: its settings or tables are not what the harness writes ({type(error).__name__}: {error})"
            ) from None
        self._check_files(file, run)
        self._files[labels[0]] = file

    def _arm(self, settings: Settings) -> Arm | None:
        return self._arms.get((_task(settings), settings.seed))

    def _of(self, cells: list[CellView], arm: Arm) -> list[CellView]:
        """The cells of a task and draw."""
        return [cell for cell in cells if self._arm(cell.settings) is arm]

    def _dimensions(self, file: Path, cells: list[CellView]) -> list[Dimension]:
        """Dimensions that are searched for a method, whose name must be the entry's."""
        label = cells[0].label
        if other := next((cell.settings.method for cell in cells if cell.settings.method != label), None):
            raise UserError(
                f"{file}: the entry is called {label!r} and its method is {other!r}: give it the method's name"
            )
        if label not in METHODS.names():
            raise UserError(
                f"{file}: there is no method {label!r} here, so nothing can be checked: give the file that registers "
                "it, --plugin FILE.py"
            )
        if getattr(METHODS.declaration(label), "bound", False) and label != _BOUND:
            raise UserError(f"{file}: {label} sees all clients' data (`bound = True`), which no method of a league may")
        space = {dimension.key: dimension for dimension in self._searched}
        return list(searched_dimensions(label, space, own_ranges=self._study.file.own_ranges))

    def _check_settings(self, file: Path, arm: Arm, cells: list[CellView], dimensions: list[Dimension]) -> None:
        """Check that cells of a task and draw are the league's, all with the searched values of the first of them.

        In the default division nothing is searched: these are the method's defaults, and the league's own.
        """
        if not cells:
            return
        first = cells[0].settings
        defaults, _ = complete(METHODS, first.method, {})
        usual = arm.cells[0].model_copy(update={"method": first.method, "label": first.label, "hp": defaults})
        values = {dimension.key: _value(first, dimension.key) for dimension in dimensions} if self._tuned else {}
        expected = replace(arm, cells=(usual,)).reported(values, [cell.settings.seed for cell in cells])
        for cell, wanted in zip(cells, expected, strict=True):
            here, there = _flat(differing(cell.settings), first.method), _flat(differing(wanted), first.method)
            if here != there:
                given, due = (_flat(of.model_dump(mode="json"), first.method) for of in (cell.settings, wanted))
                texts = "; ".join(
                    f"{name} is {shown(given.get(name))}, not {shown(value)}"
                    for name, value in due.items()
                    if here.get(name) != there.get(name)
                )
                raise UserError(f"{file}: {cell.name}: not a cell of {self._name}: {texts}")

    def _check_tuning(self, file: Path, run: RunView, dimensions: list[Dimension]) -> None:
        """Check that all cells are there, and in the tuned division that tuning chose their settings."""
        lines = self._budgets(file, run, dimensions) if self._tuned else []
        untuned = {_task(arm.cells[0]) for arm, budget in lines if budget["chosen"] == NOTHING_CHOSEN}
        self._check_complete(file, run.cells, untuned)
        expected = self._expected(run.cells)
        for number, (arm, budget) in enumerate(lines):
            if arm in expected:
                where, table = f"{file}: {arm.title}", TRIALS.replace("*", str(number))
                ended = _ended(where, table, trials(run.path, number), budget, len(dimensions))
                if cells := self._of(run.cells, arm):
                    self._check_chosen(where, table, cells[0].settings, dimensions, budget, ended)
                elif budget["chosen"] == NOTHING_CHOSEN and ended:
                    raise UserError(f"{where}: it has no cell, and {table} has trials that came to their end")

    def _expected(self, cells: list[CellView]) -> list[Arm]:
        """The tasks that an entry needs, in each draw: all, or those that it has cells of."""
        tasks = {_task(cell.settings) for cell in cells}
        return [arm for arm in self._seeds if self._whole or _task(arm.cells[0]) in tasks]

    def _budgets(self, file: Path, run: RunView, dimensions: list[Dimension]) -> list[tuple[Arm, dict[str, str]]]:
        """Check the lines of `tuning.csv`, and return them in their order, each with its task."""
        arms = {name: arm for arm in self._seeds for name in _names(arm)}
        lines = [(arms[budget["task"]], budget) for budget in budgets(run.path) if budget["task"] in arms]
        for arm in self._expected(run.cells):
            of_arm = [budget for of, budget in lines if of is arm]
            if len(of_arm) != 1:
                raise UserError(f"{file}: {arm.title}: {TUNING.name} has {len(of_arm)} lines of it; it should have one")
            if (count := of_arm[0]["trials"]) != str(arm.trials):
                raise UserError(f"{file}: {arm.title}: tuned with {count} trials; {self._name} has {arm.trials}")
            for dimension in dimensions:
                if (text := f"{dimension.name}: {dimension.text}") not in of_arm[0]["range"].split("; "):
                    raise UserError(f"{file}: {arm.title}: tuned over {of_arm[0]['range']}; {self._name} has {text}")
        return lines

    def _check_complete(self, file: Path, cells: list[CellView], untuned: set[tuple[str, str]]) -> None:
        """Check that each cell is there once; an untuned task, with a draw that chose nothing, is left out whole."""
        for cell in cells:
            if cell.status.state not in FINISHED:
                reason = f"{cell.status.state}; {cell.status.reason}".rstrip("; ")
                raise UserError(f"{file}: {cell.name} is not done ({reason}); `bench league run` again computes it")
        left_out = untuned - {_task(cell.settings) for cell in cells}
        for arm in self._expected(cells):
            seeds = sorted(cell.settings.seed for cell in self._of(cells, arm))
            if seeds != self._seeds[arm] and _task(arm.cells[0]) not in left_out:
                raise UserError(
                    f"{file}: {arm.title}: it has the seeds {_list(seeds) or 'none'}; an entry of {self._name} has the "
                    f"seeds {_list(self._seeds[arm])} of every task"
                )

    def _check_chosen(
        self,
        where: str,
        table: str,
        cell: Settings,
        dimensions: list[Dimension],
        budget: dict[str, str],
        ended: list[tuple[tuple[str, ...], float]],
    ) -> None:
        """Check that the setting of a task and draw is that of `tuning.csv` and one of the best trials."""
        values = {dimension.key: _value(cell, dimension.key) for dimension in dimensions}
        for dimension in dimensions:
            if not dimension.has(value := values[dimension.key]):
                raise UserError(f"{where}: {dimension.name} = {shown(value)} is outside its range, {dimension.text}")
        if (chosen := values_text(values)) != budget["chosen"]:
            raise UserError(f"{where}: its cells have {chosen}, and {TUNING.name} chooses {budget['chosen']}")
        figures = [pm for setting, pm in ended if all(map(_same, setting, values.values()))]
        if not figures:
            raise UserError(f"{where}: no trial of {table} that came to its end has the setting of its cells")
        better = {setting for setting, pm in ended if pm > max(figures)}
        most = FINALISTS if self._study.file.further_seeds else 1
        if len(better) >= most:
            raise UserError(
                f"{where}: {len(better)} settings of {table} are better than that of its cells; one of the best {most} "
                "is chosen"
            )

    def _check_files(self, file: Path, run: RunView) -> None:
        """Check files as `bench verify --cells 0` does; a listed file of the harness was checked before."""
        if file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() in self._listed:
            return
        from bench.runs.verify.verify import check_files  # here, as it takes torch

        failed, _ = check_files([run], self._data_root)
        if failed:
            raise UserError(f"{file}: {failed[0].cell.name} is wrong: {failed[0].text} (wrong cells: {len(failed)})")


def _task(settings: Settings) -> tuple[str, str]:
    """A task of the league: its data set and its case's name."""
    return settings.dataset, settings.case


def _names(arm: Arm) -> tuple[str, ...]:
    """Names that `tuning.csv` may give a task: some shipped entries are older than the present naming of labels."""
    cell = arm.cells[0]
    return drawn(task_name(cell), arm.draw), drawn(f"{dataset_name(cell)} {cell.case}", arm.draw)


def _flat(settings: dict[str, Any], method: str) -> dict[str, Any]:
    """The settings with those of the method beside the others, as `method.name`."""
    of_method = {f"{method}.{name}": value for name, value in settings.get("hp", {}).items()}
    return {name: value for name, value in settings.items() if name != "hp"} | of_method


def _value(cell: Settings, key: str) -> Any:
    _, of_method, name = key.partition(".")
    return cell.hp[name] if of_method else getattr(cell, key)


def _same(text: str, value: Any) -> bool:
    """Whether a text in a table of trials, which has six decimals, is this value."""
    return abs(float(text) - value) < 1e-6 if is_number(value) else text == str(value)


def _list(seeds: Iterable[int]) -> str:
    return ", ".join(map(str, seeds))


def _listed(folders: set[Path]) -> set[str]:
    """The checksums of the entries that come with the harness."""
    lists = [folder / LIST for folder in folders if (folder / LIST).exists()]
    return {line.split()[0] for file in lists for line in file.read_text(encoding="utf-8").splitlines() if line.strip()}


def _ended(
    where: str, table: str, rows: Mapping[str, Trial], budget: dict[str, str], searched: int
) -> list[tuple[tuple[str, ...], float]]:
    """The setting and the PM of each trial that came to its end; there are as many trials as the budget says."""
    settings = [tuple(text for _, text in columns[:searched]) for columns in rows.values()]
    results = [dict(columns[searched:]) for columns in rows.values()]
    pruned = sum(result["state"] == "pruned" for result in results)
    if (str(len(results)), str(pruned)) != (budget["trials"], budget["pruned"]):
        raise UserError(
            f"{where}: {table} has {len(results)} trials, {pruned} of them pruned; {TUNING.name} says "
            f"{budget['trials']} and {budget['pruned']}"
        )
    both = zip(settings, results, strict=True)
    return [(setting, float(result["PM"])) for setting, result in both if result["state"] == "complete"]
