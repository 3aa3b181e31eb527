"""Admission of entries to a league: packed runs of one method whose cells and budgets are those of its study file.

A method is compared with others on the same tasks and seeds, tuned with the same budget. So an entry has every cell of
every task, with the setting that the tables of its trials choose, and its files agree with each other and with what the
settings make here (docs/league.md). That the numbers are those of the settings only computing them again can tell.
"""

import csv
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from bench.config.identity import differing
from bench.config.validation import complete, shown
from bench.errors import UserError
from bench.plugin import METHODS
from bench.results.cell_names import dataset_name, drawn, task_name
from bench.results.pack import TUNING
from bench.results.results import CellView, RunView
from bench.settings import Settings
from bench.store.store import FINISHED
from sweeps.space import Dimension
from sweeps.study import FINALISTS, Arm, Study, values_text
from sweeps.study_reader import searched_dimensions

LIST = "SHA256SUMS"
"""Beside the entries that come with the harness: their checksums."""
NOTHING_CHOSEN = "none: no trial came to its end"
"""What `tuning.csv` says of a draw of a task in which tuning chose no setting."""
_BOUND = "centralized"
Division = Literal["tuned", "default"]
"""Tuned with the league's budget, or the method's own defaults and the cell's one learning rate."""
Trial = tuple[tuple[str, ...], str, str]
"""A trial's setting as its table has it, its state, and its PM."""


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
        self._data_root, self._whole, self._tuned = data_root, whole, division == "tuned"
        self._listed = _listed({file.parent for file in names.values()})
        self._name = standing(study.name, division)
        self._draws = study.report_draws if self._tuned else []
        self._own_ranges = study.file.own_ranges
        self._most = FINALISTS if study.final_seeds else 1
        self._searched = [dimension for dimension in study.arms[0].dimensions if "." not in dimension.key]
        self._untuned = study.arms[0].cells[0].model_dump(include={dimension.key for dimension in self._searched})
        arms = study.arms if self._tuned else [arm for arm in study.arms if arm.draw <= 1]
        seeds = {arm: arm.report_seeds if self._tuned else tuple(study.file.default_seeds) for arm in arms}
        self._seeds = {arm: sorted(of_arm) for arm, of_arm in seeds.items()}
        self._tasks = {_task(arm.cells[0]): arm.task for arm in arms}
        self._arms = {(_task(arm.cells[0]), seed): arm for arm in arms for seed in seeds[arm]}
        self._cells = {(_task(cell), cell.seed): cell for arm in arms for cell in arm.reported({}, seeds[arm])}
        self._files = dict(names)

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
            self._check_cell(file, cell)
        if (draws := run.info.get("draws", [])) != self._draws:
            raise UserError(f"{file}: its draws of tuning are {draws}, and those of {self._name} are {self._draws}")
        try:
            self._check_tuning(file, run, labels[0])
        except (csv.Error, LookupError, TypeError, ValueError) as error:
            raise UserError(
                f"{file}: its tables of tuning are not what the harness writes ({type(error).__name__}: {error})"
            ) from None
        self._check_files(file, run)
        self._files[labels[0]] = file

    def _check_tuning(self, file: Path, run: RunView, label: str) -> None:
        """Check that all cells are there, with the setting that the tables of trials choose, or with the defaults."""
        dimensions = self._dimensions(file, run.cells, label)
        if not self._tuned:
            self._check_complete(file, run.cells, set())
            for cell in run.cells:
                self._check_defaults(f"{file}: {cell.name}", cell.settings)
            return
        self._check_settings(file, run.cells)
        budgets = self._check_budget(file, run, dimensions)
        untuned = {_task(arm.cells[0]) for arm, budget in budgets if budget["chosen"] == NOTHING_CHOSEN}
        self._check_complete(file, run.cells, untuned)
        expected = self._expected(run.cells)
        for number, (arm, budget) in enumerate(budgets):
            if arm not in expected:
                continue
            where, table = f"{file}: {arm.title}", run.path / f"trials_{number}.csv"
            trials = _checked_trials(where, table, len(dimensions), budget)
            settings = next((cell.settings for cell in run.cells if self._arm(cell.settings) is arm), None)
            if settings is not None:
                self._check_chosen(where, settings, dimensions, budget)
                self._check_best(where, table.name, settings, dimensions, trials)
            elif budget["chosen"] == NOTHING_CHOSEN and any(state == "complete" for _, state, _ in trials):
                raise UserError(f"{where}: it has no cell, and {table.name} has trials that came to their end")

    def _arm(self, settings: Settings) -> Arm | None:
        return self._arms.get((_task(settings), settings.seed))

    def _expected(self, cells: list[CellView]) -> list[Arm]:
        """The tasks that an entry needs, in each draw: all, or those that it has cells of."""
        tasks = {_task(cell.settings) for cell in cells}
        return [arm for arm in self._seeds if self._whole or _task(arm.cells[0]) in tasks]

    def _check_defaults(self, where: str, cell: Settings) -> None:
        """Check that nothing was tuned: the method's defaults, and the cell's one value of what a league searches."""
        defaults, _ = complete(METHODS, cell.method, {})
        common = cell.model_dump(include=set(self._untuned))
        for values, expected in ((cell.hp, defaults), (common, self._untuned)):  # both may have an `lr`
            for name, value in expected.items():
                if values.get(name) != value:
                    raise UserError(
                        f"{where}: {name} = {shown(values.get(name))} is not {shown(value)}; in the default division "
                        "nothing is tuned"
                    )

    def _dimensions(self, file: Path, cells: list[CellView], label: str) -> list[Dimension]:
        """Dimensions that are searched for a method, whose name must be the entry's."""
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
        return list(searched_dimensions(label, space, own_ranges=self._own_ranges))

    def _check_cell(self, file: Path, cell: CellView) -> None:
        settings, where = cell.settings, f"{file}: {cell.name}"
        if _task(settings) not in self._tasks:
            tasks = ", ".join(self._tasks.values())
            raise UserError(f"{where}: {self._name} has no such task. Its tasks: {tasks}")
        defined = self._cells.get((_task(settings), settings.seed))
        if defined is None:
            seeds = sorted({seed for task, seed in self._cells if task == _task(settings)})
            raise UserError(f"{where}: {self._name} has the seeds {_list(seeds)} only")
        given, due = self._fixed(settings), self._fixed(defined)
        if different := [name for name in Settings.model_fields if given.get(name) != due.get(name)]:
            here, there = settings.model_dump(mode="json"), defined.model_dump(mode="json")
            values = "; ".join(f"{name} is {shown(here[name])}, not {shown(there[name])}" for name in different)
            raise UserError(f"{where}: not a cell of {self._name}: {values}")
        for dimension in self._searched:
            if not dimension.has(value := getattr(settings, dimension.key)):
                raise UserError(
                    f"{where}: {dimension.key} = {value:g} is outside the range of {self._name}, {dimension.text}"
                )

    def _check_settings(self, file: Path, cells: list[CellView]) -> None:
        """Check that all seeds of a task and draw have the one setting that its tuning chose."""
        chosen: dict[str, Settings] = {}
        names = {"method", "hp", *(dimension.key for dimension in self._searched)}
        for cell in cells:
            arm = self._arms[_task(cell.settings), cell.settings.seed]
            first = chosen.setdefault(arm.name, cell.settings)
            if first.model_dump(include=names) != cell.settings.model_dump(include=names):
                raise UserError(
                    f"{file}: {cell.name}: its settings are not those of seed {first.seed}; tuning chooses one setting "
                    f"for all seeds of a task{' in a draw' if arm.draw else ''}"
                )

    def _check_budget(self, file: Path, run: RunView, dimensions: list[Dimension]) -> list[tuple[Arm, dict[str, str]]]:
        """Check the lines of `tuning.csv`, and return them in their order, each with its task."""
        if not (table := run.path / TUNING.name).exists():
            raise UserError(f"{file} has no {TUNING.name}: it was not tuned with the budget of {self._name}")
        budgets = _budgets(table)
        for arm in self._expected(run.cells):
            row = next((budgets[name] for name in _names(arm) if name in budgets), None)
            if row is None:
                raise UserError(f"{file}: {arm.title}: {TUNING.name} has no line of it, so it was not tuned")
            if row["trials"] != str(arm.trials):
                raise UserError(
                    f"{file}: {arm.title}: tuned with {row['trials']} trials; {self._name} has {arm.trials}"
                )
            for dimension in dimensions:
                if (range_text := f"{dimension.name}: {dimension.text}") not in row["range"].split("; "):
                    raise UserError(f"{file}: {arm.title}: tuned over {row['range']}; {self._name} has {range_text}")
        arms = {name: arm for arm in self._seeds for name in _names(arm)}
        lines = [(arms[name], row) for name, row in budgets.items() if name in arms]
        if len({arm for arm, _ in lines}) < len(lines):
            raise UserError(f"{file}: {TUNING.name} has a task twice, under two names")
        return lines

    def _check_complete(self, file: Path, cells: list[CellView], untuned: set[tuple[str, str]]) -> None:
        """Check that each cell is there once; an untuned task, with a draw that chose nothing, is left out whole."""
        for cell in cells:
            if cell.status.state not in FINISHED:
                reason = f"{cell.status.state}; {cell.status.reason}".rstrip("; ")
                raise UserError(f"{file}: {cell.name} is not done ({reason}); `bench league run` again computes it")
        left_out = untuned - {_task(cell.settings) for cell in cells}
        for arm in self._expected(cells):
            seeds = sorted(cell.settings.seed for cell in cells if self._arm(cell.settings) is arm)
            if seeds != self._seeds[arm] and _task(arm.cells[0]) not in left_out:
                raise UserError(
                    f"{file}: {arm.title}: it has {f'the seeds {_list(seeds)}' if seeds else 'no cell'}; an entry of "
                    f"{self._name} has the seeds {_list(self._seeds[arm])} of every task"
                )

    def _check_chosen(self, where: str, cell: Settings, dimensions: list[Dimension], budget: dict[str, str]) -> None:
        """Check that the setting is that of `tuning.csv`, and that the method's other settings are its defaults."""
        defaults, _ = complete(METHODS, cell.method, {})
        names = {dimension.name for dimension in dimensions if "." in dimension.key}
        for name in sorted(defaults.keys() - names):
            if cell.hp[name] != defaults[name]:
                value = shown(cell.hp[name])
                raise UserError(f"{where}: {name} = {value} was not searched, and is not {shown(defaults[name])}")
        for dimension in dimensions:
            if not dimension.has(value := _value(cell, dimension)):
                raise UserError(
                    f"{where}: {dimension.name} = {shown(value)} is outside the method's range, {dimension.text}"
                )
        if (setting := values_text({dimension.key: _value(cell, dimension) for dimension in dimensions})) != budget[
            "chosen"
        ]:
            raise UserError(f"{where}: its cells have {setting}, and {TUNING.name} chooses {budget['chosen']}")

    def _check_best(
        self, where: str, name: str, cell: Settings, dimensions: list[Dimension], trials: list[Trial]
    ) -> None:
        """Check that the setting is that of one of the best trials of the table with this name."""
        values = [_value(cell, dimension) for dimension in dimensions]
        complete = [(setting, float(pm)) for setting, state, pm in trials if state == "complete"]
        figures = [pm for setting, pm in complete if all(map(_same, setting, values))]
        if not figures:
            raise UserError(f"{where}: no trial of {name} that came to its end has the setting of its cells")
        better = {setting for setting, pm in complete if pm > max(figures)}
        if len(better) >= self._most:
            chosen = "the best is chosen" if self._most == 1 else f"one of the best {self._most} is chosen"
            raise UserError(f"{where}: {len(better)} settings of {name} are better than that of its cells; {chosen}")

    def _check_files(self, file: Path, run: RunView) -> None:
        """Check files as `bench verify --cells 0` does; a listed file of the harness was checked before."""
        if file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() in self._listed:
            return
        from bench.runs.verify.verify import check_files  # here, as it takes torch

        failed, _ = check_files([run], self._data_root)
        if failed:
            more = f"; so are {len(failed) - 1} other cells" if len(failed) > 1 else ""
            raise UserError(f"{file}: {failed[0].cell.name} is wrong: {failed[0].text}{more}")

    def _fixed(self, settings: Settings) -> dict[str, Any]:
        """The settings that every entry has in common, where they differ from their defaults."""
        free = {"method", "label", "hp", *(dimension.key for dimension in self._searched)}
        return {name: value for name, value in differing(settings).items() if name not in free}


def _task(settings: Settings) -> tuple[str, str]:
    """A task of the league: its data set and its case's name."""
    return settings.dataset, settings.case


def _names(arm: Arm) -> tuple[str, ...]:
    """Names that `tuning.csv` may give a task: some shipped entries are older than the present naming of labels."""
    cell = arm.cells[0]
    return drawn(task_name(cell), arm.draw), drawn(f"{dataset_name(cell)} {cell.case}", arm.draw)


def _value(cell: Settings, dimension: Dimension) -> Any:
    return cell.hp[dimension.name] if "." in dimension.key else getattr(cell, dimension.key)


def _same(text: str, value: Any) -> bool:
    """Whether a text in a table of trials, which has six decimals, is this value."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return abs(float(text) - value) < 1e-6 if plain else text == str(value)


def _list(seeds: list[int]) -> str:
    return ", ".join(map(str, seeds))


def _listed(folders: set[Path]) -> set[str]:
    """The checksums of the entries that come with the harness."""
    lists = [folder / LIST for folder in folders if (folder / LIST).exists()]
    return {line.split()[0] for file in lists for line in file.read_text(encoding="utf-8").splitlines() if line.strip()}


def _budgets(table: Path) -> dict[str, dict[str, str]]:
    """The lines of a `tuning.csv` by task."""
    budgets: dict[str, dict[str, str]] = {}
    row: dict[str, str] = {}
    with open(table, encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            if line["column"] == "task":
                row = budgets[line["note"]] = {}
            row[line["column"]] = line["value"] or line["note"]
    return budgets


def _checked_trials(where: str, table: Path, searched: int, budget: dict[str, str]) -> list[Trial]:
    """Read a table of trials, and check that it has as many as the budget says."""
    if not table.exists():
        raise UserError(f"{where}: {table.name}, the table of its trials, is not in the entry")
    trials = _trials(table, searched)
    pruned = sum(state == "pruned" for _, state, _ in trials)
    if (str(len(trials)), str(pruned)) != (budget["trials"], budget["pruned"]):
        raise UserError(
            f"{where}: {table.name} has {len(trials)} trials, {pruned} of them pruned; {TUNING.name} says "
            f"{budget['trials']} and {budget['pruned']}"
        )
    return trials


def _trials(table: Path, searched: int) -> list[Trial]:
    """Read each trial's setting (the first columns, of which two may have one name), state and PM."""
    trials: dict[str, list[tuple[str, str]]] = {}
    with open(table, encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            trials.setdefault(line["row"], []).append((line["column"], line["value"] or line["note"]))
    settings = []
    for columns in trials.values():
        rest = dict(columns[searched:])
        settings.append((tuple(text for _, text in columns[:searched]), rest["state"], rest["PM"]))
    return settings
