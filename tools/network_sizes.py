"""Write the table of networks' sizes that dry runs look up: `python -m tools.network_sizes`.

It has the networks of the built-in grids and some usual ones, counted on shapes, so that every machine writes the same.
Rows that are there stay; delete one to have it counted again. All take ten minutes: torchvision's are tried on samples.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from bench.config.grid import load_grid
from bench.runs.forecast.networks import TABLE, count, table_key
from bench.runs.forecast.outline import data_size
from bench.settings import Settings

GRIDS = Path(__file__).parents[1] / "bench" / "grids"
USUAL = {
    "digits": ("logistic", "mlp"),
    "mnist": ("logistic", "mlp", "cnn", "lenet"),
    "cifar10": ("cnn", "lenet", "resnet18", "resnet18_gn"),
}
"""Networks that have a row though no built-in grid has them, by data set."""


def cells() -> Iterator[Settings]:
    """The cells of all built-in grids, and one of each usual network."""
    for grid in sorted(GRIDS.glob("*.yaml")):
        yield from load_grid(grid.stem).cells
    for dataset, models in USUAL.items():
        yield from (Settings(method="fedavg", dataset=dataset, model=model) for model in models)


def main() -> None:
    """Count what the table lacks, and write it, a line for each network."""
    rows: dict[str, list[object]] = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
    for settings in cells():
        size = data_size(settings, Path("data"))
        assert size, f"{settings.dataset} has no size in bench/runs/forecast/outline.py"
        for name in settings.architectures or (settings.model,):
            key = table_key(name, settings.model_options if name == settings.model else {}, size.shape, size.classes)
            if key not in rows:
                rows[key] = list(count(settings, name, size.shape, size.classes))
    lines = (f"{json.dumps(key)}: {json.dumps(row)}" for key, row in sorted(rows.items()))
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
