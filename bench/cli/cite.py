"""`bench cite`: BibTeX of methods, data sets, attacks, server rules, channels, adapters, and runs."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bench.settings import Settings


def cite(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME | RUN]...",
            help="Methods, data sets, attacks, ..., and run folders; without any, pFLeague itself.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print the BibTeX of methods, data sets, attacks and so on, or of all that a run used."""
    from bench.citations import cite as collect
    from bench.citations import known_names, software

    if not names:
        print(software(), end="")
        return
    ids = known_names()
    runs = [name for name in names if name not in ids and (os.sep in name or Path(name).exists())]
    cells: list[Settings] = []
    if runs:
        from bench.results.results import load_run  # imports pandas

        cells = [cell.settings for run in runs for cell in load_run(run).cells]
    citation = collect([name for name in names if name not in runs], cells)
    print(citation.bibtex, end="")
    for note in citation.notes:
        print(f"note: {note}", file=sys.stderr)
