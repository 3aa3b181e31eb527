"""What is pinned: six tiny cells, one of each kind, the ids of cells of the grids that come with the harness, and the
defaults of settings and options, which ids leave out.

A cell's numbers may change when its id does, and only then. So a digest belongs to an id. Two columns also depend on
the recorded path, because other processors and other versions of torch round differently. All others are the same on
every path, so that they can be compared on a machine whose path is not pinned.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

import tests.golden.models  # noqa: F401  # registers them
from bench.config.digests import is_own
from bench.config.grid import builtin_grids, load_grid
from bench.config.identity import cell_id, declared_checksum
from bench.plugin import ATTACKS, CHANNELS, DATASETS, MODELS, PARTITIONS, SHIFTS
from bench.runs.cell import run_cell
from bench.runs.cell_options import Options
from bench.settings import Settings
from bench.store import store
from bench.store.tables import read_table

HERE = Path(__file__).parent
DIGESTS, IDS, DEFAULTS = HERE / "digests.json", HERE / "ids.json", HERE / "defaults.json"
COMMAND = "python -m tests.golden"
OPTIONS = Options(device="cpu")

_COMMON: dict[str, Any] = {
    "alpha": 0.5, "clients": 5, "rounds": 3, "model": "mlp", "model_options": {"hidden": 16},
    "lr": 0.1, "batch_size": 50,
}  # fmt: skip
_PUBLIC = {"name": "digits", "size": 40}
CELLS: dict[str, Settings] = {
    name: Settings.model_validate(_COMMON | own)
    for name, own in {
        "synchronous": {"method": "ditto", "participation": 0.6, "momentum": 0.5, "lr_decay": 0.9},
        "asynchronous": {
            "method": "fedprox", "hp": {"mu": 0.1}, "server": {"name": "fedbuff", "buffer": 2}, "clock": "mobile",
        },
        "public samples": {"method": "feddf", "hp": {"distil_steps": 5, "distil_batch": 20}, "public": _PUBLIC},
        "BatchNorm": {"method": "fedavg", "model": "test_golden_norm", "model_options": {}, "batchnorm": "local"},
        "mixed architectures": {
            "method": "comet", "hp": {"c": 2, "public_batch": 20}, "public": _PUBLIC,
            "client_models": ["test_golden_conv", "mlp"],
            "model_options": {},
        },
        "recorded cohort": {"method": "lgfedavg", "epochs": 8, "batch_size": 10},
    }.items()
}  # fmt: skip

ROUNDED = {"accuracy value", "loss value"}
"""The columns that depend on the recorded path."""

METHODS = ("fedavg", "local", "fedprox", "ditto", "apfl", "lgfedavg", "scaffold", "comet", "fedrep", "fedavgm")
"""Of the grids, cells of these methods."""


def run(name: str, folder: Path) -> tuple[str, dict[str, str]]:
    """Run a pinned cell; the path it took, as text, and the checksums of its columns."""
    status = run_cell(CELLS[name], folder, OPTIONS)
    assert status.state == "done", status.reason
    path = ", ".join(f"{key} {value}" for key, value in sorted(status.path.items()))
    return path, digests(folder)


def digests(folder: Path) -> dict[str, str]:
    """A checksum of each column of a cell's tables; of `metrics`, for each quantity, so that losses have their own."""
    found = {}
    for table, columns in store.COLUMNS.items():
        rows = read_table(folder, table)
        parts = dict(list(rows.groupby("quantity"))) if table == "metrics" else {table: rows}
        for part, own in parts.items():
            found |= {f"{part} {column}": _digest([str(v) for v in own[column]]) for column in columns}
    return found


def unrounded(digests_of_paths: dict[str, dict[str, str]]) -> dict[str, str]:
    """The checksums of all columns but `ROUNDED`, from what is pinned for each path; they are the same for all."""
    return {
        column: digest for of in digests_of_paths.values() for column, digest in of.items() if column not in ROUNDED
    }


def golden_id(name: str) -> str:
    """The id of a pinned cell."""
    return cell_id(CELLS[name], declared_checksum(CELLS[name]))


def grid_ids() -> dict[str, dict[str, str]]:
    """For each grid that comes with the harness, the id of the first and the last cell of each method pinned."""
    found: dict[str, dict[str, str]] = {}
    for grid in builtin_grids():
        cells = load_grid(grid, []).cells
        for method in METHODS:
            own = [cell for cell in cells if cell.method == method]
            for place, cell in (("first", own[:1]), ("last", own[-1:])):
                if cell:
                    found.setdefault(grid, {})[f"{place} {method}"] = cell_id(cell[0], declared_checksum(cell[0]))
    return found


def defaults() -> dict[str, dict[str, Any]]:
    """The default of each setting, by the class of settings, and of each option of what comes with the harness.

    Options of methods and server rules are not here: an id has their values, as it has their code.
    """
    found = {kind.__name__: _defaults(kind.model_fields) for kind in nested_settings(Settings)}
    for registry in (DATASETS, PARTITIONS, SHIFTS, MODELS, CHANNELS, ATTACKS):
        for name in registry.names():
            if not is_own(registry, name) and (options := _defaults(registry.options(name).model_fields)):
                found[f"{registry.kind} {name}"] = options
    return found


def nested_settings(kind: Any) -> list[type[BaseModel]]:
    """A class of settings and, in the order of its fields, all classes of settings within it."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        parts = [field.annotation for field in kind.model_fields.values()]
        return list(dict.fromkeys([kind, *(inner for part in parts for inner in nested_settings(part))]))
    return [inner for part in get_args(getattr(kind, "__value__", kind)) for inner in nested_settings(part)]


def _defaults(fields: dict[str, FieldInfo]) -> dict[str, Any]:
    return {
        field.alias or key: "needed"
        if field.is_required()
        else to_jsonable_python(field.get_default(call_default_factory=True))
        for key, field in fields.items()
    }


def read(file: Path) -> dict[str, Any]:
    """What is pinned."""
    pinned: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return pinned


def _digest(values: list[str]) -> str:
    return hashlib.blake2b("\n".join(values).encode(), digest_size=6).hexdigest()
