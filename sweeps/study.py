"""A study: what is searched over which grid, by which sampler, on which seeds. `study_reader.py` reads its file."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from bench.config.grid import Grid
from bench.config.identity import FILES
from bench.config.listed import write_listed
from bench.results.cell_names import drawn, task_name
from bench.results.reported_round import COSTS
from bench.settings import Settings
from sweeps.space import Dimension, settings_at

FINALISTS = 3
"""Best trials of a method and task that are run again on further seeds."""

Metric = Literal["pm", "gm"]
Seed = Annotated[int, Field(ge=0)]


class StudyFile(BaseModel):
    """The keys of a study file. Unknown keys are errors.

    Attributes:
        grid: name or path of the base grid, or the grid itself; each of its tasks and methods is tuned by itself.
        set: overrides of the grid, as `--set`.
        space: range by setting; a method of which it names nothing is searched over the ranges in its own file.
        own_ranges: `false`: no method is searched over the ranges in its own file; what `space` names is all.
        sampler_seed: of the sampler's draws, which the task and what is searched seed, too, and no name of a file.
        trials: for every method and task; sampler `grid`: by default every point once.
        seeds: of the trials.
        final_seeds: of the further runs of the best three trials, before one is chosen; by default as many as `seeds`,
            the next numbers that neither they nor the report has; `[]`: none run again.
        report_seeds: of the reported runs of the best setting.
        draws: independent draws of tuning. The three lists of seeds are cut into as many parts, in their order; each
            draw tunes on its own parts and reports the setting that it chose on its own part, so that the luck of
            tuning is in the spread of the results.
        default_seeds: of a league's default division: runs of the methods' defaults, untuned.
        objective: of which model the validation accuracy, or the score of the grid's `select_by`, is tuned for; both:
            their Pareto front.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = ""
    description: str = ""
    grid: str | dict[str, Any]
    set: dict[str, Any] = Field(default_factory=dict)
    space: dict[str, Any] = Field(default_factory=dict)
    own_ranges: bool = True
    sampler: Literal["tpe", "grid", "random", "nsga2"] = "tpe"
    sampler_seed: int | str = 0
    pruner: Literal["none", "median", "halving"] = "median"
    trials: int | None = Field(None, ge=1)
    seeds: list[Seed] = Field(min_length=2)
    final_seeds: list[Seed] | None = None
    report_seeds: list[Seed] = Field(min_length=1)
    draws: int = Field(1, ge=1)
    default_seeds: list[Seed] = Field(default_factory=list)
    objective: Metric | list[Metric] = "pm"

    @property
    def further_seeds(self) -> list[int]:
        """The tuning seeds of the best trials' further runs, as many as `seeds` where the file names none."""
        if self.final_seeds is not None:
            return self.final_seeds
        first = max(*self.seeds, *self.report_seeds, *self.default_seeds) + 1
        return list(range(first, first + len(self.seeds)))


@dataclass(frozen=True, eq=False)
class Arm:
    """One method on one task, in one draw of tuning: what one Optuna study tunes.

    Attributes:
        name: of the Optuna study; it ends with a digest of everything but the number of trials.
        label: of the method; `task`: what it is tuned on.
        cells: one per tuning seed, before any trial's settings.
        dimensions: what is searched.
        points: sampler `grid`: the settings to try, in order; else empty.
        trials: how many.
        final_seeds: of the further runs of the best trials.
        report_seeds: of the reported runs.
        draw: number of the draw, from 1; 0: the study has a single one.
    """

    name: str
    label: str
    task: str
    cells: tuple[Settings, ...]
    dimensions: tuple[Dimension, ...]
    points: tuple[dict[str, Any], ...]
    trials: int
    final_seeds: tuple[int, ...]
    report_seeds: tuple[int, ...]
    draw: int = 0

    @property
    def title(self) -> str:
        """The task and the draw, as tables name them."""
        return drawn(self.task, self.draw)

    @property
    def draws(self) -> str:
        """Text on which the sampler's draws depend beside its seed and the trial's number: the task and the space.

        The method's name and code are not in it: one method under two names is tuned alike, a change of code that
        alters no number alters no trial, and methods with the same ranges try the same settings first. Neither are the
        names of the data's files, which a user may give to copies.
        """
        cell = self.cells[0]
        options = {key: value for key, value in cell.dataset_options.items() if key not in FILES}
        task = drawn(task_name(cell.model_copy(update={"dataset_options": options})), self.draw)
        return json.dumps([task, [[dimension.name, dimension.text] for dimension in self.dimensions]])

    @property
    def score(self) -> str:
        """Name of the validation score that its trials are compared by; larger values are better."""
        name = self.cells[0].select_by
        return f"minus {name}" if name in COSTS else name

    @property
    def defaults(self) -> dict[str, Any] | None:
        """Settings of trial 0: those of the grid, and the method's own as in its paper (sampler `grid`: as listed).

        None where the space leaves one of them out.
        """
        cell = self.cells[0]
        values = {
            dimension.key: cell.hp[dimension.name] if "." in dimension.key else getattr(cell, dimension.key)
            for dimension in self.dimensions
        }
        return values if all(dimension.has(values[dimension.key]) for dimension in self.dimensions) else None

    def trial(self, number: int, values: dict[str, Any]) -> list[Settings]:
        """Make the cells of a trial, one per tuning seed."""
        text = f"trial {number}: {values_text(values)}"
        return [
            settings_at(cell, values).model_copy(update={"case": f"{cell.case} {text}".strip()}) for cell in self.cells
        ]

    def reported(self, values: dict[str, Any], seeds: Sequence[int]) -> list[Settings]:
        """Make the cells that are reported for a setting, one per seed."""
        cell = settings_at(self.cells[0], values)
        return [cell.model_copy(update={"seed": seed, "protocol": "honest"}) for seed in seeds]


@dataclass(frozen=True)
class Study:
    """A study, ready to run.

    Attributes:
        file: its keys.
        name: by default of its file.
        source: text of the file.
        grid: the base grid with the tuning seeds.
        arms: methods and tasks, in the grid's order.
    """

    file: StudyFile
    name: str
    source: str
    grid: Grid
    arms: tuple[Arm, ...]

    @property
    def metrics(self) -> list[Metric]:
        """Metrics that are maximised, of `gm` and `pm`."""
        return [self.file.objective] if isinstance(self.file.objective, str) else self.file.objective

    @property
    def report_draws(self) -> list[list[int]]:
        """The reported seeds of each draw of tuning; empty where there is a single one."""
        return parts(self.file.report_seeds, self.file.draws) if self.file.draws > 1 else []

    def default_grid(self, name: str) -> Grid:
        """The cells of the default division: the method's defaults and the cell's one learning rate, untuned.

        Args:
            name: of the grid.
        """
        arms = [arm for arm in self.arms if arm.draw <= 1]
        cells = [cell for arm in arms for cell in arm.reported({}, self.file.default_seeds)]
        return Grid(name, self.file.description, None, write_listed(name, self.file.description, cells), cells)

    @property
    def described_grid(self) -> Grid:
        """The grid under the study's name, as `run.json` describes it."""
        return replace(self.grid, name=self.name, description=self.file.description, source=self.source)


def parts(seeds: Sequence[int], draws: int) -> list[list[int]]:
    """Cut seeds into as many parts as there are draws of tuning, in their order."""
    size = len(seeds) // draws
    return [list(seeds[draw * size : (draw + 1) * size]) for draw in range(draws)]


def values_text(values: dict[str, Any]) -> str:
    """Write searched values as text, e.g. `tau=0.4, lr=0.05`."""
    return ", ".join(f"{name.rpartition('.')[2]}={_plain(value)}" for name, value in values.items())


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
