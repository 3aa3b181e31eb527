"""pFLeague: benchmarks of personalized federated learning.

This module exports the names that a script or a notebook needs. Each is imported at its first use, so `import bench` is
fast. The names for authors of methods are in `bench.method`.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

# MKL reads this variable at its first matrix product. Without it, rounding depends on the memory addresses of the
# operands, so a client's bytes would depend on its lane. The setting is part of the recorded path
# (`bench.engine.cpu_path`).
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

if TYPE_CHECKING:
    from bench.config.grid import load_grid
    from bench.conformance.suite import check as check_method
    from bench.federation.cell_data import load_dataset, load_partition
    from bench.federation.federation import Federation
    from bench.plugin import load_file
    from bench.results.results import load_run
    from bench.runs.launch import run
    from bench.settings import Settings

__version__ = "0.1.0"
__all__ = [
    "Federation", "Settings", "check_method", "load_dataset", "load_file", "load_grid", "load_partition", "load_run",
    "run",
]  # fmt: skip

_PLACES = {
    "Federation": ("bench.federation.federation", "Federation"),
    "Settings": ("bench.settings", "Settings"),
    "check_method": ("bench.conformance.suite", "check"),
    "load_dataset": ("bench.federation.cell_data", "load_dataset"),
    "load_file": ("bench.plugin", "load_file"),
    "load_grid": ("bench.config.grid", "load_grid"),
    "load_partition": ("bench.federation.cell_data", "load_partition"),
    "load_run": ("bench.results.results", "load_run"),
    "run": ("bench.runs.launch", "run"),
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'bench' has no attribute {name!r}")
    module, attribute = _PLACES[name]
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return [*globals(), *_PLACES]
