from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.runs.conftest import COMMON, arrays, bench, bench_here, cell, grid, odd_methods, start  # noqa: F401

WriteStudy = Callable[..., Path]


@pytest.fixture
def write_study(arrays: Path, tmp_path: Path) -> WriteStudy:  # noqa: F811
    """Write `study.yaml`, two trials of FedAvg on small cells; `grid` changes its grid, others change the study."""

    def write(grid: dict[str, object] | None = None, **changes: object) -> Path:  # noqa: F811
        cells = {
            **COMMON, "methods": ["fedavg"], "datasets": [{"name": "npz", "path": str(arrays)}], "alphas": [1.0],
            "rounds": 1, **(grid or {}),
        }  # fmt: skip
        study = {"space": {"lr": [0.1, 0.5]}, "sampler": "grid", "seeds": [100, 101], "report_seeds": [0, 1]}
        path = tmp_path / "study.yaml"
        path.write_text(yaml.safe_dump({"grid": cells, **study, **changes}), encoding="utf-8")
        return path

    return write
