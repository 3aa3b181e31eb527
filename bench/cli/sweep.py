"""`bench sweep`: tune the methods of a study file, run the chosen settings on fresh seeds, and write the report."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from bench.cli.commands import (
    DryRun,
    MeasureRounds,
    PluginFiles,
    command_line,
    load_plugins,
    required,
    start_early,
    starting,
    with_session_options,
)
from bench.runs.options import SessionOptions


@with_session_options(without=("keep", "verbose"))
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
    storage: Annotated[
        str | None, typer.Option(help="Optuna's storage; default: RUN/study.db.", show_default=False)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; default: runs/<study name>.")] = None,
    plugin: PluginFiles = None,
    dry_run: DryRun = False,
    measure: MeasureRounds = False,
    page: Annotated[bool, typer.Option(help="Make the report's page at the end.")] = True,
    *,
    options: SessionOptions,
) -> None:
    """Tune by validation accuracy, run the best settings on new seeds, and report. Repeat the command to continue."""
    with starting(f"bench sweep: {study} is being read", quiet=options.quiet or dry_run):
        from bench.plugin import allow, is_near
        from sweeps.study_reader import load_study

        load_plugins(plugin)
        with allow(is_near) if dry_run else nullcontext():
            # before torch is imported, as wrong studies are refused
            loaded_study = load_study(study, set_ or [], trials)
        from bench.runs.run_folder import choose_folder  # after the study was read, as it takes pandas

        folder = choose_folder(out, "study", loaded_study.name)
        if dry_run:
            from bench.cli.dry_run import print_study_forecast

            print_study_forecast(loaded_study, folder, options, measure=measure)
            return
        start_early(options.ray)

        from bench.api.run import choose_runner
        from bench.runs.session import Stopped
        from reports.tables.table import to_markdown
        from sweeps.session import open_session, run_study

    session = open_session(loaded_study, folder, options, command_line())
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
