"""`bench pack`, `unpack` and `verify`: a run as one file, and a check that its results can be reproduced."""

import os
from pathlib import Path
from typing import Annotated

import typer

from bench.cli.commands import PluginFiles, RunFolder
from bench.cli.results import end_if_damaged
from bench.errors import UserError
from bench.runs.options import DataRoot

WORDS = {"same": "ok", "near": "near", "drifted": "drifted", "wrong": "WRONG"}
"""First words of the lines of `bench verify`, by outcome."""
UNCONFIRMED = 3
"""Exit status where nothing is wrong, and nothing could be confirmed."""


def pack(
    run: RunFolder,
    out: Annotated[Path | None, typer.Option(help="The file; default: RUN.tar.xz.")] = None,
    models: Annotated[bool, typer.Option("--models", help="With the models that --keep best kept.")] = False,
) -> None:
    """Pack a run's finished cells into one small file to publish. Exit status 1: a damaged cell was left out."""
    from bench.results.pack import SUFFIX, pack

    folder = os.path.realpath(run)
    file = out or Path(f"{folder}{SUFFIX}")
    count = pack(run, file, models=models)
    print(f"{file}: {count} cells, {file.stat().st_size / 1e6:.2f} MB")
    end_if_damaged(run)


def unpack(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `bench pack` made.")],
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder to make.")],
) -> None:
    """Make a run folder of a packed run, for reports and everything else."""
    from bench.results.pack import unpack

    unpack(file, folder)
    print(f"{folder}: `bench status {folder}` says what is in it")
    end_if_damaged(folder)


def verify(
    run: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or packed runs.")],
    cells: Annotated[int, typer.Option(help="How many cells to compute again, over all runs.")] = 5,
    seed: Annotated[int | None, typer.Option(help="Seed of the draw of cells; default: a new draw.")] = None,
    plugin: PluginFiles = None,
    jobs: Annotated[int | None, typer.Option(help="Cells side by side; default: one per core.")] = None,
    data_root: DataRoot = Path("data"),
    blind: Annotated[
        bool,
        typer.Option("--blind", help="Train without labels of tests; score in a process that loads no plug-in."),
    ] = False,
) -> None:
    """Check all cells of runs and compute some again. Exit status 1: something is not as the runs say; 3: no cell of a
    run could be confirmed."""
    from bench.api.verify import check_runs
    from bench.places import check_file

    files = tuple(check_file(file).resolve() for file in plugin or [])
    verification = check_runs(run, cells, seed, jobs, data_root, files, blind=blind)
    for verdict in verification.verdicts:
        print(f"{WORDS[verdict.outcome]:5} {verdict.cell.id}  {verdict.name}: {verdict.text}")
    same, near, drifted, wrong = (
        sum(verdict.outcome == outcome for verdict in verification.verdicts) for outcome in WORDS
    )
    print(
        f"{verification.cells} cells, {same} computed again as they were, {near} but for rounding, "
        f"{drifted} drifted apart, {wrong} wrong; --seed {verification.seed} draws the same cells"
    )
    if verification.unchecked:
        print(
            f"ids not checked, as they rest on code of plug-ins: {verification.unchecked}; "
            "bench verify without --blind checks them"
        )
    if verification.stopped:
        raise UserError("stopped before the cells drawn were computed")
    names = verification.names
    for folder, shift in verification.shifts.items():
        name = names.get(folder, folder)
        print(f"WRONG {name}: rounding goes up as often as down, and these differences do not: {shift.text}")
    for folder in verification.unconfirmed:
        print(
            f"UNCONFIRMED {names.get(folder, folder)}: all cells computed again drifted apart, so this computer cannot "
            "say whether its numbers are true; a computer with the path named above can. A shift of all numbers shows "
            "where --cells is 20 or more"
        )
    if verification.wrong:
        raise typer.Exit(1)
    if verification.unconfirmed:
        raise typer.Exit(UNCONFIRMED)
