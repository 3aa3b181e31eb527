"""Options of `bench run` and `bench sweep` about how cells are run, checked before torch is imported, and a cell's."""

import os
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bench.config.validation import problem_text
from bench.errors import UserError, did_you_mean
from bench.settings import Executor

DEVICES = ("auto", "cpu", "cuda")
"""Values of `--device`."""

Keep = Literal["none", "server", "all", "best"]

TRACKING = "BENCH_TRACKING"
"""Variable of the environment that says whether runs are mirrored in MLflow where the user does not."""


class SessionOptions(BaseModel):
    """Options of a session about how its cells are run; none changes what is computed, but for the recorded path.

    The fields are the options of `bench run` and `bench sweep`, and parameters of `bench.run` and `bench.sweep`, which
    say what they mean.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    jobs: int | None = Field(None, ge=1)
    device: str = "auto"
    ray: str | None = None
    cpus_per_cell: float | None = Field(None, ge=0.01)
    gpus_per_cell: float | None = Field(None, ge=0)
    devices_per_cell: int | None = Field(None, ge=1)
    executor: Executor = "auto"
    allow_fallback: tuple[str, ...] = ()
    lane_kernels: bool = False
    data_root: Path = Path("data")
    download: bool = False
    checkpoint_seconds: float = Field(300.0, ge=0)
    keep: Keep = "none"
    tracking: bool | None = None
    tracking_uri: str | None = None
    quiet: bool = False
    verbose: bool = False

    @classmethod
    def of(cls, **values: Any) -> Self:
        """Check the options that a user gave.

        Raises:
            UserError: an option has a value that it cannot have.
        """
        try:
            options = cls(**values)
        except ValidationError as error:
            problem = error.errors()[0]
            name = str(problem["loc"][0])
            value = f"{values[name]:g}" if isinstance(values[name], float) else values[name]
            raise UserError(f"--{name.replace('_', '-')} {value}: {problem_text(problem)}") from None

        check_device_name(options.device)
        if options.ray is None and {options.cpus_per_cell, options.gpus_per_cell, options.devices_per_cell} != {None}:
            raise UserError(
                "--cpus-, --gpus- and --devices-per-cell are for --ray; without it, --jobs says how many cells"
            )
        return options

    @property
    def tracked(self) -> bool:
        """Whether the run is mirrored in MLflow: as the user says, else as `BENCH_TRACKING` says, else yes.

        Raises:
            UserError: the variable says neither yes nor no.
        """
        if self.tracking is not None:
            return self.tracking
        text = os.environ.get(TRACKING, "") or "1"
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off"):
            return False
        raise UserError(f"the variable {TRACKING} is {text!r}: set it to 1 or 0")


class Options(BaseModel):
    """Options of a cell's run; none changes what is computed, but for the recorded path."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: Literal["auto", "cpu", "cuda"] = "auto"
    executor: Executor = "auto"
    threads: int = Field(1, ge=1, description="clients or cohorts at a time on a CPU; changes no byte")
    allow_fallback: tuple[str, ...] = Field((), description="losses and backends that may fail on a GPU, by name")
    lane_kernels: bool = Field(False, description="on a GPU and in bf16, kernels of this package")
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
    import torch  # here, as it takes seconds

    check_device_name(wish)
    available = torch.cuda.is_available()
    if wish == "cuda" and not available:
        raise UserError(
            "--device cuda: torch sees no CUDA device here. Use --device cpu, or install a CUDA build of torch."
        )
    return ("cuda" if available else "cpu") if wish == "auto" else wish
