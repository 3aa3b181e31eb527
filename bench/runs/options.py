"""Options that say how the cells of a run or a sweep are run: each option once, with type, limit, help and default.

The commands take theirs from here (`bench.cli.commands.with_session_options`), so nothing slow is imported. `bench.run`
and `bench.sweep` write theirs out, for editors and `help`; `tests/api/test_alike.py` compares them.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args

import typer

from bench.errors import UserError

TRACKING = "BENCH_TRACKING"
"""Variable of the environment that says whether runs are mirrored in MLflow where the user does not."""


class AtLeast(NamedTuple):
    """The least value of an option."""

    value: float


Jobs = Annotated[
    int | None,
    AtLeast(1),
    typer.Option(help="Cells side by side; default: one per core, on a GPU as many as fit."),
]
Device = Annotated[
    str, typer.Option(metavar="auto|cpu|cuda", help="Where to compute; default: auto.", show_default=False)
]
DataRoot = Annotated[Path, typer.Option(help="Where data files lie.")]
Download = Annotated[bool, typer.Option(help="Fetch missing data files.")]
TrackingUri = Annotated[
    str | None,
    typer.Option(help="MLflow's tracking store; default: MLFLOW_TRACKING_URI, else RUN/mlflow.db.", show_default=False),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


@dataclass(frozen=True)
class SessionOptions:
    """Options of a session about how its cells are run; none changes what is computed, but for the recorded path."""

    jobs: Jobs = None
    device: Device = "auto"
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Run the cells on a Ray cluster: auto, local or HOST:PORT."),
    ] = None
    cpus_per_cell: Annotated[
        float | None,
        AtLeast(0.01),
        typer.Option(help="With --ray: default 1, or more where there are fewer cells than cores."),
    ] = None
    gpus_per_cell: Annotated[
        float | None, AtLeast(0), typer.Option(help="With --ray: default 1 where there are GPUs; 0.5: two share one.")
    ] = None
    devices_per_cell: Annotated[
        int | None,
        AtLeast(1),
        typer.Option(help="With --ray: so many devices share a cell's clients, --cpus- and --gpus-per-cell each."),
    ] = None
    executor: Annotated[
        Literal["auto", "sequential", "cohort", "debug"],
        typer.Option(
            metavar="auto|sequential|cohort|debug",
            help="How clients are trained. debug: one after another, never recorded; it names the round, client, step "
            "and layer where something was not finite for the first time.",
        ),
    ] = "auto"
    allow_fallback: Annotated[
        tuple[str, ...],
        typer.Option(
            metavar="NAME", help="On a GPU, go on tens of times slower where this loss or backend fails; repeatable."
        ),
    ] = ()
    data_root: DataRoot = Path("data")
    download: Download = False
    checkpoint_seconds: Annotated[float, AtLeast(0), typer.Option(help="Least time between two checkpoints.")] = 300.0
    keep: Annotated[
        Literal["none", "server", "all", "best"],
        typer.Option(
            metavar="none|server|all|best",
            help="Models of a finished cell: best, of the reported round; all, the whole last state.",
        ),
    ] = "none"
    tracking_uri: TrackingUri = None
    tracking: Annotated[
        bool | None,
        typer.Option(help="Mirror the run in MLflow; default: as BENCH_TRACKING says, else yes.", show_default=False),
    ] = None
    quiet: Quiet = False
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="A line for each round; of a dry run, for each cell.")
    ] = False

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Take the options from a call's arguments, and check them.

        Args:
            given: all arguments by name; None is an option that the user left out.

        Raises:
            UserError: an option has a value that it cannot have.
        """
        from pydantic import TypeAdapter, ValidationError

        from bench.config.validation import problem_text
        from bench.runs.cell_options import check_device_name

        values = {field.name: given[field.name] for field in fields(cls) if given.get(field.name) is not None}
        try:
            options = TypeAdapter(cls).validate_python(values)
        except ValidationError as error:
            problem = error.errors()[0]
            name = str(problem["loc"][0])
            value = f"{values[name]:g}" if isinstance(values[name], float) else values[name]
            raise UserError(f"--{name.replace('_', '-')} {value}: {problem_text(problem)}") from None
        for field in fields(cls):
            value = getattr(options, field.name)
            for limit in (note for note in get_args(field.type) if isinstance(note, AtLeast)):
                if value is not None and not value >= limit.value:
                    least = f"should be greater than or equal to {limit.value}"
                    raise UserError(f"--{field.name.replace('_', '-')} {value:g}: {least}")
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
