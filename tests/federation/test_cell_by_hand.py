"""One cell by hand, `Federation.of(settings)`: its numbers are those of the same cell under `bench.run`."""

import inspect
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml

import bench
from bench.federation.federation import Federation
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


def grid_of(case: str, folder: Path) -> Path:
    file = folder / "grid.yaml"
    file.write_text(yaml.safe_dump({**GRID, **CELLS[case]}), encoding="utf-8")
    return file


def assert_same(settings: bench.Settings, written: pd.DataFrame) -> None:
    """All metrics of every round, to the digit that the tables hold."""
    columns = list(COLUMNS["metrics"])
    found = by_hand(settings)[columns]
    pd.testing.assert_frame_equal(found, written[columns].reset_index(drop=True), check_dtype=False, rtol=0, atol=1e-15)
    assert len(found) > 8


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in ("shifts", "public") else pytest.mark.long) for case in CELLS]
)
def test_a_cell_by_hand_has_the_numbers_of_the_cell(case: str, tmp_path: Path) -> None:
    (settings,) = bench.load_grid(str(grid_of(case, tmp_path))).cells
    status = run_cell(settings, tmp_path / "cell", Options(device="cpu"))
    assert status.state == "done", status.reason
    assert_same(settings, read_table(tmp_path / "cell", "metrics"))


@pytest.mark.long
def test_and_those_of_bench_run(tmp_path: Path) -> None:
    run = bench.run(grid_of("shifts", tmp_path), out=tmp_path / "run", jobs=1, device="cpu", quiet=True)
    (cell,) = run.cells
    assert_same(cell.settings, cell.table("metrics"))


def test_no_part_of_a_cell_is_left_out_by_default() -> None:
    parameters = inspect.signature(Federation).parameters
    for part in ("dataset", "partition", "public"):
        assert parameters[part].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[part].default is inspect.Parameter.empty


def test_a_cell_by_hand_has_one_thread_of_torch_s_as_in_a_worker() -> None:
    """Both make the same federation, which sets it."""
    settings = bench.load_grid({**GRID, **CELLS["plain"]}).cells[0]
    torch.set_num_threads(2)
    try:
        bench.Federation.of(settings, threads=2)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(1)
