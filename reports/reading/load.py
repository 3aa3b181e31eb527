"""Reading of what a report is about: run folders as one list of cells and one table of figures."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import pandas as pd

from bench.errors import UserError
from bench.results.results import CellView, RunView, load_run, tidy
from bench.store import documents
from bench.store.data_record import record_of
from bench.store.store import FINISHED, CellState
from bench.store.tables import read_tables
from reports.reading.names import cases_of, flat, names_of
from reports.statistics.best import MARGIN
from reports.statistics.inference import least_deviation

SELECTION = {"honest": "validation", "paper": "best"}
"""Round that a protocol reports."""

_NAMES = ("row", "task", "seed")
_PREFERRED: tuple[CellState, ...] = (*FINISHED, "running", "interrupted", "failed", "waiting")
"""Which copy of a cell is shown where several runs have one."""
_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True)
class Figure:
    """The accuracy that a table or picture is about: of which model, on which tests, and its mean over clients."""

    name: str
    metric: str
    on: str
    mean: str

    @property
    def text(self) -> str:
        """Name and description for captions."""
        models = {"gm": "generic model", "pm": "personalized models", "lm": "models right after local training"}
        means = {
            "train_size": ", weighted by training size",
            "equal": ", every client counting the same",
            "benign": " of the benign clients, weighted by training size",
            "": "",
        }
        place = "common test set" if self.on == "global" else "clients' local test sets"
        return f"{self.name}: {models[self.metric]} on the {place}{means[self.mean]}"

    def of(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of a table of figures or metrics that are about it."""
        same = (table["metric"] == self.metric) & (table["on"] == self.on) & (table["mean"] == self.mean)
        return table[same]

    def accuracies(self, metrics: pd.DataFrame, split: str = "test") -> pd.DataFrame:
        """The rows of `metrics.csv` with this accuracy, whose `value` is in percent."""
        rows = self.of(metrics)
        rows = rows[(rows["split"] == split) & (rows["quantity"] == "accuracy")]
        return rows.assign(value=100 * rows["value"])


GM = Figure("GM", "gm", "global", "")
PM = Figure("PM", "pm", "local", "train_size")
PM_EQUAL = Figure("PM", "pm", "local", "equal")
HEADLINE = (GM, PM)
BENIGN = (Figure("GM benign", "gm", "local", "benign"), Figure("PM benign", "pm", "local", "benign"))


@dataclass(frozen=True)
class Cell:
    """One cell of a run.

    Attributes:
        view: its settings, status and files.
        row: its row in tables: the label, and the settings in which cells of that label differ, within a draw of tuning
            where there are several.
        task: its column: data set, and the settings in which tasks of the run differ.
        seed: as the settings have it, with the partition's own seed where there is one (`0/1`); methods are compared
            seed by seed.
        unit: the draw of tuning that chose its setting, where its study had several; else the partition. Seeds are
            repeated measurements of it. The seed where the task has one partition only.
        base: the task without its case.
        case: the grid's case that it is of; empty where there are not several.
        case_settings: the settings of its case, a text of each.
    """

    view: CellView
    row: str
    task: str
    seed: str
    unit: str
    base: str = ""
    case: str = ""
    case_settings: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """State as in the cell store, but `missing` where nothing was written."""
        return "missing" if self.view.status.state == "waiting" else self.view.status.state

    @property
    def trained(self) -> int:
        """Number of clients that train in a cell that is done: they have samples and are not held out as new."""
        sizes: list[int] = self.json("partition")["n_train"]
        return sum(n > 0 for n in sizes) - self.view.settings.new_clients

    @property
    def flat(self) -> dict[str, Any]:
        """Settings of the cell, the method's own as `hp.<name>`."""
        return flat(self.view.settings)

    def json(self, name: str) -> Any:
        """The content of `<name>.json` in the cell's folder; None where there is none or it is damaged.

        Where the data change, the partition is that of the last round.
        """
        record = documents.read(self.view.folder, f"{name}.json")
        return record_of(record, self.view.settings.rounds) if record and name == "partition" else record


@dataclass(frozen=True)
class Store:
    """Merged runs.

    Attributes:
        runs: content of each `run.json`, in the order given.
        cells: every cell once under each of its labels; where runs share one, the finished copy.
        figures: `bench.results.results.tidy` of the done cells, and `row`, `task`, `seed` of each; `derived` also where
            row's personalized models are its generic one in every cell.
        margin: percentage points; methods that differ by less count as equivalent.
        reference_case: the case that others are compared with; empty where cases are other tasks, or there are none.
        choice: which round is reported, a key of `reports.tables.accuracy.SELECTION_TEXT`; empty: as the protocol says.
    """

    runs: tuple[dict[str, Any], ...]
    cells: tuple[Cell, ...]
    figures: pd.DataFrame
    margin: float = MARGIN
    reference_case: str = ""
    choice: str = ""

    @cached_property
    def chosen(self) -> str:
        """The reported round: that of `choice`, and the last where there was no such data."""
        return self._there(self.choice or SELECTION[self.protocols[0]])

    @property
    def kept(self) -> str:
        """The round whose models are kept: the one that is reported where nobody asks for another."""
        return self._there(SELECTION[self.protocols[0]])

    def _there(self, selection: str) -> str:
        return selection if (self.figures["selection"] == selection).any() else "last"

    @cached_property
    def rows(self) -> list[str]:
        """Rows of tables, in the grid's order."""
        return list(dict.fromkeys(cell.row for cell in self.cells))

    @cached_property
    def tasks(self) -> list[str]:
        """Tasks, in the grid's order."""
        return list(dict.fromkeys(cell.task for cell in self.cells))

    @cached_property
    def cases(self) -> dict[str, "Store"]:
        """The cells of each case of the same data, in the grid's order; empty where cases are other tasks."""
        if not self.reference_case:
            return {}
        names = dict.fromkeys(cell.case for cell in self.cells)
        return {name: self._part([cell for cell in self.cells if cell.case == name]) for name in names}

    @property
    def protocols(self) -> list[str]:
        """Protocols, in the grid's order."""
        return list(dict.fromkeys(cell.view.settings.protocol for cell in self.cells))

    def of_protocol(self, protocol: str) -> "Store":
        """The cells of one protocol: rows of the two are never mixed."""
        part = self._part([cell for cell in self.cells if cell.view.settings.protocol == protocol])
        known = any(cell.case == self.reference_case for cell in part.cells)
        return replace(part, reference_case=self.reference_case if known else "")

    def _part(self, cells: list[Cell]) -> "Store":
        """Some of the cells, with their figures; they are of no cases."""
        protocols, tasks = {cell.view.settings.protocol for cell in cells}, {cell.task for cell in cells}
        figures = self.figures[self.figures["protocol"].isin(protocols) & self.figures["task"].isin(tasks)]
        return replace(self, cells=tuple(cells), figures=figures, reference_case="")

    def of(self, row: str, task: str) -> list[Cell]:
        """The cells, one per seed, behind one entry of a table."""
        return self._entries.get((row, task), [])

    def table(self, name: str) -> pd.DataFrame:
        """The CSV file `name` of all done cells below each other, with the `row`, `task`, `seed` of each."""
        cells = [cell for cell in self.cells if cell.state == "done"]
        table, lengths = read_tables((cell.view.folder for cell in cells), name)
        names = pd.DataFrame([(cell.row, cell.task, cell.seed) for cell in cells], columns=list(_NAMES))
        return pd.concat([table, names.loc[names.index.repeat(lengths)].reset_index(drop=True)], axis=1)

    def selected(self, task: str, selection: str = "") -> str:
        """Choose the round that a task reports: by `selection`, or the last where the task has no such figure."""
        selection = selection or self.chosen
        return selection if any(figure[-1] == selection for figure in self._measured[task]) else "last"

    def scores(self, row: str, task: str, figure: Figure, selection: str = "") -> dict[str, float]:
        """Accuracy in percent by unit, the mean of the unit's seeds; a diverged cell counts at chance level.

        A unit of which a seed is missing has the mean of the others: `complete` says whether that is so anywhere. It
        is that of the reported round, or of another `selection`.
        """
        units: dict[str, list[float]] = {}
        for seed, score in self.by_seed(row, task, figure, selection).items():
            units.setdefault(self._units[task][seed], []).append(score)
        return {unit: sum(scores) / len(scores) for unit, scores in units.items()}

    def units(self, row: str, figure: Figure, tasks: Sequence[str] | None = None) -> pd.DataFrame:
        """Accuracy in percent (`scores`), units x tasks, sorted; nan where there is none. Without tasks of all."""
        by_task = {task: self.scores(row, task, figure) for task in (self.tasks if tasks is None else tasks)}
        return pd.DataFrame({task: pd.Series(of, dtype=float) for task, of in by_task.items()}).sort_index()

    def complete(self, row: str, task: str, figure: Figure) -> bool:
        """Whether the row has this figure, or has diverged, in every seed that any row has on the task."""
        return self.by_seed(row, task, figure).keys() == self._units[task].keys()

    def whole(self, figure: Figure, tasks: Sequence[str] | None = None) -> list[str]:
        """List the rows that have this figure in all cells of the tasks; None: of all tasks."""
        tasks = self.tasks if tasks is None else tasks
        return [row for row in self.rows if all(self.complete(row, task, figure) for task in tasks)]

    def repeats(self, task: str) -> int:
        """Seeds of each partition; 1 where every seed has its own."""
        return max(Counter(self._units[task].values()).values())

    def chance(self, task: str) -> float:
        """Accuracy in percent of guessing one of the task's classes; nan where no cell has got as far as its data."""
        for cell in self.cells:
            if cell.task == task and (partition := cell.json("partition")) is not None:
                return 100 / len(partition["counts"][0])
        return math.nan

    def guesses(self) -> pd.DataFrame:
        """The cells that diverged, which count at chance level: row, task, seed, unit and accuracy in percent."""
        diverged = [cell for cell in self.cells if cell.state == "diverged"]
        rows = [(cell.row, cell.task, cell.seed, cell.unit, self.chance(cell.task)) for cell in diverged]
        return pd.DataFrame(rows, columns=[*_NAMES, "unit", "accuracy"])

    def least(self, task: str, on: str) -> float:
        """Least standard deviation in points that intervals suppose of a unit's accuracies, or differences of two.

        Args:
            task: a task.
            on: `global`, the common test set, or `local`, the clients' own tests.
        """
        return least_deviation(self._tested[task].get(on, math.inf), self.repeats(task))

    def by_seed(self, row: str, task: str, figure: Figure, selection: str = "") -> dict[str, float]:
        """Accuracy in percent by seed, as of `scores`; a diverged cell counts at chance level."""
        measured = (figure.metric, figure.on, figure.mean, self.selected(task, selection))
        accuracies = dict(self._scores.get((row, task, *measured), {}))
        diverged = [cell.seed for cell in self.of(row, task) if cell.state == "diverged"]
        if diverged and measured in self._measured[task] and not math.isnan(guess := self.chance(task)):
            accuracies |= dict.fromkeys(diverged, guess)
        return accuracies

    @cached_property
    def answers(self) -> dict[Any, Any]:
        """Answers that functions under `remembered` have given, by function and arguments."""
        return {}

    @cached_property
    def _units(self) -> dict[str, dict[str, str]]:
        """The seeds of each task, with their units."""
        units: dict[str, dict[str, str]] = {}
        for cell in self.cells:
            units.setdefault(cell.task, {})[cell.seed] = cell.unit
        return units

    @cached_property
    def _tested(self) -> dict[str, dict[str, int]]:
        """Numbers of test samples of each task, as its first cell that is done has them; without a common test set that
        is made of all clients' tests."""
        tested: dict[str, dict[str, int]] = {task: {} for task in self.tasks}
        for cell in self.cells:
            if cell.state == "done" and not tested[cell.task]:
                clients = cell.view.table("clients")
                last = clients[(clients["split"] == "test") & (clients["round"] == clients["round"].max())]
                local = int(last.groupby("metric")["samples"].sum().max())
                whole = (cell.json("partition") or {}).get("n_global_test")
                tested[cell.task] = {"local": local, "global": whole or local}
        return tested

    @cached_property
    def _measured(self) -> dict[str, set[tuple[str, ...]]]:
        """The figures that some row has on a task."""
        figures: dict[str, set[tuple[str, ...]]] = {task: set() for task in self.tasks}
        for _, task, *figure in self._scores:
            figures[task].add(tuple(figure))
        return figures

    @cached_property
    def _entries(self) -> dict[tuple[str, str], list[Cell]]:
        entries: dict[tuple[str, str], list[Cell]] = {}
        for cell in self.cells:
            entries.setdefault((cell.row, cell.task), []).append(cell)
        return entries

    @cached_property
    def _scores(self) -> dict[tuple[str, ...], dict[str, float]]:
        scores: dict[tuple[str, ...], dict[str, float]] = {}
        columns = ["row", "task", "metric", "on", "mean", "selection", "seed", "value"]
        for *key, seed, value in self.figures[columns].itertuples(index=False):
            scores.setdefault(tuple(key), {})[seed] = 100 * value
        return scores


def remembered(function: Callable[Concatenate[Store, _P], _T]) -> Callable[Concatenate[Store, _P], _T]:
    """Compute a function of a store once for the same arguments: a league's tables ask for the same comparisons of all
    methods dozens of times. The answer is shared, so that nobody may change it."""

    @wraps(function)
    def recall(store: Store, /, *args: _P.args, **options: _P.kwargs) -> _T:
        hashable = tuple(tuple(value) if isinstance(value, list) else value for value in args)
        key = (function, hashable, tuple(options.items()))
        if key not in store.answers:
            store.answers[key] = function(store, *args, **options)
        answer: _T = store.answers[key]
        return answer

    return recall


def load(runs: Sequence[Path | RunView]) -> Store:
    """Merge runs; those given as paths are read. Trials of a sweep are left out: they have no test figures.

    Raises:
        UserError: a folder is not a run, or two runs have different cells for one entry of a table.
    """
    views = [run if isinstance(run, RunView) else load_run(run) for run in runs]
    copies: dict[tuple[str, str, str], CellView] = {}
    for info, view in ((run.info, cell) for run in views for cell in run.cells if cell.settings.protocol != "tuning"):
        key = (view.id, view.label, _case(info, view.settings.case))
        known = copies.setdefault(key, view)
        if _PREFERRED.index(view.status.state) < _PREFERRED.index(known.status.state):
            copies[key] = view
    cases = cases_of(list(copies.values()), [case for _, _, case in copies])
    names = names_of(list(copies.values()), draws := _draws(views), cases)
    cells = tuple(Cell(view, *of_cell) for view, of_cell in zip(copies.values(), names, strict=True))
    # draws of tuning are units, as within one, seeds share the luck of tuning
    cells = tuple(replace(cell, unit=draws.get(cell.view.settings.seed, cell.unit)) for cell in cells)
    _refuse_mixed(cells)
    several, tidied = any(cases.of_cells), [(run, tidy(run)) for run in views]
    tables = [
        table.assign(case=[_case(run.info, case) if several else "" for case in table["case"]]) for run, table in tidied
    ]
    chosen = next(filter(None, (run.info.get("reference") for run in views)), "")
    reference = chosen if chosen in cases.of_cells else cases.of_cells[0] if cases.same_data else ""
    return Store(tuple(run.info for run in views), cells, _figures(tables, cells), reference_case=reference)


def _case(info: dict[str, Any], text: str) -> str:
    """The name of a run's case in the text that tells a cell apart, where data sets and varied settings stand too."""
    names = [name for name in info.get("cases", ()) if f", {name}, " in f", {text}, "]
    return max(names, key=len, default="")


def _draws(runs: Sequence[RunView]) -> dict[int, str]:
    """The draw of tuning of each seed, where studies had several.

    Raises:
        UserError: two runs have a seed in different draws.
    """
    draws: dict[int, str] = {}
    for run in runs:
        for number, seeds in enumerate(run.info.get("draws", []), start=1):
            for seed in seeds:
                if draws.setdefault(seed, f"draw {number}") != f"draw {number}":
                    raise UserError(
                        f"{run.path}: seed {seed} belongs to draw {number} of its tuning, and in another run to "
                        f"{draws[seed]}: report the runs one by one"
                    )
    return draws


def _refuse_mixed(cells: tuple[Cell, ...]) -> None:
    """One seed of one row and task is one cell, as another copy, of other code or data, would count its seed twice; and
    cells of one task and seed must have had one partition, as every comparison of methods is a paired one."""
    places: dict[tuple[str, ...], Cell] = {}
    partitions: dict[tuple[str, ...], Cell] = {}
    for cell in cells:
        protocol, hashed = cell.view.settings.protocol, cell.view.status.partition.get("hash", "")
        other = places.setdefault((protocol, cell.row, cell.task, cell.seed), cell)
        if other is not cell:
            raise UserError(
                f"{cell.row} ({cell.task}, seed {cell.seed}, protocol {protocol}) is there twice, as "
                f"{other.view.folder} and as {cell.view.folder}: the method's code, its data or the version changed in "
                "between. Report the runs one by one; `bench compare` shows what changed."
            )
        if cell.state == "done":
            other = partitions.setdefault((protocol, cell.task, cell.seed), cell)
            if hashed != (expected := other.view.status.partition.get("hash", "")):
                raise UserError(
                    f"{cell.row} and {other.row} ({cell.task}, seed {cell.seed}) were trained on different partitions "
                    f"of the data ({hashed} in {cell.view.folder}, {expected} in {other.view.folder}): the data or the "
                    "partition changed in between, so they cannot be compared. Run one of them again with --fresh."
                )


def _figures(frames: list[pd.DataFrame], cells: tuple[Cell, ...]) -> pd.DataFrame:
    """Figures of done cells only, each once, with the names of its cell.

    One that says nothing in some seed, as a mean of models may, is left out in all: others would be the lucky seeds.
    """
    finished = [cell for cell in cells if cell.state == "done"]
    rows = [(cell.view.id, cell.view.label, cell.case, cell.row, cell.task, cell.seed) for cell in finished]
    names = pd.DataFrame(rows, columns=["cell", "label", "case", *_NAMES])
    done = [of[(of["status"] == "done") & (of["value"].notna() | of["derived"].astype(bool))] for of in frames]
    figures = pd.concat([frame for frame in done if len(frame)] or done[:1])
    once = figures.drop_duplicates(["cell", "label", "case", "metric", "on", "mean", "selection"])
    merged = once.drop(columns="seed").merge(names, on=["cell", "label", "case"])
    of_seeds = ["protocol", "row", "task", "metric", "on", "mean", "selection"]
    known = merged["value"].notna().groupby([merged[name] for name in of_seeds]).transform("all")
    return _mark_generic(merged[known], {cell.view.id: cell.view for cell in cells})


_LEAST = 3
"""Cells: in fewer, equal accuracies may be chance, as those of two models that both make no error."""
_KEYS = ["protocol", "row", "task", "seed"]


def equal_models(figures: pd.DataFrame, views: Mapping[str, CellView]) -> pd.Series:
    """Find the cells whose PM is their GM in every score, at every round, of every client.

    Args:
        figures: as in `reports.reading.load.Store`; cells without one of the two models are left out, and so is
            derived PM.
        views: the cells by their ids.

    Returns:
        A truth value by protocol, row, task and seed.
    """
    # rounds chosen on validation data may differ: GM's is chosen on pooled samples, PM's on clients' accuracies
    local = figures[(figures["on"] == "local") & figures["selection"].isin(["last", "tail"])]
    keys = [*_KEYS, "cell", "mean", "selection"]
    personalized = local[(local["metric"] == "pm") & ~local["derived"].astype(bool)].set_index(keys)["value"]
    generic = local[local["metric"] == "gm"].set_index(keys)["value"]
    both = pd.concat([personalized, generic], axis=1, keys=["personalized", "generic"], join="inner").astype(float)
    same = pd.Series(np.isclose(both["personalized"], both["generic"], rtol=1e-9, atol=0), both.index, dtype=bool)
    likely = same.groupby([*_KEYS, "cell"], sort=False).all().reset_index("cell", name="same")
    return pd.Series(
        [bool(same) and _same_counts(views[cell]) for cell, same in likely.itertuples(index=False)],
        likely.index,
        dtype=bool,
    )


def _mark_generic(figures: pd.DataFrame, views: Mapping[str, CellView]) -> pd.DataFrame:
    """Mark PM as derived in the figures where all cells of a row and protocol have equal models.

    A method that trains personalized models on some tasks and finds the generic one good enough on others, as CFL does
    where it splits no cluster, keeps its figures: that is its answer there.
    """
    cells = equal_models(figures, views).groupby(["protocol", "row"])
    generic = set(cells.all()[lambda same: same & (cells.size() >= _LEAST)].index)
    of_row = pd.Series(list(zip(figures["protocol"], figures["row"], strict=True)), figures.index)
    derived = figures["derived"].astype(bool) | ((figures["metric"] == "pm") & of_row.isin(generic))
    return figures.assign(derived=derived)


def _same_counts(view: CellView) -> bool:
    clients = view.table("clients")
    keys = ["round", "client", "split"]
    personalized, generic = (clients[clients["metric"] == metric].set_index(keys)["correct"] for metric in ("pm", "gm"))
    return personalized.sort_index().equals(generic.sort_index())
