"""`bench speed`: the training speed on this machine, compared with a plain loop; and what commands cost."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench.cli.commands import print_table
from bench.errors import UserError, did_you_mean
from bench.places import check_output_file
from bench.runs.options import Device

if TYPE_CHECKING:
    from bench.speed.commands import CommandCost


def speed(
    workload: Annotated[
        list[str] | None,
        typer.Option(
            help="digits, mnist_mlp, mnist_cnn, cifar_cnn, resnet18, resnet18_head, char_lstm; repeatable; else all."
        ),
    ] = None,
    device: Device = "auto",
    quick: Annotated[bool, typer.Option("--quick", help="One turn of each instead of five.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write all as JSON.")] = None,
    commands: Annotated[bool, typer.Option("--commands", help="Time commands instead: reports, dry runs, ...")] = False,
    beside: Annotated[
        Path | None, typer.Option(metavar="BENCH", help="With --commands: another environment's `bench`, in turns.")
    ] = None,
    limit: Annotated[float, typer.Option(min=0, help="With --commands: seconds after which one is ended.")] = 120.0,
) -> None:
    """Measure each executor, and a loop as the public libraries write it, on the built-in workloads."""
    if commands and (workload or device != "auto"):
        raise UserError("--commands trains nothing that could be chosen: leave out --workload and --device")
    if json_file:
        check_output_file(json_file, "--json")
    if beside and not commands:
        raise UserError("--beside compares commands: add --commands")
    if commands:
        _commands(beside, limit, json_file, quick=quick)
        return
    from bench.runs.session_options import check_device_name
    from bench.speed.workloads import WORKLOADS

    names = workload or list(WORKLOADS)
    check_device_name(device)
    if unknown := [name for name in names if name not in WORKLOADS]:
        known = list(WORKLOADS)
        hint = did_you_mean(unknown[0], known)
        raise UserError(f"there is no workload {unknown[0]!r}.{hint} There are {', '.join(known)}")

    from bench.runs.session_options import choose_device
    from bench.speed.measure import measure
    from bench.store import store  # from here on torch is needed

    measurements = measure(names, choose_device(device), repeats=1 if quick else 5)
    if json_file:
        store.write_json(json_file, measurements)
    _print(measurements)


def _commands(beside: Path | None, limit: float, json_file: Path | None, *, quick: bool) -> None:
    """Time the commands of this installation and, in turns, of the one at `beside`."""
    import tempfile

    from bench.runs.progress import steps
    from bench.speed.commands import BESIDE, COMMANDS, HERE, installation, measure_commands
    from bench.store import store
    from bench.store.provenance import provenance

    installations = {HERE: installation(Path(sys.executable).with_name("bench"))}
    if beside:
        installations[BESIDE] = installation(beside)
    with tempfile.TemporaryDirectory() as folder, steps("bench speed") as step:
        costs = measure_commands(COMMANDS, installations, limit, Path(folder), step, repeats=1 if quick else None)
    if json_file:
        document = {command: {name: asdict(cost) for name, cost in row.items()} for command, row in costs.items()}
        store.write_json(json_file, {**provenance(), "limit": limit, "commands": document})
    _print_commands(costs, list(installations), limit)


def _print_commands(costs: "dict[str, dict[str, CommandCost]]", names: list[str], limit: float) -> None:
    from rich.table import Table

    from bench.speed.commands import COMMANDS, figures_text

    table = Table(
        title="Commands",
        caption="CPU s: seconds of the processors, of all processes of a command. s: on the clock. MB: peak of its "
        f"largest process. The best of up to three times; >: ended after {limit:g} s.",
    )
    table.add_column("command")
    for name in names:
        for heading in ("CPU s", "s", "MB"):
            table.add_column(heading if len(names) == 1 else f"{name}: {heading}", justify="right")
    for command in COMMANDS:
        figures = [figures_text(costs[command.name][name], command) for name in names]
        table.add_row(command.name, *(text for texts in figures for text in texts))
    print_table(table)


def _print(measurements: dict[str, Any]) -> None:
    from rich.table import Table

    from bench.speed.contestants import DISTURBED

    ceilings = ", ".join(
        f"{peak:.0f} GFLOP/s in {precision}" for precision, peak in measurements["ceiling_gflops"].items()
    )
    table = Table(
        title=f"FedAvg, batch 10; ceiling {ceilings}",
        caption="ms per client step: with evaluation every round, every tenth round, and training alone. times: as "
        "fast as the faster plain loop, in the same three ways. outside: share of a round outside training, one in ten "
        "evaluated. cell: what `bench run` takes for one cell. grid: one cell per core side by side.",
    )
    for heading in ("workload", ""):
        table.add_column(heading)
    for heading in ("ms", "ms/10", "training", "images/s", "outside", "peak MB", "of ceiling"):
        table.add_column(heading, justify="right")
    for heading in ("times", "times/10", "training"):
        table.add_column(heading, justify="right")
    for workload, contestants in measurements["results"].items():
        for contestant, f in contestants.items():
            table.add_row(
                workload, contestant, f"{f['ms']:.2f}", f"{f['ms_sparse']:.2f}", f"{f['ms_training']:.2f}",
                f"{f['images']:.0f}", f"{f['outside']:.1%}", f"{f['memory'] / 1e6:.0f}", f"{f['ceiling']:.1%}",
                f"{f['times']:.2f}", f"{f['times_sparse']:.2f}", f"{f['times_training']:.2f}",
            )  # fmt: skip
    print_table(table)
    stolen_share = max(f["stolen"] for contestants in measurements["results"].values() for f in contestants.values())
    if stolen_share > DISTURBED:
        print(
            f"The machine's host took up to {stolen_share:.0%} of the cores' time: what uses all cores is slower here."
        )
