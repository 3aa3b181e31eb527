"""`bench.report`: the report of runs, from Python."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from bench.api import refuse_text
from bench.errors import UserError, refusing_exits
from bench.places import check_output_folder
from reports.page.client_pages import write_client_pages
from reports.page.page import write_report
from reports.reading.load import load
from reports.tables.cost import read_targets
from reports.tables.latex import Latex
from sweeps.report import run_sections, tuned_for

SELECTIONS = ("validation", "peak", "tail", "last")


@refusing_exits()
def report(
    runs: Path | str | Sequence[Path | str],
    *,
    selection: Literal["validation", "peak", "tail", "last"] | None = None,
    target: Sequence[str] = (),
    margin: float = 0.5,
    latex: Literal["gm", "pm", "both"] = "both",
    transpose: bool = False,
    columns: Sequence[str] = (),
    storage: str | None = None,
    clients: bool = False,
) -> Path:
    """Make the report, like `bench report`: a page with tables and figures, and each of them as a file.

    Args:
        runs: run folders; several are merged.
        selection: which round is reported; default: as the protocol says.
        target: accuracies to which costs are counted, `[TASK=]PERCENT` each.
        margin: percentage points; methods that differ by less are equivalent.
        latex: which accuracies `main.tex` has.
        transpose: methods as columns of `main.tex`.
        columns: tasks of `main.tex`: those with one of these parts in their name; empty: all.
        storage: where the run's study keeps its trials; default: `study.db` in the run folder.
        clients: also write a page for each client, `report/clients/TASK/CLIENT/index.html`.

    Returns:
        The page, `report/index.html` in the first run.

    Raises:
        UserError: a folder is not a run, no cell of it is done, or an argument cannot be.

    Examples:
        >>> import bench
        >>> run = bench.run({"methods": ["fedavg"], "datasets": ["digits"], "alphas": [0.5], "seeds": [0], "clients": 5,
        ...                  "rounds": 2, "model": "logistic"}, out="runs/one", tracking=False, quiet=True)
        >>> page = bench.report("runs/one")
        >>> page.as_posix()
        'runs/one/report/index.html'
        >>> (page.parent / "main.tex").exists()
        True
    """
    refuse_text(target=target, columns=columns)
    folders = [Path(run) for run in ([runs] if isinstance(runs, Path | str) else runs)]
    if selection is not None and selection not in SELECTIONS:
        raise UserError(f"--round {selection}: should be {', '.join(SELECTIONS[:-1])} or {SELECTIONS[-1]}")
    if latex not in ("gm", "pm", "both"):
        raise UserError(f"--latex {latex}: should be gm, pm or both")
    if margin < 0:
        raise UserError(f"--margin {margin:g}: should be 0 or more")
    targets = read_targets(target)
    sections, tuned = run_sections(folders[0], storage), tuned_for(folders[0])
    arranged = Latex(latex, transpose, columns)
    check_output_folder(folders[0], "")
    page = write_report(
        folders, extra=sections, selection=selection, targets=targets, tuned=tuned, latex=arranged, margin=margin
    )
    if clients:
        write_client_pages(replace(load(folders), choice=selection or ""), page.parent)
    return page
