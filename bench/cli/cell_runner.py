"""What runs the cells of `bench run` and `bench sweep`: processes of this machine, or a Ray cluster."""

from typing import TYPE_CHECKING, Annotated

import typer

from bench.errors import UserError

if TYPE_CHECKING:
    from bench.runs.cell_runner import CellRunner

DeviceOption = Annotated[
    list[str] | None,
    typer.Option("--device", metavar="auto|cpu|cuda", help="Where to compute; default: auto.", show_default=False),
]
RayAddress = Annotated[
    str | None,
    typer.Option("--ray", metavar="ADDRESS", help="Run the cells on a Ray cluster: auto, local or HOST:PORT."),
]
CpusPerCell = Annotated[
    float | None,
    typer.Option(min=0.01, help="With --ray: default 1, or more where there are fewer cells than cores."),
]
GpusPerCell = Annotated[
    float | None,
    typer.Option(min=0, help="With --ray: default 1 where there are GPUs; 0.5: two share one."),
]
DevicesPerCell = Annotated[
    int | None,
    typer.Option(min=1, help="With --ray: so many devices share a cell's clients, --cpus- and --gpus-per-cell each."),
]


def wished_device(given: list[str] | None) -> str:
    """The device that `--device` names; `choose_device` says whether there is one.

    Raises:
        UserError: the option was given twice, with different devices.
    """
    names = list(dict.fromkeys(given or ["auto"]))
    if len(names) > 1:
        raise UserError(f"{' and '.join(f'--device {name}' for name in names)}: give one of them")
    return names[0]


def start_early(ray: str | None) -> None:
    """Start the server of the local workers before the command imports torch, because its start takes seconds."""
    from bench.runs.workers import start_server

    if ray is None:
        start_server()


def choose_runner(
    ray: str | None,
    jobs: int | None,
    device: str,
    cpus: float | None = None,
    gpus: float | None = None,
    devices: int | None = None,
) -> "CellRunner":
    """The runner that the options ask for.

    Raises:
        UserError: there is no such device or cluster, or Ray is not installed.
    """
    if ray is not None:
        from bench.cluster.connect import connect

        connect(ray)  # before the next import, because it reports a missing Ray

        from bench.cluster.ray_runner import RayRunner

        return RayRunner(jobs, device, cpus, gpus, devices or 1)
    if cpus is not None or gpus is not None or devices is not None:
        raise UserError("--cpus-, --gpus- and --devices-per-cell are for --ray; without it, --jobs says how many cells")
    from bench.runs.workers import LocalRunner

    return LocalRunner(jobs, device)
