"""`bench show` says what is taken from files of pretrained weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml

GRID: dict[str, Any] = {"methods": ["fedavg", "ditto"], "alphas": [1.0], "model": "mlp", "pretrained": "weights.pt"}


def test_what_is_taken_reset_and_left_is_shown(bench_here: Callable[..., Any], tmp_path: Path) -> None:
    """Once for all cells of a model and a file, as comments of YAML; a file that does not fit is no error here."""
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(GRID), encoding="utf-8")
    assert "#   there is no file of weights weights.pt" in bench_here("show", "grid.yaml").stdout
    shapes = {"fc1.weight": (200, 64), "fc1.bias": (200,), "fc.weight": (7, 200), "fc.bias": (7,), "aux.weight": (2,)}
    torch.save({f"module.{name}": torch.zeros(shape) for name, shape in shapes.items()}, tmp_path / "weights.pt")
    shown = bench_here("show", "grid.yaml").stdout
    assert shown.splitlines()[-4:] == [
        "# pretrained weights.pt for model mlp of dataset digits:",
        "#   taken     2  body.fc1.weight is module.fc1.weight, ...",
        "#   reset     2  head.weight (10, 200), head.bias (10,)",
        "#   left      3  module.fc.weight (7, 200), module.fc.bias (7,), module.aux.weight (2,)",
    ]
    assert yaml.safe_load(shown)["count"] == 2
