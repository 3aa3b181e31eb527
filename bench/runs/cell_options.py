"""Options of a cell's run, and the device that it takes."""

import os
import sys
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from bench.errors import UserError, did_you_mean
from bench.settings import Executor

DEVICES = ("auto", "cpu", "cuda")
"""Values of `--device`."""
_DRIVERS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dxg")
"""Files that Linux has where there is a GPU: NVIDIA's, AMD's, and that of a Windows below it."""

Keep = Literal["none", "server", "all", "best"]


class Options(BaseModel):
    """Options of a cell's run; none changes what is computed, but for the recorded path."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: str = "auto"
    executor: Executor = "auto"
    threads: int = Field(1, ge=1, description="clients or cohorts at a time on a CPU; changes no byte")
    allow_fallback: tuple[str, ...] = Field((), description="losses and backends that may fail on a GPU, by name")
    cells: int = Field(1, ge=1, description="cells at a time that share a GPU, and so how many models fit it")
    data_root: Path = Path("data")
    checkpoint_seconds: float = Field(300.0, ge=0, description="least time between two checkpoints")
    keep: Keep = Field("none", description="which models or states stay at the end (`bench.results.saved_models`)")
    plugins: tuple[Path, ...] = Field((), description="files that register what the cell needs")
    callbacks: tuple[str, ...] = Field((), description="called in the process that trains (`callbacks.pack_callback`)")
    blind: bool = Field(False, description="data without labels of tests lie in the cell's folder; scores nothing")


def check_device_name(wish: str) -> None:
    """Refuse a device that is none of `DEVICES`; whether there is a GPU is another question.

    Raises:
        UserError: there is no such device.
    """
    if wish in DEVICES:
        return
    kind, _, number = wish.partition(":")
    remedy = f"{did_you_mean(wish, list(DEVICES))} Devices: {', '.join(DEVICES)}"
    if kind == "cuda" and number.isdigit():
        remedy = f" CUDA_VISIBLE_DEVICES={number} before the command and --device cuda take that GPU"
    raise UserError(f"--device {wish}: there is no such device.{remedy}")


def choose_device(wish: str) -> str:
    """Return `cpu` or `cuda`.

    Raises:
        UserError: there is no device of that name, or no GPU here.
    """
    check_device_name(wish)
    without_gpu = wish == "auto" and sys.platform == "linux" and not any(map(os.path.exists, _DRIVERS))
    if wish == "cpu" or (without_gpu and "torch" not in sys.modules):
        return "cpu"
    import torch  # here, as it takes seconds

    available = torch.cuda.is_available()
    if wish == "cuda" and not available:
        raise UserError(
            "--device cuda: torch sees no CUDA device here. Use --device cpu, or install a CUDA build of torch."
        )
    return ("cuda" if available else "cpu") if wish == "auto" else wish
