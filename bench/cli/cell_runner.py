"""Options of `bench run` and `bench sweep` that say where cells run: on this machine, or on a Ray cluster."""

import shlex
import sys
from typing import Annotated

import typer

from bench.errors import UserError

Jobs = Annotated[int | None, typer.Option(help="Cells side by side; default: one per core on a CPU, one on a GPU.")]
DeviceOption = Annotated[
    list[str] | None,
    typer.Option("--device", metavar="auto|cpu|cuda", help="Where to compute; default: auto.", show_default=False),
]
RayAddress = Annotated[
    str | None,
    typer.Option("--ray", metavar="ADDRESS", help="Run the cells on a Ray cluster: auto, local or HOST:PORT."),
]
CpusPerCell = Annotated[
    float | None, typer.Option(help="With --ray: default 1, or more where there are fewer cells than cores.")
]
GpusPerCell = Annotated[
    float | None, typer.Option(help="With --ray: default 1 where there are GPUs; 0.5: two share one.")
]
DevicesPerCell = Annotated[
    int | None,
    typer.Option(help="With --ray: so many devices share a cell's clients, --cpus- and --gpus-per-cell each."),
]


def wished_device(wishes: list[str] | None) -> str:
    """The device that `--device` names; `choose_device` says whether there is one.

    Raises:
        UserError: the option was given twice, with different devices, or names none.
    """
    from bench.runs.session_options import check_device_name

    names = list(dict.fromkeys(wishes or ["auto"]))
    if len(names) > 1:
        raise UserError(f"{' and '.join(f'--device {name}' for name in names)}: give one of them")
    check_device_name(names[0])
    return names[0]


def start_early(ray: str | None) -> None:
    """Start the server of the local workers before the command imports torch, because its start takes seconds."""
    from bench.runs.workers import start_server

    if ray is None:
        start_server()


def command_line() -> str:
    """The command as the user gave it."""
    return shlex.join(["bench", *sys.argv[1:]])
