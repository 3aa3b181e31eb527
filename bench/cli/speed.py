"""`bench speed`: the training speed on this machine, compared with a plain loop."""

from pathlib import Path
from typing import Annotated, Any

import typer

from bench.cli.commands import print_table
from bench.errors import UserError, did_you_mean
from bench.places import check_output_file
from bench.runs.options import Device


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
) -> None:
    """Measure how fast this machine trains. A loop as the public libraries write it runs beside each executor."""
    if json_file:
        check_output_file(json_file, "--json")
    from bench.runs.cell_options import check_device_name
    from bench.speed.workloads import WORKLOADS

    names = workload or list(WORKLOADS)
    check_device_name(device)
    if unknown := [name for name in names if name not in WORKLOADS]:
        known = list(WORKLOADS)
        hint = did_you_mean(unknown[0], known)
        raise UserError(f"there is no workload {unknown[0]!r}.{hint} There are {', '.join(known)}")

    from bench.runs.cell_options import choose_device
    from bench.speed.measure import measure
    from bench.store import store  # from here on torch is needed

    measurements = measure(names, choose_device(device), repeats=1 if quick else 5)
    if json_file:
        store.write_json(json_file, measurements)
    _print(measurements)


def _print(measurements: dict[str, Any]) -> None:
    import pandas as pd

    from bench.speed.contestants import DISTURBED

    ceilings = ", ".join(
        f"{peak:.0f} GFLOP/s in {precision}" for precision, peak in measurements["ceiling_gflops"].items()
    )
    print(f"FedAvg, batch 10; ceiling {ceilings}")
    rows = {
        (workload, contestant): {
            "ms": f"{f['ms']:.2f}", "ms/10": f"{f['ms_sparse']:.2f}", "ms training": f"{f['ms_training']:.2f}",
            "images/s": f"{f['images']:.0f}", "outside": f"{f['outside']:.1%}", "peak MB": f"{f['memory'] / 1e6:.0f}",
            "of ceiling": f"{f['ceiling']:.1%}", "times": f"{f['times']:.2f}", "times/10": f"{f['times_sparse']:.2f}",
            "times training": f"{f['times_training']:.2f}",
        }
        for workload, contestants in measurements["results"].items()
        for contestant, f in contestants.items()
    }  # fmt: skip
    print_table(pd.DataFrame.from_dict(rows, orient="index"))
    print(
        "ms per client step: with evaluation every round, every tenth round, and training alone. times: as fast as the "
        "faster plain loop, in the same three ways. outside: share of a round outside training, one in ten evaluated. "
        "cell: what `bench run` takes for one cell. grid: one cell per core side by side."
    )
    stolen_share = max(f["stolen"] for contestants in measurements["results"].values() for f in contestants.values())
    if stolen_share > DISTURBED:
        print(
            f"The machine's host took up to {stolen_share:.0%} of the cores' time: what uses all cores is slower here."
        )
