"""Sources of a command's data: the cells that read a table, or that a grid has."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.config.checked import CheckedSettings
from bench.config.grid import load_grid
from bench.errors import UserError
from bench.federation.cell_data import load_dataset
from bench.places import check_file
from bench.plugin import DATASETS
from bench.settings import Settings

_KINDS = {".csv": "csv", ".parquet": "parquet"}
_GRIDS = (".yaml", ".yml", ".json")


def cells_of(source: str, data_root: Path, **columns: str | Sequence[str]) -> list[Settings]:
    """The settings of cells that have the data of a table, or of a grid: one for each way to divide data.

    Args:
        source: a table, a folder of tables, a grid file, or the name of a built-in grid.
        data_root: where data files lie.
        columns: of a table `label`, `site`, `subject`, `part`, `leave_out`, `categories`: names of its columns.

    Raises:
        UserError: the table cannot be read so, with all its problems; or the grid has problems.
    """
    path = Path(source)
    kind = _table_kind(path)
    if kind is not None:
        if not path.is_dir():
            check_file(path, "table")
        options: dict[str, Any] = {
            "label_column": columns["label"],
            "site_column": columns["site"],
            "leave_out": list(columns.get("leave_out", ())),
            "categories": list(columns.get("categories", ())),
        }
        options |= {f"{name}_column": columns[name] for name in ("subject", "part") if columns[name]}
        return [_of_table(kind, {"path": source, **options}, data_root)]
    of_table = any(columns.values())
    if (path.is_file() and path.suffix not in _GRIDS) or (path.is_dir() and of_table):
        raise UserError(
            f"{source} is no table that can be read (a file .csv or .parquet, or a folder of them), and no grid's file "
            "(.yaml)"
        )
    if of_table:
        raise UserError(f"{source}: --label and the other options are for a table; a grid says it itself")
    return _divisions(source)


def _table_kind(path: Path) -> str | None:
    """The data set that reads a table, which may be a folder of tables; None for what is none."""
    if path.is_dir():
        if DATASETS.offered("hugging_face", "recognised")(path):
            return "hugging_face"
        endings = [file.suffix.lower() for file in path.iterdir()]
        return next((kind for ending, kind in _KINDS.items() if ending in endings), None)
    return _KINDS.get(path.suffix.lower())


def _divisions(source: str) -> list[Settings]:
    """The cells of a grid, one for each way to divide data."""
    names = {"dataset", "dataset_options", "partition", "partition_options", "shifts", "alpha", "clients"}
    cells: dict[str, Settings] = {}
    for cell in load_grid(source, []).cells:
        cells.setdefault(json.dumps(cell.model_dump(mode="json", include=names), sort_keys=True), cell)
    return list(cells.values())


def _of_table(kind: str, options: dict[str, Any], data_root: Path) -> Settings:
    """The settings of a cell whose clients are the sites of a table; all problems of the table are told."""
    cell = CheckedSettings(method="local", dataset=kind, dataset_options=options, partition="iid", clients=1)
    try:
        dataset = load_dataset(cell, data_root)
    except UserError as error:
        raise UserError("\n  ".join(getattr(error, "problems", [str(error)]))) from None
    if dataset.groups is None:
        return cell
    trained = len(set(dataset.groups[: dataset.n_train].tolist()))  # sites with rows to train on
    return CheckedSettings(method="local", dataset=kind, dataset_options=options, partition="natural", clients=trained)
