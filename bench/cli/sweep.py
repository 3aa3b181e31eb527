"""`bench sweep`: tune the methods of a study file, run the chosen settings on fresh seeds, and write the report."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from bench.cli.cell_runner import (
    CpusPerCell,
    DeviceOption,
    DevicesPerCell,
    GpusPerCell,
    Jobs,
    RayAddress,
    command_line,
    start_early,
    wished_device,
)
from bench.cli.run import (
    CheckpointSeconds,
    ExecutorOption,
    FallbackOption,
    LaneKernels,
    PluginFiles,
    by_option,
    required,
)
from bench.cli.starting import starting
from bench.cli.track import Tracking, TrackingUri


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
        int | None, typer.Option(help="Trials for each method and task, those of earlier commands included.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds after which no trial is begun.")] = None,
    jobs: Jobs = None,
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
    allow_fallback: FallbackOption = None,
    lane_kernels: LaneKernels = False,
    data_root: Annotated[Path, typer.Option(help="Where data files lie.")] = Path("data"),
    download: Annotated[bool, typer.Option(help="Fetch missing data files.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Only count the cells and estimate their cost.")] = False,
    measure: Annotated[bool, typer.Option(help="In a dry run: time rounds, for a minute at most.")] = False,
    checkpoint_seconds: CheckpointSeconds = 300.0,
    tracking_uri: TrackingUri = None,
    tracking: Tracking = None,
    page: Annotated[bool, typer.Option(help="Make the report's page at the end.")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    _misplaced: Annotated[list[str] | None, by_option("--study")] = None,
) -> None:
    """Tune by validation accuracy, run the best settings on new seeds, and report. Repeat the command to continue."""
    with starting(f"bench sweep: {study} is being read", quiet=quiet or dry_run):
        from bench.plugin import allow, is_near, load_file
        from bench.runs.session_options import SessionOptions
        from sweeps.study_reader import load_study

        options = SessionOptions.of(
            jobs=jobs,
            device=wished_device(device),
            ray=ray,
            cpus_per_cell=cpus_per_cell,
            gpus_per_cell=gpus_per_cell,
            devices_per_cell=devices_per_cell,
            executor=executor,
            allow_fallback=allow_fallback or (),
            lane_kernels=lane_kernels,
            data_root=data_root,
            download=download,
            checkpoint_seconds=checkpoint_seconds,
            tracking_uri=tracking_uri,
            tracking=tracking,
            quiet=quiet,
        )
        for file in plugin or []:
            load_file(file)
        with allow(is_near) if dry_run else nullcontext():
            # before torch is imported, as wrong studies are refused
            loaded_study = load_study(study, set_ or [], trials)
        from bench.runs.run_folder import check_folder  # after the study was read, as it takes pandas

        folder = out or Path("runs") / loaded_study.name
        check_folder(folder, "study", loaded_study.name)
        if dry_run:
            from bench.cli.dry_run import print_study_outline

            print_study_outline(loaded_study, data_root)
        else:
            start_early(ray)

        from bench.api.runner import choose_runner
        from bench.runs.session import Stopped
        from reports.tables.table import to_markdown
        from sweeps.session import open_session, run_study

    session = open_session(loaded_study, folder, options, command_line())
    if dry_run:
        from bench.cli.dry_run import print_study_forecast

        print_study_forecast(loaded_study, session.folder, data_root, options.device, jobs, measure=measure)
        return
    runner = choose_runner(options)
    try:
        end = run_study(
            session,
            loaded_study,
            runner,
            name=study,
            overrides=set_ or [],
            storage=storage,
            timeout=timeout,
            page=page,
        )
    except Stopped:
        print(f"stopped. {session.again}", file=sys.stderr)
        raise typer.Exit(130) from None
    if end.budget is not None:
        print(to_markdown(end.budget))
    if end.page:
        print(end.page)
    if end.failed:
        raise typer.Exit(1)
