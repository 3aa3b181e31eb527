"""The script for the first hour on a GPU: rehearsed here, so that none of that hour goes into mending it."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import ROOT

SCRIPT = ROOT / "docs" / "examples" / "gpu_hour.py"
WAYS = runpy.run_path(str(SCRIPT))["WAYS"]


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("stride", [1, 2])
def test_every_way_is_the_same_convolution(name: str, stride: int) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(3, 2, 4, 8, 8, dtype=torch.float64), torch.randn(3, 5, 4, 3, 3, dtype=torch.float64)
    torch.testing.assert_close(WAYS[name](x, w, stride), WAYS["one by one"](x, w, stride))


@pytest.mark.long
def test_every_section_runs(tmp_path: Path, environment: dict[str, str]) -> None:
    out = tmp_path / "found.json"
    command = [sys.executable, SCRIPT, "--out", out, "--device", "cpu", "--tiny"]
    subprocess.run(command, env=environment, cwd=ROOT, check=True)
    sections = json.loads(out.read_text(encoding="utf-8"))["sections"]
    assert list(sections) == ["ceilings", "convolutions", "spectra", "steps", "unequal_rounds", "resume"]
    assert "error" not in str(sections)
    assert sections["resume"]["same_bytes"]
    assert sections["resume"]["scores"] > 0
