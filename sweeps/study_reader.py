"""Reading of study files (docs/sweeps.md), with all problems in one, and in its grid, by their lines."""

import itertools
import json
import math
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from bench.config import yaml_lines
from bench.config.grid import Grid, load_grid, read_grid
from bench.config.grid_file import AXES, name_problem
from bench.config.identity import cell_id, declared_checksum
from bench.config.named_files import NamedFiles
from bench.config.validation import check_field, shown
from bench.config.yaml_lines import Document
from bench.errors import UserError, did_you_mean
from bench.results.cell_names import drawn, task_name
from bench.rng import key
from sweeps.space import Dimension, own_dimensions, read_dimension, settings_at
from sweeps.study import Arm, Study, StudyFile, parts

MAX_POINTS = 10_000
_STUDIES = NamedFiles("study", "sweeps", "studies")


def builtin_studies() -> list[str]:
    """Names of the studies that come with the harness."""
    return _STUDIES.builtin()


def load_study(study: str | Mapping[str, Any], overrides: list[str], trials: int | None = None) -> Study:
    """Read a study file and everything it leads to.

    Args:
        study: a file; the name of a built-in study, if there is no such file; or the content of a study file.
        overrides: `key=value` with a YAML value, for a key of the study or else of its grid.
        trials: instead of the file's number.

    Raises:
        UserError: no such study, or problems in it or in its grid, with their lines.
    """
    if trials is not None and trials < 1:
        raise UserError(f"--trials {trials}: should be 1 or more")
    if isinstance(study, Mapping):
        document, source = yaml_lines.of_values(study, "study")
        return read_study(document, source, "study", overrides, trials)
    text, file, stem = _STUDIES.read(study)
    return read_study(yaml_lines.parse(text, file), text, stem, overrides, trials)


def read_study(document: Document, source: str, stem: str, overrides: list[str], trials: int | None) -> Study:
    """Read the study in a document that was parsed from `source`; `stem` is its name where the text gives none.

    Raises:
        UserError: all problems in it, together with those of a grid that stands in it.
    """
    if not isinstance(document.data, dict):
        raise UserError(f"{document.source}:1: a study is keys with values; write for instance `grid: quickstart`")
    for_grid = [override for override in overrides if not _override(document, override)]
    content = _content(document)
    name = content.name or stem
    if problem := name_problem(name):
        document.complain(("name",), f"the name {shown(name)} of the study {problem}")
    _check_seeds(document, content)
    _check_methods_of_search(document, content)
    if trials is not None and document.overridden("trials"):
        raise UserError(f"--trials {trials}: --set trials=... is given, too, and only one can count: give it once")
    of_user = {_setting(text) for text in for_grid}
    of_file = [f"{where}={json.dumps(value)}" for where, value in content.set.items()]
    settings = [text for text in of_file if _setting(text) not in of_user]  # `--set` is stronger than the file
    if "protocol" in of_user or "protocol" in content.set:
        raise UserError(f"{document.source}: `protocol` is the study's: tuning for trials, then honest; take it out")
    fixed = [f"seeds={json.dumps(content.seeds or [0])}", "protocol=tuning"]
    problem_of_grid = None
    try:  # before the space, whose names may be those of the grid's plug-ins
        base, changes = document.data.get("grid", ""), [*settings, *for_grid, *fixed]
        within = isinstance(base, dict)
        grid = read_grid(document.part("grid"), "", name, changes) if within else load_grid(str(base), changes)
    except UserError as error:
        problem_of_grid = error
    space = {}
    for where, entry in content.space.items():
        with document.noting(("space", where)):
            space[where] = read_dimension(where, entry)
    document.check()  # the study's own problems first; those of a grid that stands in it are among them
    if problem_of_grid:
        raise problem_of_grid
    arms = _arms(document, content, name, grid, space, trials or content.trials)
    document.check()
    return Study(content, name, source, grid, arms)


def _check_seeds(document: Document, content: StudyFile) -> None:
    """Note seeds that stand in two lists or twice in one, and lists that draws cannot share."""
    tuning = (*content.seeds, *(content.final_seeds or []))
    if len(set(tuning)) < len(set(content.seeds)) + len(set(content.final_seeds or [])):
        document.complain(("final_seeds",), "final_seeds has seeds of the trials; the further runs need others")
    for axis in ("seeds", "final_seeds", "report_seeds", "default_seeds"):
        seeds = getattr(content, axis) or []
        if len(set(seeds)) < len(seeds):
            document.complain((axis,), f"{axis} = {shown(seeds)} has a seed twice")
        if len(seeds) % content.draws and axis != "default_seeds":
            document.complain((axis,), f"{axis}: {content.draws} draws cannot share {len(seeds)} seeds evenly")
        if axis in ("report_seeds", "default_seeds") and (reused := [seed for seed in seeds if seed in tuning]):
            document.complain((axis,), f"{axis} has tuning seeds ({shown(reused)}); results need fresh ones")


def _setting(override: str) -> str:
    """The setting that `key=value` is about, also where the key is the axis of that setting."""
    key, _ = yaml_lines.parse_assignment(override, "trials=5")
    return AXES.get(key, key)


def _override(document: Document, override: str) -> bool:
    """Put `key=value` into the study if the key is one of its own."""
    name, value = yaml_lines.parse_assignment(override, "trials=5")
    if name not in StudyFile.model_fields or name in ("name", "description"):
        return False
    if document.overridden(name):
        raise UserError(f"--set {override}: --set {name}=... is given twice, and only one can count: give it once")
    document.put(name, value, f"--set {name}")
    return True


def _content(document: Document) -> StudyFile:
    """Read the keys of the study; a wrong or missing key is noted, and has its default, or is empty, for now."""
    keys = list(StudyFile.model_fields)
    good: dict[str, Any] = {"grid": "", "seeds": [], "report_seeds": []}
    for name in document.data:
        if name not in keys:
            document.complain(
                (name,), f"unknown key {name!r}.{did_you_mean(name, keys) or ' Keys: ' + ', '.join(keys)}"
            )
            continue
        with document.noting((name,)):
            good[name] = check_field(StudyFile, name, document.data[name])
    for name, field in StudyFile.model_fields.items():
        if field.is_required() and name not in document.data:
            document.complain((), f"the study has no {name!r}: it needs `grid`, `seeds` and `report_seeds`")
    return StudyFile.model_construct(**good)


def _check_methods_of_search(document: Document, content: StudyFile) -> None:
    several = not isinstance(content.objective, str)
    if several and (content.sampler not in ("nsga2", "grid") or sorted(content.objective) != ["gm", "pm"]):
        document.complain(("objective",), "two objectives are [pm, gm], searched by `sampler: nsga2` (or `grid`)")
    if several and content.pruner != "none":
        document.complain(("pruner",), "with two objectives no trial can be pruned; write `pruner: none`")
    if not several and content.sampler == "nsga2":
        document.complain(("sampler",), "nsga2 is for two objectives; write `objective: [pm, gm]`")


def _arms(
    document: Document, content: StudyFile, study: str, grid: Grid, space: dict[str, Dimension], trials: int | None
) -> tuple[Arm, ...]:
    methods = {cell.method for cell in grid.cells}
    for where in space:
        if "." in where and where.partition(".")[0] not in methods:
            document.complain(("space", where), f"{where!r} concerns none of the grid's methods")
    arms = []
    finals, reports = (parts(seeds, content.draws) for seeds in (content.further_seeds, content.report_seeds))
    for (label, task), group in groupby(grid.cells, key=lambda cell: (cell.name, task_name(cell))):
        cells = list(group)
        with document.noting(("space",)):
            dimensions = searched_dimensions(cells[0].method, space, own_ranges=content.own_ranges)
            points = _points(dimensions) if content.sampler == "grid" else ()
            if trials is None and not points:
                raise UserError("`trials` is missing: how many for each method and task")
            for dimension in dimensions:
                for value in dimension.choices or (dimension.low, dimension.high):
                    settings_at(cells[0], {dimension.key: value})
            count = min(trials or len(points), len(points) or MAX_POINTS)
            for draw, seeds in enumerate(parts(range(len(cells)), content.draws)):
                chosen = tuple(cells[at] for at in seeds)
                ids = [cell_id(cell, declared_checksum(cell)) for cell in chosen]
                digest = _digest(ids, dimensions, content, cells[0].select_by)
                number = draw + 1 if content.draws > 1 else 0
                name = f"{study} {label} {drawn(task, number)} {digest}"
                seeds_of = tuple(finals[draw]), tuple(reports[draw])
                arms.append(Arm(name, label, task, chosen, dimensions, points, count, *seeds_of, number))
    return tuple(arms)


def searched_dimensions(method: str, space: Mapping[str, Dimension], *, own_ranges: bool) -> tuple[Dimension, ...]:
    """The searched dimensions of a method.

    Args:
        method: its name.
        space: dimensions by setting.
        own_ranges: whether the ranges in the method's file count where `space` names none of its hyperparameters.

    Raises:
        UserError: that is nothing.
    """
    ranges = [dimension for where, dimension in space.items() if where.startswith(f"{method}.")]
    common = [dimension for where, dimension in space.items() if "." not in where]
    dimensions = [*(ranges or (own_dimensions(method) if own_ranges else [])), *common]
    if not dimensions:
        raise UserError(f"{method!r} has no ranges of its own; give `space` a setting to search, such as `lr`")
    return tuple(dimensions)


def _points(dimensions: tuple[Dimension, ...]) -> tuple[dict[str, Any], ...]:
    for dimension in dimensions:
        if not dimension.choices:
            raise UserError(f"sampler `grid` needs a list of values for {dimension.key!r}")
    count = math.prod(len(dimension.choices) for dimension in dimensions)
    if count > MAX_POINTS:
        raise UserError(f"the grid of the space has {count} points; the limit is {MAX_POINTS}")
    keys, values = [dimension.key for dimension in dimensions], [dimension.choices for dimension in dimensions]
    return tuple(dict(zip(keys, point, strict=True)) for point in itertools.product(*values))


def _digest(cells: list[str], dimensions: tuple[Dimension, ...], content: StudyFile, select_by: str) -> str:
    """Digest of everything that two commands must have in common to continue one search.

    Trials of different searches differ by it alone.
    """
    searched = [[dimension.key, dimension.text] for dimension in dimensions]
    scored = [] if select_by == "accuracy" else [select_by]
    seeded = [content.sampler_seed] if content.sampler_seed else []
    text = json.dumps([cells, searched, content.objective, *scored, *seeded])
    return f"{key(text, content.sampler, content.pruner):032x}"[:8]
