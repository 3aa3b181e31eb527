"""`bench pack`, `unpack` and `verify`: a run as one file, and a check that its results can be reproduced."""

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli.commands import PluginFiles, RunFolder
from bench.cli.results import end_if_damaged
from bench.errors import UserError
from bench.runs.options import DataRoot

if TYPE_CHECKING:
    from bench.runs.verify.verify import Checked

WORDS = {"same": "ok", "near": "near", "drifted": "drifted", "wrong": "WRONG"}
"""First words of the lines of `bench verify`, by outcome."""
UNCONFIRMED = 3
"""Exit status where nothing is wrong, and nothing could be confirmed."""

SHARES = (0.05, 0.3)
"""Shares of forged cells for which a draw's chance to meet one is printed."""


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
    if 0 < cells < verification.cells:
        from bench.runs.verify.verify import discovery  # here, as it takes torch

        chances = (discovery(verification.cells, math.ceil(share * verification.cells), cells) for share in SHARES)
        print(
            f"if cells were forged by somebody who did not know the draw, {cells} meet one with a probability of "
            + ", ".join(f"{chance:.2g} if {share:.0%} are" for share, chance in zip(SHARES, chances, strict=True))
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
    for folder, note in verification.notes.items():
        print(f"{names.get(folder, folder)}: {note}")
    _say_drift(verification, names)
    if verification.wrong:
        raise typer.Exit(1)
    if verification.unconfirmed:
        raise typer.Exit(UNCONFIRMED)


def _say_drift(verification: "Checked", names: dict[Path, Path]) -> None:
    """Print which runs could not be confirmed, and how many cells would tell rounding from a shift."""
    from bench.runs.verify.drift import ENOUGH, FEWEST
    from bench.runs.verify.verify import by_run

    for folder, verdicts in by_run(verification.verdicts).items():
        drifted = sum(verdict.outcome == "drifted" for verdict in verdicts)
        if folder in verification.shifts or 2 * drifted <= len(verdicts):
            continue
        name = names.get(folder, folder)
        if folder in verification.unconfirmed:
            print(
                f"UNCONFIRMED {name}: all {drifted} cells computed again drifted apart, so this computer "
                "cannot say whether its numbers are true; a computer with the path named above can"
            )
        if drifted < FEWEST:
            print(
                f"{name}: too few cells drifted ({drifted}) to tell a shift of all numbers from rounding: "
                f"--cells {ENOUGH} or more would"
            )
