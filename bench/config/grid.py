"""Grid files: axes and settings, expanded into cells (docs/grids.md describes them for users).

Precedence, lowest first: defaults, common settings, a data set's `set`, a case, `vary` and `alphas`, a method entry.
"""

import itertools
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.config import yaml_lines
from bench.config.checked import checked, completed
from bench.config.grid_file import NOTHING, TEXTS, Choice, GridEntry, Layer, Plan, name_problem, override, read_plan
from bench.config.listed import read_listed, write_listed
from bench.config.named_files import NamedFiles
from bench.config.validation import shown, unknown
from bench.config.yaml_lines import Document
from bench.errors import UserError
from bench.plugin import load_named, published_tables
from bench.settings import Settings

MAX_CELLS = 100_000
_GRIDS = NamedFiles("grid", "bench", "grids")


@dataclass(frozen=True)
class Grid:
    """A grid, ready to run.

    Attributes:
        name: name of the grid; default: the name of its file.
        description: a text for readers.
        published: id of the printed table to compare it with; several ids are separated by commas.
        source: text of the file.
        cells: ordered by data set, case and varied values, alpha, method, seed; hyperparameters and options are
            complete. Cells with equal scientific settings may appear under several labels; they have one identity.
        cases: names of the cases, in order.
        reference: the case that reports compare the others with; empty: the grid does not say.
    """

    name: str
    description: str
    published: str | None
    source: str
    cells: list[Settings]
    cases: tuple[str, ...] = ()
    reference: str = ""


def builtin_grids() -> list[str]:
    """Names of the grids that come with the harness."""
    return _GRIDS.builtin()


def load_grid(
    grid: str | os.PathLike[str] | Mapping[str, Any], overrides: Sequence[str] = (), methods: Sequence[str] = ()
) -> Grid:
    """Read a grid and expand it.

    Args:
        grid: a file; the name of a built-in grid with or without `.yaml`, if there is no such file; or the content of
            a grid file as a mapping.
        overrides: `key=value` with a YAML value; each replaces its key everywhere in the grid.
        methods: names of methods that it also has, if it does not name them itself.

    Raises:
        UserError: there is no such grid, or it has problems: the first ten, one per line, as `FILE:LINE: ...`, or
            `grid['KEY']: ...` of a mapping, and the number of the others.
    """
    if isinstance(grid, Mapping):
        document, source = yaml_lines.of_values(grid, "grid")
        return read_grid(document, source, "grid", list(overrides), methods)
    source, name, stem = _GRIDS.read(os.fspath(grid))
    return read_grid(yaml_lines.parse(source, name), source, stem, list(overrides), methods)


def grid_of(cells: Sequence[Settings], name: str) -> Grid:
    """Make a grid of exactly these cells.

    Raises:
        UserError: a cell has an unknown name, or settings that do not go together.
    """
    complete = [checked(cell) for cell in cells]
    return Grid(name, "", None, write_listed(name, "", complete), complete)


def read_grid(document: Document, source: str, name: str, overrides: list[str], methods: Sequence[str] = ()) -> Grid:
    """Expand a grid that has been parsed already.

    Args:
        document: the grid; it is changed in place.
        source: text of the file it came from.
        name: name of the grid if the document gives none.
        overrides, methods: as in `load_grid`.

    Raises:
        UserError: the grid has problems.
    """
    if not isinstance(document.data, dict):
        what = "is empty" if document.data is None else f"holds {shown(document.data)}, not keys with values"
        raise UserError(f"{document.source}:1: the grid {what}; write for instance `methods: [fedavg, local]`")
    for text in overrides:
        override(document, text)
    listed = document.data.get("methods", [])
    if isinstance(listed, list) and "cells" not in document.data:
        named = [entry.get("name") if isinstance(entry, dict) else entry for entry in listed]
        if further := [method for method in methods if method not in named]:
            document.data["methods"] = [*listed, *further]
    texts = _texts(document, name)
    _load_plugins(document)
    cases: tuple[str, ...] = ()
    if "cells" in document.data:
        cells = read_listed(document)
    else:
        plan = read_plan(document)
        document.check()
        cells = _expand(document, plan)
        cases = tuple(dict.fromkeys(case.text for case in plan.all_cases))
        if texts["reference"] not in ("", *cases):
            document.complain(("reference",), unknown("case", texts["reference"], list(cases)))
    document.check()
    published = texts["published"] or None
    return Grid(texts["name"], texts["description"], published, source, cells, cases, texts["reference"])


def _texts(document: Document, stem: str) -> dict[str, str]:
    """The values of the text keys (`TEXTS`)."""
    texts = dict.fromkeys(TEXTS, "") | {"name": stem}
    for key in texts.keys() & document.data.keys():
        if isinstance(document.data[key], str):
            texts[key] = document.data[key]
        else:
            document.complain((key,), f"{key} = {shown(document.data[key])} should be text")
    if problem := name_problem(texts["name"]):
        document.complain(("name",), f"the name {shown(texts['name'])} of the grid {problem}")
    tables = published_tables()
    for table in re.split(r",\s*", texts["published"]) if texts["published"] and tables else []:
        if table not in tables:
            document.complain(("published",), unknown("published table", table, tables))
    return texts


def _load_plugins(document: Document) -> None:
    """Import the files under `plugins`, so that the grid can use the names that they register."""
    files = document.data.get("plugins", [])
    if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
        document.complain(("plugins",), f"plugins = {shown(files)} should be a list of files, for instance [mine.py]")
        return
    loaded = 0
    for i, file in enumerate(files):
        with document.noting(("plugins", i)):
            load_named(file)
            loaded += 1
    if loaded < len(files):
        document.check()  # the names that they register would all be called unknown


def _expand(document: Document, plan: Plan) -> list[Settings]:
    """Expand the plan into all cells; problems of combined settings are noted in the document."""
    tasks = [(dataset, case) for dataset in plan.datasets for case in dataset.cases or plan.cases or [NOTHING]]
    alphas, seeds = ([[choice] for choice in axis] or [[]] for axis in (plan.alphas, plan.seeds))
    sizes = [len(tasks), len(alphas), len(plan.methods), len(seeds)]
    count = math.prod(sizes + [len(axis) for axis in plan.vary])
    if count > MAX_CELLS:
        raise UserError(f"{document.source}: the grid has {count} cells; the limit is {MAX_CELLS}")
    cells = []
    for (dataset, case), varied, alpha, method, seed in itertools.product(
        tasks, itertools.product(*plan.vary), alphas, plan.methods, seeds
    ):
        # if a varied hyperparameter does not concern a method, the method runs once, not once per value
        if all(choice.first or choice.concerns(method.name) for choice in varied):
            concerned = [choice for choice in varied if choice.concerns(method.name)]
            text = ", ".join(filter(None, [dataset.text, case.text, *(choice.text for choice in concerned)]))
            cells.append(_cell(document, plan.common, dataset, case, text, [*concerned, *alpha, *seed], method))
    return cells


def _cell(
    document: Document, common: Layer, dataset: GridEntry, case: GridEntry, text: str, choices: list[Choice],
    method: GridEntry,
) -> Settings:  # fmt: skip
    """The cell's settings, with all layers combined by their precedence; problems are noted."""
    chosen: Layer = {choice.key: (choice.value, choice.path) for choice in choices}
    layer = common | dataset.settings | case.settings | chosen | method.settings
    prefix = f"{method.name}."
    hyper = {key.removeprefix(prefix): value for key, (value, _) in layer.items() if key.startswith(prefix)}
    cell = Settings.model_validate(
        {key: value for key, (value, _) in layer.items() if "." not in key}
        | {"method": method.name, "label": method.text, "case": text, "dataset": dataset.name, "hp": hyper}
        | {"dataset_options": {key: value for key, (value, _) in dataset.own.items()}}
    )
    complete, problems = completed(cell)
    places = dict.fromkeys(("method", "hp", "adapters"), method.path) | {"alpha": dataset.path}
    places |= {key: path for key, (_, path) in layer.items()}
    for key, problem in problems.items():
        document.complain(places.get(key, places.get(key.removesuffix("_options"), ())), problem)
    return cell.model_copy(update=complete)
