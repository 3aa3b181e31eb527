"""`bench data`: how the data of a grid, or a table, lie over the sites."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.cli.commands import PluginFiles, given, load_plugins, print_table, required, starting
from bench.errors import UserError
from bench.places import check_output_file
from bench.runs.options import DataRoot

SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="FILE|GRID",
        callback=required("file"),
        show_default=False,
        help="A table (.csv, .parquet, or a folder of them), a grid file, or the name of a built-in grid.",
    ),
]
LabelOption = Annotated[str, typer.Option(help="Of a table: the column of labels.")]
SiteOption = Annotated[str, typer.Option(help="Of a table: the column of sites; of a folder each file is a site.")]
SubjectOption = Annotated[
    str, typer.Option(help="Of a table: the column of subjects; rows of one subject are kept together.")
]
PartOption = Annotated[str, typer.Option(help="Of a table: the column that says of each row: train or test.")]
LeaveOutOption = Annotated[
    list[str] | None, typer.Option(metavar="COLUMN", help="Of a table: a column that is not a feature; repeatable.")
]
CategoriesOption = Annotated[
    list[str] | None, typer.Option(metavar="COLUMN", help="Of a table: a column whose numbers are names; repeatable.")
]


def data(
    source: SourceArgument = "",
    label: LabelOption = "",
    site: SiteOption = "",
    subject: SubjectOption = "",
    part: PartOption = "",
    leave_out: LeaveOutOption = None,
    categories: CategoriesOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a page of it, which needs nothing else.")
    ] = None,
    summary: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Only write what a site may tell others of its table, with noise."),
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Of --summary: of differential privacy.")] = None,
    bounds: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Of --summary: ranges and categories that sites agreed on.")
    ] = None,
    plugin: PluginFiles = None,
    data_root: DataRoot = Path("data"),
) -> None:
    """Look at data before any training: sites, sizes, classes, gaps, how different the sites are, what is too small.

    A table that cannot be read so is refused with all that is wrong with it.
    """
    arguments = given(locals(), "as_json", "html", "plugin", "summary", "epsilon", "bounds")
    if summary is not None:
        from bench.results.site_summary import summarise_table

        typer.echo(summarise_table(Path(source), summary, label, subject, bounds, epsilon))
        return

    from bench.plugin import allow, is_near

    load_plugins(plugin)
    if html is not None and check_output_file(html, "--html").suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--html {html}: the name of a page ends in .html")
    with allow(is_near), starting("Reading the data ...", quiet=as_json):
        from bench.api.data_source import cells_of
        from bench.results.data_description import describe

        cells = cells_of(**arguments)
        entries = [describe(cell, data_root) for cell in cells]
    if html is not None:
        from reports.page.data_page import write_data_page

        write_data_page(html, entries)
    if as_json:
        typer.echo(json.dumps(entries, indent=2))
        return
    for entry in entries:
        _print(entry)
    if html is not None:
        typer.echo(html)


def _print(entry: dict[str, Any]) -> None:
    import pandas as pd

    sites, classes = entry["sites"], entry["classes"]
    typer.echo(
        f"{entry['data']}: {len(sites)} client{'s' * (len(sites) != 1)} by partition {entry['partition']!r} (seed "
        f"{entry['seed']}), samples of shape {entry['shape']}, {len(classes)} classes"
    )
    if entry["features"]:
        typer.echo(f"features: {', '.join(entry['features'])}")
    listed, rows = len(classes) <= 6, {}
    for site in sites:
        counts = site["classes"] if listed else [sum(count > 0 for count in site["classes"])]
        numbers = {"± points": _number(site["within"], 0), "missing %": _number(100 * site["missing"], 1)}
        numbers |= {name: _number(site[name.replace(" ", "_")], 2) for name in ("label distance", "feature score")}
        sizes = {name: site[name] for name in ("train", "validation", "test")}
        rows[site["name"]] = sizes | numbers | dict(zip(classes if listed else ["classes"], counts, strict=True))
    print_table(pd.DataFrame.from_dict(rows, orient="index").rename_axis("site", axis=1))
    typer.echo(
        "± points: a site's test tells an accuracy of 50 % within so many (95 %). Of training samples: label distance, "
        "0 as at the others, 1 no class in common; feature score, 0.5 inputs like the others', 1 always told apart."
    )
    for text in entry["remarks"]:
        typer.echo(f"- {text}")


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
