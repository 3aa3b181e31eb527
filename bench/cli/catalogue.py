"""`bench methods`, `datasets`, `models`, `grids`: lists of names for grid files; `bench cite`: their BibTeX."""

import inspect
import itertools
import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from bench.settings import Settings

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def methods(as_json: AsJson = False) -> None:
    """List the methods and their hyperparameters."""
    from bench.plugin import METHODS

    rows = []
    for name in METHODS.names():
        method = METHODS.declaration(name)
        fields = method.Hyper.model_fields
        defaults = {key: field.get_default(call_default_factory=True) for key, field in fields.items()}
        rows.append({"name": name, "about": _about(method), "trains": method.trains, "options": defaults})
    _print(rows, as_json)


def datasets(
    as_json: AsJson = False,
    croissant: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write NAME.json there: licence, source, checksums of each, as Croissant."),
    ] = None,
) -> None:
    """List the data sets and their options."""
    from bench.plugin import DATASETS

    if croissant:
        _describe(DATASETS.names(), croissant)
        return
    _print(
        [_factory_row(name, DATASETS.declaration(name), {"data_root", "download"}) for name in DATASETS.names()],
        as_json,
    )


def _describe(names: list[str], folder: Path) -> None:
    """Write the metadata of all data sets that come with pFLeague and are no reader of the user's own data."""
    from bench.places import check_output_folder
    from bench.plugin import DATASETS
    from bench.store import inside

    check_output_folder(folder, "--croissant").mkdir(parents=True, exist_ok=True)
    described = {name: describe for name in names if (describe := DATASETS.offered(name, "metadata"))}
    for name, describe in described.items():
        inside.replace(folder / f"{name}.json", describe().encode())
    print(f"{folder}: metadata of {len(described)} data sets")
    print(f"none of {', '.join(name for name in names if name not in described)}: they read data of your own")


def models(as_json: AsJson = False) -> None:
    """List the models and their options."""
    from bench.plugin import MODELS

    _print([_factory_row(name, MODELS.declaration(name), {"shape", "classes"}) for name in MODELS.names()], as_json)


def grids(as_json: AsJson = False) -> None:
    """List the built-in grids."""
    from bench.config.grid import builtin_grids, load_grid

    entries = [load_grid(name, []) for name in builtin_grids()]
    rows = [(grid, grid.description or _first_sentence(grid.source)) for grid in entries]
    _print([{"name": g.name, "about": about, "cells": len(g.cells), "options": {}} for g, about in rows], as_json)


def _first_sentence(source: str) -> str:
    """First sentence of the comment at the top of a grid file."""
    head = itertools.takewhile(lambda line: line.startswith("#"), source.splitlines())
    return re.split(r"(?<=\.) (?=[A-Z])", " ".join(line.lstrip("# ") for line in head))[0]


def _factory_row(name: str, factory: Any, caller_options: set[str]) -> dict[str, Any]:
    parameters = inspect.signature(factory).parameters.values()
    from_elsewhere = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    user_parameters = [p for p in parameters if p.name not in caller_options and p.kind not in from_elsewhere]
    options = {p.name: None if p.default is inspect.Parameter.empty else p.default for p in user_parameters}
    return {"name": name, "about": _about(factory), "options": options}


def _about(item: Any) -> str:
    """First line of the docstring."""
    return (inspect.getdoc(item) or "").partition("\n")[0]


def _print(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows, indent=1, default=str))
        return
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        print(f"{row['name']:<{width}}  {row['about']}".rstrip())
        if row["options"]:
            print(" " * (width + 2) + ", ".join(f"{key}={value}" for key, value in row["options"].items()))


def cite(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME | RUN]...",
            help="Methods, data sets, attacks, ..., and run folders; without any, pFLeague itself.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print the BibTeX of methods, data sets, attacks and so on, or of all that a run used."""
    from bench.citations import cite as collect
    from bench.citations import known_names, software

    if not names:
        print(software(), end="")
        return
    ids = known_names()
    runs = [name for name in names if name not in ids and (os.sep in name or Path(name).exists())]
    cells: list[Settings] = []
    if runs:
        from bench.results.results import load_run  # imports pandas

        cells = [cell.settings for run in runs for cell in load_run(run).cells]
    citation = collect([name for name in names if name not in runs], cells)
    print(citation.bibtex, end="")
    for note in citation.notes:
        print(f"note: {note}", file=sys.stderr)
