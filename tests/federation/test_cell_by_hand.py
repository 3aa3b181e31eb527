"""One cell by hand, `Federation.of(settings)`: its numbers are those of the same cell in a run."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import bench
from bench.runs.cell import run_cell
from bench.runs.cell_options import Options
from bench.store.store import COLUMNS
from bench.store.tables import read_table

GRID: dict[str, Any] = {
    "datasets": ["digits"], "alphas": [0.1], "seeds": [1], "clients": 5, "rounds": 2, "model": "mlp",
    "model_options": {"hidden": 8}, "lr": 0.1,
}  # fmt: skip
CELLS: dict[str, dict[str, Any]] = {
    "plain": {"methods": ["fedavg"]},
    "shifts": {"methods": ["fedavg"], "shifts": ["rotation", {"name": "label_noise", "share": 0.2}]},
    "public": {
        "methods": [{"name": "feddf", "distil_steps": 3}], "public": {"name": "digits", "size": 40},
        "shifts": ["rotation"],
    },
    "tuning": {"methods": ["ditto"], "protocol": "tuning", "shifts": ["concept_shift"]},
    "changes": {"methods": ["ifca"], "timeline": [{"round": 1, "shifts": ["concept_shift"], "exchange": 1.0}]},
    "new clients": {"methods": ["ditto"], "new_clients": 1, "new_client_epochs": [0, 1]},
}  # fmt: skip


def by_hand(settings: bench.Settings) -> pd.DataFrame:
    federation = bench.Federation.of(settings)
    rows = []
    for _ in range(settings.rounds):
        federation.advance()
        rows += [{"round": federation.version, **row} for row in federation.evaluate().metrics]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in ("shifts", "public") else pytest.mark.long) for case in CELLS]
)
def test_a_cell_by_hand_has_the_numbers_of_the_cell(case: str, tmp_path: Path) -> None:
    """All metrics of every round, to the digit that the tables hold."""
    (settings,) = bench.load_grid({**GRID, **CELLS[case]}).cells
    status = run_cell(settings, tmp_path / "cell", Options(device="cpu"))
    assert status.state == "done", status.reason
    columns = list(COLUMNS["metrics"])
    found, written = by_hand(settings)[columns], read_table(tmp_path / "cell", "metrics")[columns]
    pd.testing.assert_frame_equal(found, written.reset_index(drop=True), check_dtype=False, rtol=0, atol=1e-15)
    assert len(found) > 8


def test_a_cell_by_hand_has_one_thread_of_torch_s_as_in_a_worker() -> None:
    """Both make the same federation, which sets it."""
    settings = bench.load_grid({**GRID, **CELLS["plain"]}).cells[0]
    torch.set_num_threads(2)
    try:
        bench.Federation.of(settings, threads=2)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(1)
