"""pFLeague: benchmarks of personalized federated learning.

This module exports the names that a script or a notebook needs. Each is imported at its first use, so `import bench` is
fast. The names for authors of methods are in `bench.method`.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

# MKL reads this variable at its first matrix product. Without it, rounding depends on the memory addresses of the
# operands, so a client's bytes would depend on its lane. The setting is part of the recorded path
# (`bench.engine.device`).
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

if TYPE_CHECKING:
    from bench.api.decide import decide
    from bench.api.evaluate import evaluate
    from bench.api.report import report
    from bench.api.run import run
    from bench.api.sweep import sweep
    from bench.api.verify import verify
    from bench.config.checked import CheckedSettings as Settings
    from bench.config.grid import load_grid
    from bench.conformance.suite import check as check_method
    from bench.federation.cell_data import load_dataset, load_partition
    from bench.federation.federation import Federation
    from bench.models.network import with_head
    from bench.plugin import load_file, metric
    from bench.results.results import load_run
    from bench.runs.callbacks import Callback, CsvScores, Moment, PrintScores
    from datasets.tables import table

__version__ = "0.1.0"
__all__ = [
    "Callback", "CsvScores", "Federation", "Moment", "PrintScores", "Settings", "check_method", "decide",
    "evaluate",
    "load_dataset",
    "load_file", "load_grid", "load_partition", "load_run", "metric", "report", "run", "sweep", "table", "verify",
    "with_head",
]  # fmt: skip

_PLACES = {
    "Callback": ("bench.runs.callbacks", "Callback"),
    "CsvScores": ("bench.runs.callbacks", "CsvScores"),
    "Moment": ("bench.runs.callbacks", "Moment"),
    "PrintScores": ("bench.runs.callbacks", "PrintScores"),
    "Federation": ("bench.federation.federation", "Federation"),
    "Settings": ("bench.config.checked", "CheckedSettings"),
    "check_method": ("bench.conformance.suite", "check"),
    "decide": ("bench.api.decide", "decide"),
    "evaluate": ("bench.api.evaluate", "evaluate"),
    "load_dataset": ("bench.federation.cell_data", "load_dataset"),
    "load_file": ("bench.plugin", "load_file"),
    "load_grid": ("bench.config.grid", "load_grid"),
    "load_partition": ("bench.federation.cell_data", "load_partition"),
    "load_run": ("bench.results.results", "load_run"),
    "metric": ("bench.plugin", "metric"),
    "report": ("bench.api.report", "report"),
    "run": ("bench.api.run", "run"),
    "sweep": ("bench.api.sweep", "sweep"),
    "table": ("datasets.tables", "table"),
    "verify": ("bench.api.verify", "verify"),
    "with_head": ("bench.models.network", "with_head"),
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'bench' has no attribute {name!r}")
    module, attribute = _PLACES[name]
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return [*globals(), *_PLACES]
