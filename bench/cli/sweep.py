"""`bench sweep`: tune the methods of a study file, run the chosen settings on fresh seeds, and write the report."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli.cell_runner import (
    CpusPerCell,
    DeviceOption,
    DevicesPerCell,
    GpusPerCell,
    RayAddress,
    choose_runner,
    start_early,
    wished_device,
)
from bench.cli.run import ExecutorOption, PluginFiles, by_option, required
from bench.cli.starting import starting
from bench.cli.track import TrackingUri
from bench.runs.launch import STUDY, check_folder, command_line, make_folder, preparing, print_remarks, work, write_run

if TYPE_CHECKING:
    import optuna

    from bench.runs.plan import PlannedCell
    from bench.settings import Settings
    from sweeps.study import Study


def sweep(
    study: Annotated[
        str,
        typer.Option(
            "--study",
            callback=required("study", "--study "),
            show_default=False,
            help="A study file, or the name of a built-in study.",
        ),
    ] = "",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the study or of its grid; repeatable."),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Trials for each method and task, those of earlier commands included.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(min=0, help="Seconds after which no trial is begun.")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Cells side by side; default: one per core on a CPU, one on a GPU.")
    ] = None,
    storage: Annotated[
        str | None, typer.Option(help="Optuna's storage; default: RUN/study.db.", show_default=False)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; default: runs/<study name>.")] = None,
    plugin: PluginFiles = None,
    device: DeviceOption = None,
    ray: RayAddress = None,
    cpus_per_cell: CpusPerCell = None,
    gpus_per_cell: GpusPerCell = None,
    devices_per_cell: DevicesPerCell = None,
    executor: ExecutorOption = "auto",
    data_root: Annotated[Path, typer.Option(help="Where data files lie.")] = Path("data"),
    download: Annotated[bool, typer.Option(help="Fetch missing data files.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Only count the cells and estimate their cost.")] = False,
    tracking_uri: TrackingUri = None,
    tracking: Annotated[bool, typer.Option(envvar="BENCH_TRACKING", help="Mirror the run in MLflow.")] = True,
    page: Annotated[bool, typer.Option(help="Make the report's page at the end.")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    _misplaced: Annotated[list[str] | None, by_option("--study")] = None,
) -> None:
    """Tune by validation accuracy, run the best settings on new seeds, and report. Repeat the command to continue."""
    with starting(f"bench sweep: {study} is being read", quiet=quiet or dry_run):
        from bench.plugin import allow, is_near, load_file, loaded_files
        from sweeps.study import load_study

        for file in plugin or []:
            load_file(file)
        with allow(is_near) if dry_run else nullcontext():
            loaded = load_study(study, set_ or [], trials)  # a misspelt name is refused before torch is imported
        if not dry_run:
            start_early(ray)

        from bench.results.remarks import fallbacks
        from bench.results.results import load_run
        from bench.runs.cell import Options
        from bench.runs.plan import plan, planned_remarks
        from bench.runs.progress import patience
        from bench.runs.tracking.mirror import choose_store
        from bench.store import store
        from sweeps.fair import cells_again, choose, reported_cells
        from sweeps.finals import check_blind
        from sweeps.run import list_cells, trial_cells, tune
        from sweeps.storage import storage_problems, study_storage

    folder, wish = out or Path("runs") / loaded.name, wished_device(device)
    check_folder(folder, "study", loaded.name)
    if dry_run:
        from bench.cli.dry_run import print_study_forecast

        print_study_forecast(loaded, folder, data_root, wish, jobs)
        return
    runner = choose_runner(ray, jobs, wish, cpus_per_cell, gpus_per_cell, devices_per_cell)

    def options(cells: int | None) -> str:
        found = Options(
            device=runner.device,
            executor=executor,
            threads=runner.threads(cells),
            cells=runner.sharing,
            data_root=data_root,
            plugins=loaded_files(),
        )
        return found.model_dump_json()

    mirror = choose_store(folder, tracking_uri) if tracking else None
    cells = [cell for arm in loaded.arms for cell in arm.cells]
    with patience(preparing(folder, len(cells)), quiet=quiet):
        planned = plan(cells, data_root, download=download)
    if not quiet:
        print_remarks(planned_remarks(planned))
    check_blind(loaded, data_root)
    runner.check([cell.settings for cell in planned], data_root)
    with storage_problems(storage or study_storage(folder)):
        studies = _open(folder, loaded, study, set_ or [], storage)
        write_run(folder, loaded.described_grid, trial_cells(loaded, studies))
        with _followed(folder, mirror):
            said = _quiet if quiet else _say
            outcome = tune(loaded, studies, folder, options=options(None), runner=runner, timeout=timeout, say=said)
            for reason in outcome.failed:
                print(reason, file=sys.stderr)
            if outcome.stopped:
                _stop()
            if outcome.elsewhere:
                print(f"other workers have {outcome.elsewhere} trials; the last one writes the report", file=sys.stderr)
                raise typer.Exit(1 if outcome.failed else 0)
            reported: list[PlannedCell] = []
            for wanted in (cells_again, reported_cells):  # the results of the first cells decide which the second are
                reported = plan(wanted(loaded, choose(loaded, studies, folder)), data_root, download=download)
                with store.locked(folder, wait=True):
                    list_cells(folder, [*trial_cells(loaded, studies), *reported])
                if not work(folder, reported, options(len(reported)), runner, None, quiet=quiet, verbose=False):
                    _stop()
        _write_best(folder, loaded, [cell.settings for cell in reported])
        _report(folder, loaded, studies, page=page)
    if not quiet:
        print_remarks(fallbacks(load_run(folder).cells))
    if outcome.failed or _any_failed(folder, reported):
        raise typer.Exit(1)


def _open(
    folder: Path, study: "Study", name: str, overrides: list[str], storage: str | None
) -> "dict[str, optuna.Study]":
    """Open Optuna's studies and write `study.json`, with which `bench report` finds them again."""
    from bench.runs.tracking.mirror import shown
    from bench.store import inside, store
    from sweeps.run import open_studies
    from sweeps.storage import study_storage

    make_folder(folder)
    with store.locked(folder, wait=True):
        inside.check_place(folder, folder / "study.db")
        studies = open_studies(study, storage or study_storage(folder))
        described = {"file": name, "stem": study.name, "source": study.source, "overrides": overrides}
        trials = {"trials": study.arms[0].trials, "storage": storage and shown(storage)}
        store.write_json(folder / STUDY, described | trials)
    return studies


@contextmanager
def _followed(folder: Path, mirror: str | None) -> Iterator[None]:
    """Mirror the run in MLflow during the block."""
    from bench.runs.tracking.process import DRAIN_SECONDS, Follower

    follower = Follower(folder, mirror) if mirror else None
    try:
        yield
    finally:
        if follower:
            follower.finish(DRAIN_SECONDS)


def _write_best(folder: Path, study: "Study", cells: "list[Settings]") -> None:
    """Write the chosen settings as a grid that runs as it is."""
    from bench.config.listed import write_listed
    from bench.store.store import write_text

    text = write_listed(f"{study.name}_best", f"The settings that the study {study.name} chose.", cells)
    write_text(folder / "best.yaml", text)
    print(f"the chosen settings as a grid: bench run --grid {shlex.quote(str(folder / 'best.yaml'))}", file=sys.stderr)


def _report(folder: Path, study: "Study", studies: "dict[str, optuna.Study]", *, page: bool) -> None:
    from bench.results.pack import TUNING
    from bench.store import inside
    from bench.store.store import write_text
    from reports.page.page import write_report
    from reports.tables.table import to_csv, to_markdown
    from sweeps.fair import budget_table, choose, trials_table
    from sweeps.report import sections

    choices = choose(study, studies, folder)
    table = budget_table(study, choices)
    print(to_markdown(table))
    if page:
        print(write_report([folder], extra=sections(study, studies, folder), tuned=study.metrics))
    else:
        inside.make_folder(folder, (folder / TUNING).parent)
        for one in (table, *(trials_table(choice, f"trials_{at}") for at, choice in enumerate(choices))):
            write_text((folder / TUNING).with_stem(one.id), to_csv(one))


def _any_failed(folder: Path, cells: "list[PlannedCell]") -> bool:
    from bench.store.store import read_status

    return any(read_status(folder / cell.id).state == "failed" for cell in cells)


def _stop() -> None:
    print(f"stopped. The same command goes on: {command_line()}", file=sys.stderr)
    raise typer.Exit(130)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _quiet(line: str) -> None:
    """Say nothing."""
