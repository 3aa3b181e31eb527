"""Write a table of costs that dry runs look up: `python -m tools.forecast_costs methods|models SECONDS`.

They have the methods with their defaults and as the built-in grids have them, and the models of the built-in grids and
some usual ones. Rows that are there stay; delete one, or the file, to have it counted again. StepRates are of
one core of the machine that it runs on.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from bench.config.grid import load_grid
from bench.plugin import METHODS
from bench.runs.forecast.costs import TABLES, method_key, model_key
from bench.runs.forecast.counts import count_method, counted_model
from bench.runs.forecast.outline import declared_size
from bench.settings import Settings

GRIDS = Path(__file__).parents[1] / "bench" / "grids"
USUAL = {"mnist": ("logistic", "mlp", "cnn", "lenet"), "cifar10": ("cnn", "lenet", "resnet18", "resnet18_gn")}
"""Models that have a row though no built-in grid has them, by data set; of `digits` see `main`."""


def cells() -> Iterator[Settings]:
    """The cells of all built-in grids, one of each method, and one of each usual model."""
    for grid in sorted(GRIDS.glob("*.yaml")):
        yield from load_grid(grid.stem).cells
    for method in METHODS.names():
        yield Settings(method=method)
    for dataset, models in USUAL.items():
        yield from (Settings(method="fedavg", dataset=dataset, model=model) for model in models)


def count(part: str, settings: Settings, rows: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Count the rows of a cell that a table lacks: keys and rows."""
    if part == "methods":
        if (key := method_key(settings)) not in rows:
            yield key, count_method(settings)._asdict()
        return
    size = declared_size(settings)
    for name in settings.architectures or (settings.model,) if size else ():
        options = settings.model_options if name == settings.model else {}
        key = model_key(name, options, size.shape, size.classes)
        if key not in rows:
            given = json.dumps(options, sort_keys=True), (), None, False
            yield key, counted_model("fedavg", name, size.shape, size.classes, *given, None)._asdict()


def main(part: str, seconds: float) -> None:
    """Count what a table lacks, for so many seconds at most, and write it after each row."""
    file = TABLES[part]
    rows: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    end = time.monotonic() + seconds
    for settings in cells():
        if time.monotonic() > end:
            break
        try:
            for key, row in count(part, settings, rows):
                rows[key] = row
                lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(row, default=list)}" for key, row in rows.items())
                file.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
        except Exception as error:  # of many kinds: a method may need what these cells do not have
            print(f"{settings.name}: {error}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], float(sys.argv[2]))
