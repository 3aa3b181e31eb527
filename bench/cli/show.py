"""`bench show`: the resolved settings and cells of a grid file."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.cli.commands import PluginFiles, load_plugins, print_table, required
from bench.errors import UserError
from bench.runs.options import DataRoot


def show(
    grid: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            callback=required("grid"),
            show_default=False,
            help="A grid file, or the name of a built-in grid.",
        ),
    ] = "",
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Replace a key of the grid; may be repeated.")
    ] = None,
    table: Annotated[bool, typer.Option("--table", help="One row per cell.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="All settings of every cell, as JSON.")] = False,
    plugin: PluginFiles = None,
    data_root: DataRoot = Path("data"),
) -> None:
    """Print all settings of a grid, defaults included, and its cells.

    Comments at its end tell what models take from files of pretrained weights.
    """
    from bench.config.grid import load_grid
    from bench.plugin import allow, is_near
    from bench.runs.weights import weights_table

    if table and as_json:
        raise UserError("--table and --json are two answers to one question; give one of them")
    load_plugins(plugin)
    with allow(is_near):
        loaded_grid = load_grid(grid, overrides or [])
    cells = [cell.model_dump(mode="json") for cell in loaded_grid.cells]
    head = {"name": loaded_grid.name, "description": loaded_grid.description, "published": loaded_grid.published}
    common, differences = split_common(cells)
    if as_json:
        typer.echo(json.dumps({**head, "cells": cells}, indent=2))
    elif table:
        typer.echo(f"{loaded_grid.name}: {len(cells)} cells")
        import pandas as pd

        rows = [{k: value if isinstance(value, str) else _flow(value) for k, value in c.items()} for c in differences]
        print_table(pd.DataFrame(rows), index=False)
    else:
        typer.echo(_yaml({**head, "count": len(cells), "common": common, "cells": differences}), nl=False)
        for line in weights_table(loaded_grid.cells, data_root):
            typer.echo(f"# {line}")


def split_common(cells: list[dict[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Split into the settings that all cells share, and the other settings of each cell, always with its label."""
    common = {
        key: value for key, value in cells[0].items() if key != "label" and all(cell[key] == value for cell in cells)
    }
    return common, [{key: value for key, value in cell.items() if key not in common} for cell in cells]


def _yaml(data: dict[str, Any]) -> str:
    """A resolved grid as YAML, with a line for each cell and each common setting."""
    import yaml

    cells = "".join(f"- {_flow(cell)}\n" for cell in data["cells"])
    common = "".join(f"  {key}: {_flow(value)}\n" for key, value in data["common"].items())
    top = yaml.safe_dump({key: data[key] for key in ("name", "description", "published", "count")}, sort_keys=False)
    return f"{top}common:\n{common}cells:\n{cells}"


def _flow(value: Any) -> str:
    """A value as YAML in one line, written as JSON, which is valid YAML."""
    return json.dumps(value, ensure_ascii=False)
