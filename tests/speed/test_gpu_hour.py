"""The script for the first hour on a GPU: rehearsed here, so that none of that hour goes into mending it."""

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.config.grid import load_grid
from bench.engine.lane_schedule import narrowed, pack
from tests.conftest import ROOT
from tests.engine.second_device import NAME, SecondDevice

FOLDER = ROOT / "docs" / "examples" / "gpu_hour"
SCRIPT = runpy.run_path(str(FOLDER))
CELLS, SECTIONS = SCRIPT["cells"], SCRIPT["SECTIONS"]


def rehearsed(out: Path, environment: dict[str, str], *sections: str) -> Any:
    """The sections that a rehearsal on the CPU leaves in the file."""
    command = [sys.executable, FOLDER, "--out", out, "--device", "cpu", "--tiny", *sections]
    # What Inductor compiled before is not taken.
    environment = environment | {"TORCHINDUCTOR_CACHE_DIR": str(out.with_suffix(".cache"))}
    subprocess.run(command, env=environment, cwd=ROOT, check=True)
    return json.loads(out.read_text(encoding="utf-8"))["sections"]


@pytest.mark.long
def test_every_section_runs(tmp_path: Path, environment: dict[str, str]) -> None:
    """No step is compiled here, as there is no compiler; the next test does, for a minute."""
    found = rehearsed(tmp_path / "found.json", environment | {"CXX": "no-compiler"})
    assert list(found) == list(SECTIONS)
    rows = {(section, name): row for section, own in found.items() for name, row in own["rows"].items()}
    assert not any(own["left_out"] for own in found.values())
    assert not [(at, row["error"]) for at, row in rows.items() if "error" in row]
    for (section, name), row in rows.items():
        if section in ("steps", "unequal_rounds"):  # after the round for warming up
            assert (row["eager"] == 0) == ("recorded" in name)
            assert row["recorded"] + row["eager"] == row["calls"] > 0
            assert row["notices"] == []
        elif section == "lane_operations":
            assert max(row["relative_errors"]) < (2**-7 if "bf16" in name else 1e-6)
        elif section == "correctness":
            assert row["finite"]
            assert row["accuracies"] == row["on_the_cpu"] != []
            assert row["relative_difference"] == 0
        elif section == "resume":
            assert row["same_logits"] and row["same_state_later"] and row["same_logits_later"]  # noqa: PT018
            assert row["logits"] > 0
        elif section == "inductor":
            assert "compiler" in row["skipped"]
        elif section == "device_tests":
            assert "skipped" in row["says"] or torch.cuda.is_available()


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler")
def test_a_step_is_compiled(tmp_path: Path, environment: dict[str, str]) -> None:
    found = rehearsed(tmp_path / "found.json", environment, "inductor")
    for row in found["inductor"]["rows"].values():
        assert row["ms_compiled"] > 0
        assert row["largest_difference_from_eager"] < 1e-5


def test_cells_have_the_settings_of_the_grid() -> None:
    """All but what makes them tiny."""
    cell, tiny = load_grid("table1_fast").cells[0], {"model", "clients", "precision"}
    settings = CELLS.federation("cpu", cell.method, tiny=True, alpha=cell.alpha).settings
    assert settings.model_dump(exclude=tiny) == cell.model_dump(exclude=tiny)
    assert (settings.momentum, settings.augment) == (0.5, "crop_flip")


def test_lanes_are_counted_as_they_are_packed() -> None:
    """On the simulated device, where a cohort goes on in fewer lanes."""
    with SecondDevice():
        row = CELLS.rounds(NAME, True, "fedavg", "eager", alpha=0.1)
        cell = CELLS.federation(NAME, "fedavg", tiny=True, alpha=0.1)
        sizes = [len(own) for own in cell.engine.device_data.partition.train]
    packings = narrowed(pack([-(-n // 10) for n in sizes], 64))
    calls = sum(len(one.row) for one in packings)
    assert row["calls"] == row["eager"] == calls
    assert row["lanes_per_call"] == pytest.approx(sum(one.row.size for one in packings) / calls)
    assert row["busy_of_all_lanes"] == pytest.approx(row["steps"] / calls / 64)
    assert {int(n): one["calls"] for n, one in row["ms_per_call_by_lanes"].items()} == {
        one.row.shape[1]: len(one.row) for one in packings
    }
    assert len(packings) > 1
