"""A study's part of the report: budgets, chosen settings, all trials, and the pictures."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from bench.config import yaml_lines
from bench.errors import UserError
from bench.plugin import allow
from bench.results.cell_names import dataset_name
from bench.runs.run_folder import STUDY
from bench.store import documents, inside
from reports.page.section import Section
from reports.pictures.canvas import Picture
from reports.published.comparison import PublishedTable, published_table
from reports.tables.table import Column, Table, TableEntry, number
from sweeps import figures
from sweeps.cells import with_data
from sweeps.fair import Chosen, budget_table, choose, trials_table
from sweeps.run import open_studies
from sweeps.storage import storage_problems, study_storage
from sweeps.study import Study, values_text
from sweeps.study_reader import read_study

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial


_FEWEST = 2


class _StudyFile(BaseModel):
    """The content of `study.json`."""

    model_config = ConfigDict(extra="allow", strict=True)

    source: str
    file: str
    stem: str
    overrides: list[str]
    trials: int | None
    storage: str | None
    data: dict[str, str] = {}


def tuned_for(run: Path) -> list[str]:
    """Metrics that the study of a run folder maximised, `gm`, `pm` or both; none for a run of a grid."""
    try:
        _, study = _read(run)
    except UserError:
        return []  # `run_sections` says why
    return list(study.metrics) if study else []


def run_sections(run: Path, storage: str | None = None) -> list[Section]:
    """The parts of the study that filled a run folder; none for a run of a grid.

    A study from somebody else runs no code and opens no database but the one in the run's folder: where it needs
    another one, or a plug-in, the part says which option allows it.

    Args:
        run: the run's folder.
        storage: where the user says that the trials are.

    Raises:
        UserError: the study's storage cannot be used.
    """
    try:
        elsewhere, study = _read(run)
    except UserError as error:
        return [_not_shown(str(error).splitlines()[0])]
    if study is None:
        return []
    if elsewhere and not storage:
        return [_not_shown(f"its trials are in {elsewhere}, which --storage allows to open.")]
    inside.check_place(run, run / "study.db")
    address = storage or study_storage(run)
    studies = open_studies(study, address)
    with storage_problems(address):
        if not any(studies[arm.name].get_trials(deepcopy=False) for arm in study.arms):
            return [_not_shown("the trials are of an earlier code of the methods, or of the grid: tune anew.")]
        return sections(study, studies, run)


def _not_shown(reason: str) -> Section:
    return Section("tuning", "Tuning", f"The study is not shown: {reason}")


def _read(run: Path) -> tuple[str | None, Study | None]:
    """Find where else than in the run's folder the trials of its study are, and the study; none for a run of a grid.

    Raises:
        UserError: the file is damaged, the study cannot be read here, or needs a plug-in that was not loaded before.
    """
    content = documents.read_json(run / STUDY)
    if content is None:
        return None, None
    file = documents.checked(_StudyFile, content, run / STUDY)
    with allow(lambda path: False):
        document = yaml_lines.parse(file.source, file.file)
        study = read_study(document, file.source, file.stem, file.overrides, file.trials)
        return file.storage, with_data(study, file.data)


def sections(study: Study, studies: "dict[str, optuna.Study]", run: Path) -> list[Section]:
    """Sections on tuning, with the sensitivity to searched settings folded in them."""
    choices = choose(study, studies, run)
    shown = [choice for choice in choices if choice.counts.get("complete", 0) >= _FEWEST]
    tuning = Section(
        "tuning",
        "Tuning",
        study.file.description,
        tables=(budget_table(study, choices),),
        pictures=(figures.history(study, choices),),
        more=tuple(trials_table(choice, f"trials_{at}") for at, choice in enumerate(choices)),
    )
    printed = study.grid.published
    beside = (published_points(choices, published_table(printed)),) if printed and choices[0].arm.points else ()
    sensitivity = Section(
        "tuning_sensitivity", "Sensitivity of the searched settings", tables=beside,
        pictures=tuple(_pictures(study, studies, shown)),
    )  # fmt: skip
    return [replace(tuning, parts=(sensitivity,)) if sensitivity.pictures else tuning]


def _pictures(study: Study, studies: "dict[str, optuna.Study]", shown: Sequence[Chosen]) -> Iterator[Picture]:
    ones = [choice for choice in shown if choice.arm.points and len(choice.arm.dimensions) == 1]
    if ones:
        yield figures.curves(ones)
    picture = figures.importances(study, studies, shown)
    if picture:
        yield picture
    for at, choice in enumerate(shown):
        if len(study.metrics) > 1:
            yield figures.front(choice, f"front_{at}")
        if choice.arm.points and len(choice.arm.dimensions) == 2:
            yield figures.heat_map(choice, f"heat_map_{at}")
        if choice not in ones:
            yield figures.slices(choice, f"slices_{at}")


def published_points(choices: Sequence[Chosen], printed: PublishedTable) -> Table:
    """The points of a grid study beside the printed numbers of the same settings."""
    columns = tuple(Column(name, metric) for metric in ("GM", "PM") for name in ("paper (test)", "ours (validation)"))
    rows = tuple(
        (
            ", ".join([choice.arm.title, values_text(trial.params)]),
            tuple(entry for metric in ("GM", "PM") for entry in _pair(choice, trial, metric, printed)),
        )
        for choice in choices
        for trial in choice.trials
    )
    cell = choices[0].arm.cells[0]
    setting = ", ".join(f"{name} {value}" for name, value in printed.setting.items())
    caption = (
        f"{printed.paper}, {printed.number}, test accuracy on {printed.dataset} ({setting}). Ours: validation accuracy "
        f"on {dataset_name(cell)} ({cell.model}, {cell.clients} clients, {cell.rounds} rounds), mean over the tuning "
        "seeds: another problem, so compare where the best value lies and how steep the curve is, not the numbers."
    )
    return Table("published_points", f"Beside {printed.number}", caption, "Setting", columns, rows)


def _pair(choice: Chosen, trial: "FrozenTrial", metric: str, printed: PublishedTable) -> tuple[TableEntry, TableEntry]:
    setting: dict[str, Any] = {key.rpartition(".")[2]: value for key, value in trial.params.items()}
    setting["alpha"] = choice.arm.cells[0].alpha
    paper = next(
        (
            row.mean
            for row in printed.rows
            if row.metric == metric and all(setting.get(axis) == value for axis, value in row.axes.items())
        ),
        None,
    )
    ours = trial.user_attrs.get(metric.lower())
    return number(math.nan if paper is None else paper), number(math.nan if ours is None else 100 * ours)
