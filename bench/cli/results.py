"""`bench status`, `clean`, `log`, `results`, `report` and `compare`: the content of run folders."""

import contextlib
import json
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bench.cli.commands import RunFolder, given, load_plugins, one_cell, print_table
from bench.errors import UserError

if TYPE_CHECKING:
    from bench.results.results import CellView


def end_if_damaged(*runs: Path) -> None:
    """Name the damaged cells of runs and exit with status 1: what was printed or written before lacks them."""
    from bench.results.results import damaged, load_run

    if texts := [text for run in runs for text in damaged(load_run(run).cells)]:
        print(*texts, sep="\n", file=sys.stderr)
        raise typer.Exit(1)


def status(
    run: RunFolder,
    all_: Annotated[bool, typer.Option("--all", help="Also cells of earlier settings, code or data.")] = False,
) -> None:
    """Show what is done, running and failed, and the time that is left."""
    from bench.results.remarks import run_remarks
    from bench.results.results import load_run, other_cells
    from bench.runs.progress import duration_text

    cells = list({cell.id: cell for cell in load_run(run).cells}.values())
    for cell in cells:
        print(_status_line(cell))
    if all_ and (others := other_cells(run)):
        print(f"of earlier settings, code or data ({len(others)} cells, not in results and reports):")
        for cell in others:
            print(_status_line(cell))
    counts = Counter(cell.status.state for cell in cells)
    print(f"{len(cells)} cells: " + ", ".join(f"{count} {state}" for state, count in counts.most_common()))
    for text in run_remarks(cells):
        print(f"note: {text}")
    seconds = _seconds_left(cells)
    if seconds:
        running = max(1, counts["running"])
        print(f"about {duration_text(seconds / running)} left with {running} side by side")


def _status_line(cell: "CellView") -> str:
    reason = f", {cell.status.reason}" if cell.status.reason else ""
    rounds = f"round {cell.status.rounds}/{cell.settings.rounds}"
    return f"{cell.id}  {cell.name}: {cell.status.state}, {rounds}{_steps(cell)}{reason}"


def _steps(cell: "CellView") -> str:
    """Text on a cell's steps: the share of them that were played back, and whether that is less than was planned.

    A step is recorded after so many calls that short cells play back none; that is no fault, and the text is empty.
    """
    from bench.store.store import read_timing

    words = [cell.status.steps] if cell.status.steps not in ("", "as planned") else []
    calls = read_timing(cell.folder).get("steps", {})
    if recorded := sum(calls.values()) - calls.get("eager", 0):
        words.append(f"{recorded / sum(calls.values()):.0%} of its training calls sped up by {cell.status.backend}")
    return "".join(f", {word}" for word in words)


def clean(
    run: RunFolder,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove them; without it they are only listed.")] = False,
) -> None:
    """Remove cells of earlier settings, code or data. Features that no cell uses go, too."""
    from bench.results.results import load_run, other_cells
    from bench.store import inside, store
    from bench.store.features import unused_files

    others = {cell.folder: _status_line(cell) for cell in other_cells(run)}
    for folder, line in others.items():
        print(line)
        if yes:
            try:
                store.remove_cell(folder)
            except store.BusyError as error:
                raise UserError(f"{error}. Stop that `bench run` first.") from None
    unused = unused_files(run, {cell.id for cell in load_run(run).cells})
    for file in unused:
        print(f"{file.relative_to(run)}: features that no cell uses")
        if yes:
            inside.remove(file)
    if yes and unused:
        with contextlib.suppress(OSError):  # others are left
            unused[0].parent.rmdir()
    outcome = "removed" if yes else f"would be removed; `bench clean {shlex.quote(str(run))} --yes` does it"
    counts = [f"{len(others)} cells"] * bool(others) + [f"{len(unused)} files of features"] * bool(unused)
    all_used = "nothing to remove: all cells belong to the latest settings"
    print(f"{' and '.join(counts)} {outcome}" if counts else all_used)


def log(
    run: RunFolder,
    cell: Annotated[str, typer.Argument(metavar="CELL", help="A cell's id, or the beginning of it.")],
) -> None:
    """Print a cell's log and, if it failed, its error."""
    from bench.store import inside

    view = one_cell(run, cell)
    reason = f", {view.status.reason}" if view.status.reason else ""
    print(f"{view.id}  {view.name}: {view.status.state}{reason}")
    for path in (view.folder / "log.txt", view.folder / "error.txt"):
        if inside.is_file(path):
            print(inside.read_bytes(path).decode(errors="replace"), end="")


def results(
    run: RunFolder,
    csv: Annotated[bool, typer.Option("--csv", help="Every score of every cell as CSV, a row for each.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False,
    metric: Annotated[
        str | None,
        typer.Option(help="One score that the run has, such as auroc; default: accuracy, and all in --csv and --json."),
    ] = None,
) -> None:
    """Print a short table of results, or a row per cell and score. Exit status 1: a damaged cell was left out."""
    from bench.results.results import load_run

    if csv or as_json:
        figures = load_run(run).scores(metric)
        if csv:
            figures.to_csv(sys.stdout, index=False, lineterminator="\n")
        else:
            figures = figures.astype(object)
            print(json.dumps(figures.where(figures.notna(), None).to_dict("records"), indent=1))
    else:
        print_summary(run, metric or "accuracy")
    end_if_damaged(run)


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders; several are merged.")],
    selection: Annotated[
        Literal["validation", "peak", "tail", "last"] | None,
        typer.Option("--round", help="Which round is reported; default: as the protocol says.", show_default=False),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(metavar="[TASK=]PERCENT", help="Accuracy to which costs are counted; repeatable."),
    ] = None,
    margin: Annotated[float, typer.Option(help="Percentage points; methods that differ by less are equivalent.")] = 0.5,
    latex: Annotated[Literal["gm", "pm", "both"], typer.Option(help="Which accuracies main.tex has.")] = "both",
    transpose: Annotated[bool, typer.Option("--transpose", help="Methods as columns of main.tex.")] = False,
    columns: Annotated[
        list[str] | None,
        typer.Option(metavar="PART", help="Tasks of main.tex: those with PART in their name; repeatable."),
    ] = None,
    plugin: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE.py", help="Load a plug-in that the run's study needs; repeatable."),
    ] = None,
    storage: Annotated[
        str | None, typer.Option(help="Where the run's study keeps its trials; default: RUN/study.db.")
    ] = None,
    clients: Annotated[bool, typer.Option("--clients", help="Also a page for each client.")] = False,
) -> None:
    """Make the report: RUN/report/index.html, tables and figures."""
    arguments = given(locals(), "plugin")

    from bench.api.report import report as make_report

    load_plugins(plugin)
    print(make_report(**arguments))
    end_if_damaged(*runs)


def compare(
    before: Annotated[Path, typer.Argument(metavar="RUN_A", help="The run folder of before.")],
    after: Annotated[Path, typer.Argument(metavar="RUN_B", help="That of after.")],
) -> None:
    """Show what changed between two runs of a grid. Exit status 1: something did."""
    from reports.tables.compare import compare_runs
    from reports.tables.table import to_markdown

    table = compare_runs(before, after)
    print(to_markdown(table) if table.rows else table.caption)
    end_if_damaged(before, after)
    if table.rows:
        raise typer.Exit(1)


def print_summary(run: Path, metric: str = "accuracy") -> None:
    """Print accuracies in percent, or another score, by label and setting: GM and PM, mean and standard deviation over
    seeds."""
    from bench.results.remarks import missing_scores
    from bench.results.results import load_run, tidy
    from bench.results.summary import summary, undone
    from bench.settings import RECORDED

    figures = tidy(run, metric)
    if metric not in RECORDED:
        for note in missing_scores(load_run(run).cells):
            print(f"note: {note}")
    if text := undone(figures):
        print(text)
    for title, entries in summary(figures, metric):
        print(title)
        print_table(entries)
    for note in load_run(run).privacy_notes:
        print(f"note: {note}")


def _seconds_left(cells: "list[CellView]") -> float | None:
    """Estimated seconds that one process needs for the remaining rounds, from the seconds of the finished rounds."""
    from bench.store.store import FINISHED, read_timing

    timings = {cell.id: read_timing(cell.folder) for cell in cells}
    seconds = sum(timing["seconds"] for timing in timings.values() if timing)
    rounds_done = sum(cell.status.rounds for cell in cells if timings[cell.id])
    rounds_left = sum(cell.settings.rounds - cell.status.rounds for cell in cells if cell.status.state not in FINISHED)
    return seconds * rounds_left / rounds_done if rounds_done else None
