"""The script for the first hour on a GPU: rehearsed here, so that none of that hour goes into mending it."""

import json
import re
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
            beside = found[section]["rows"][f"{name.rpartition(',')[0]}, on the CPU"]
            assert row["accuracies"] == beside["accuracies"] != []
            assert row is beside or row["finite"]
            assert beside["relative_differences"] == {"fp32": 0}
        elif section == "profile":
            assert row["calls_of_steps"]["torchscript"] == sum(row["calls_of_steps"].values())
            assert row["seconds_of_kernels"] > 0
            assert (row["kinds"]["spectra"]["calls"] > 0) == ("scd" in name)
            assert len(row["longest"]) == 12
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


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Memcpy DtoD (Device -> Device)", "copies"),
        (
            "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(...)::{lambda()#3}>",
            "copies",
        ),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<...>", "copies"),
        ("convolve_kernel", "convolutions"),
        ("of_weight_kernel", "convolutions"),
        ("cudnn::cnn::wgrad2d_grouped_direct_kernel", "convolutions"),
        ("sgd_kernel", "SGD"),
        ("backward_kernel", "BatchNorm"),
        ("void regular_fft_factor<397u, ...>", "spectra"),
        ("columns_kernel", "spectra"),
        ("in_order_kernel", "copies"),
        ("void at::native::vectorized_gather_kernel<16, long>", "scatter and index"),
        ("void at::native::index_elementwise_kernel<128, 4, ...>", "scatter and index"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, ...>",
            "other elementwise",
        ),
        ("void at::native::reduce_kernel<512, 1, ...>", "rest"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_cublas", "rest"),
    ],
)
def test_kernels_have_kinds(name: str, kind: str) -> None:
    assert SCRIPT["profiles"].kind_of(name) == kind


def test_no_kernel_of_the_package_is_without_a_kind() -> None:
    files = [*(ROOT / "bench" / "engine" / "lanes").glob("*kernel*.py"), ROOT / "bench" / "dft_kernels.py"]
    names = [name for file in files for name in re.findall(r"^def (\w+_kernel)\(", file.read_text(), re.MULTILINE)]
    assert len(names) > 8
    assert not [name for name in names if SCRIPT["profiles"].kind_of(name) in ("rest", "other elementwise")]


ROWS = """
import json, runpy, sys, time
script = runpy.run_path(sys.argv[1])["main"].__globals__
class Slow:
    def __del__(self):
        time.sleep(1)  # the first alarm comes here, and is lost
def loses_it():
    Slow()
    while True:
        time.sleep(0.01)
rows = {"quick": dict, "loses its alarm": loses_it, "hangs in C": lambda: sum(range(10**15)), "never": dict}
script["SECTIONS"].clear()
script["SECTIONS"]["one"] = script["Section"](lambda device, tiny: rows, 1)
script["MOST"], script["HANGS"] = 0.5, 20
sys.argv[1:] = ["--out", sys.argv[2], "--device", "cpu"]
script["main"]()
"""


@pytest.mark.long
def test_a_row_that_takes_too_long_ends_and_one_that_hangs_ends_the_script(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """What was measured is kept, and the row that hung is named."""
    out = tmp_path / "found.json"
    done = subprocess.run(
        [sys.executable, "-c", ROWS, FOLDER, out],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    found = json.loads(out.read_text(encoding="utf-8"))["sections"]["one"]
    assert list(found["rows"]) == ["quick", "loses its alarm"]
    assert "more than" in found["rows"]["loses its alarm"]["error"]
    assert found["running"] == "hangs in C"
    assert found["left_out"] == ["hangs in C", "never"]
    assert [file.name for file in tmp_path.iterdir()] == [out.name]


def test_tests_on_the_device_take_no_plug_ins_that_happen_to_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    done = subprocess.CompletedProcess([], 0, "3 passed", "")
    monkeypatch.setattr(subprocess, "run", lambda command, **how: (seen.append(how["env"]), done)[1])
    assert CELLS.device_tests("cpu", True)["lanes"]()["says"] == "3 passed"
    assert seen[0]["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] == "1"
