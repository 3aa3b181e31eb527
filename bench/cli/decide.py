"""`bench decide`: should these sites train together, and how?"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from bench.cli.commands import PluginFiles, given, load_plugins, print_table, starting
from bench.cli.data import (
    CategoriesOption,
    LabelOption,
    LeaveOutOption,
    PartOption,
    SiteOption,
    SubjectOption,
)
from bench.runs.options import DataRoot, Device, Jobs, Quiet


def decide(
    data: Annotated[str, typer.Argument(metavar="FILE|GRID", show_default=False, help="As of `bench data`.")] = "",
    from_summaries: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Only say what summaries of the sites say (bench data --summary)."),
    ] = None,
    label: LabelOption = "",
    site: SiteOption = "",
    subject: SubjectOption = "",
    part: PartOption = "",
    leave_out: LeaveOutOption = None,
    categories: CategoriesOption = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN|repeats", help="Of a table: decide although this alone tells the label; repeatable."
        ),
    ] = None,
    normalise: Annotated[
        str, typer.Option(metavar="per_client|pooled", help="Of a table: whose means its numbers are measured by.")
    ] = "per_client",
    score: Annotated[
        str, typer.Option(metavar="accuracy|auroc|...", help="Decides; default: accuracy, or auroc if a class is rare.")
    ] = "",
    minutes: Annotated[float, typer.Option(help="How long it may take.")] = 30.0,
    seeds: Annotated[
        int | None, typer.Option(help="Of each method, however long that takes; default: as time allows.")
    ] = None,
    margin: Annotated[float, typer.Option(help="Points of the score; what differs by less counts as equal.")] = 1.0,
    confidence: Annotated[float, typer.Option(help="Of the intervals.")] = 0.95,
    out: Annotated[
        Path | None, typer.Option(help="The run folder; default: runs/decide_<data>.", show_default=False)
    ] = None,
    plugin: PluginFiles = None,
    jobs: Jobs = None,
    device: Device = "auto",
    data_root: DataRoot = Path("data"),
    quiet: Quiet = False,
) -> None:
    """Decide from the data of several sites whether to train together, and how. Repeat the command to continue."""
    arguments = given(locals(), "plugin", "from_summaries")
    if from_summaries is not None:
        _print_summaries(from_summaries)
        return
    if not data:
        from bench.config.named_files import missing_option

        raise missing_option("file", "", "decide")
    with starting(f"bench decide: {data} is being read", quiet=quiet):
        from bench.runs.cell_options import check_device_name

        load_plugins(plugin)
        check_device_name(device)

        from bench.api.decide import decide as make

    try:
        decision = make(**arguments)
    except KeyboardInterrupt:
        print("stopped. The same command goes on", file=sys.stderr)
        raise typer.Exit(130) from None
    print(decision.headline)
    for text in decision.sentences:
        print(f"- {text}")
    if decision.page is None:
        raise typer.Exit(1)
    print(decision.page)


def _print_summaries(folder: Path) -> None:
    import pandas as pd

    from reports.decision.summaries import compare, read_summaries

    (heads, *lines), sentences = compare(read_summaries(folder))
    print_table(pd.DataFrame(lines, columns=heads), index=False)
    for text in sentences:
        print(f"- {text}")
