"""`bench pack`, `unpack` and `verify`: a run as one file, and a check that its results can be reproduced."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli.results import RunFolder
from bench.cli.run import PluginFiles
from bench.errors import UserError

if TYPE_CHECKING:
    from bench.runs.verify.verify import Checked

WORDS = {"same": "ok", "near": "near", "drifted": "drifted", "wrong": "WRONG"}
"""What the lines of `bench verify` begin with, by outcome."""
UNCONFIRMED = 3
"""Exit status where nothing is wrong, and nothing could be confirmed."""


def pack(
    run: RunFolder,
    out: Annotated[Path | None, typer.Option(help="The file; default: RUN.tar.xz.")] = None,
) -> None:
    """Pack a run's finished cells into one small file to publish."""
    from bench.results.pack import SUFFIX, pack

    file = out or run.resolve().with_name(run.resolve().name + SUFFIX)
    count = pack(run, file)
    print(f"{file}: {count} cells, {file.stat().st_size / 1e6:.2f} MB")


def unpack(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `bench pack` made.")],
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder to make.")],
) -> None:
    """Make a run folder of a packed run, for reports and everything else."""
    from bench.results.pack import unpack

    unpack(file, folder)
    print(f"{folder}: `bench status {folder}` says what is in it")


def verify(
    run: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or packed runs.")],
    cells: Annotated[int, typer.Option(min=0, help="How many cells to compute again, over all runs.")] = 5,
    seed: Annotated[int | None, typer.Option(help="Of the draw of cells; default: a new one.")] = None,
    plugin: PluginFiles = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Cells side by side; default: one per core.")] = None,
    data_root: Annotated[Path, typer.Option(help="Where data files lie.")] = Path("data"),
    blind: Annotated[
        bool,
        typer.Option("--blind", help="Train without labels of tests; score in a process that loads no plug-in."),
    ] = False,
) -> None:
    """Check all cells of runs and compute some again. Exit status 1: something is not as the runs say; 3: no cell of a
    run could be confirmed."""
    import secrets
    import tempfile

    from bench.plugin import file_path, load_file
    from bench.results.results import load_run
    from bench.runs.cell import Options
    from bench.runs.verify.judge import Judge
    from bench.runs.verify.verify import verify
    from bench.runs.workers import LocalRunner

    drawn = secrets.randbelow(2**31) if seed is None else seed
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory() as new:
        files = tuple(file_path(file) for file in plugin or [])
        scored = Path(scratch, "scored")
        scored.mkdir()
        judge = Judge(scored, data_root) if blind else None
        for file in () if judge else files:
            load_file(file)
        views = [load_run(_folder(one, Path(scratch, str(number)))) for number, one in enumerate(run)]
        runner = LocalRunner(jobs, "auto")
        options = Options(cells=runner.sharing, data_root=data_root, plugins=files, blind=blind).model_dump_json()
        found = verify(views, cells, drawn, Path(new), options, runner, data_root, judge)
    for verdict in found.verdicts:
        print(f"{WORDS[verdict.outcome]:5} {verdict.cell.id}  {verdict.cell.name}: {verdict.text}")
    same, near, drifted, wrong = (sum(verdict.outcome == one for verdict in found.verdicts) for one in WORDS)
    print(
        f"{sum(len(view.cells) for view in views)} cells, {same} computed again as they were, {near} but for rounding, "
        f"{drifted} drifted apart, {wrong} wrong; --seed {drawn} draws the same cells"
    )
    if judge and judge.unchecked:
        print(
            f"ids not checked, as they rest on code of plug-ins: {judge.unchecked}; "
            "bench verify without --blind checks them"
        )
    if found.stopped:
        raise UserError("stopped before the cells drawn were computed")
    names = {view.path: name for view, name in zip(views, run, strict=True)}
    for folder, shift in found.shifts.items():
        print(f"WRONG {names.get(folder, folder)}: rounding is as often up as down, and this is not: {shift.text}")
    _say_drift(found, names)
    if found.wrong:
        raise typer.Exit(1)
    if found.unconfirmed:
        raise typer.Exit(UNCONFIRMED)


def _say_drift(found: "Checked", names: dict[Path, Path]) -> None:
    """Say what could not be confirmed, and how many cells would tell rounding from a shift."""
    from bench.runs.verify.drift import ENOUGH, FEWEST
    from bench.runs.verify.verify import by_run

    for folder, verdicts in by_run(found.verdicts).items():
        drifted = sum(verdict.outcome == "drifted" for verdict in verdicts)
        if folder in found.shifts or 2 * drifted <= len(verdicts):
            continue
        name = names.get(folder, folder)
        if folder in found.unconfirmed:
            print(
                f"UNCONFIRMED {name}: all {drifted} cells computed again drifted apart, so this computer "
                "cannot say whether its numbers are true; one of the path that the lines name can"
            )
        if drifted < FEWEST:
            print(
                f"{name}: too few cells drifted ({drifted}) to tell a shift of all numbers from rounding: "
                f"--cells {ENOUGH} or more would"
            )


def _folder(run: Path, scratch: Path) -> Path:
    """The run's folder; a packed run is unpacked into `scratch`."""
    from bench.results.pack import unpack

    if not run.is_file():
        return run
    unpack(run, scratch)
    return scratch
