"""The folder of a run: which grid or study it belongs to, how it is made, and `run.json`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bench.config.grid import Grid
from bench.errors import UserError
from bench.places import check_output_folder
from bench.runs.plan import data_notes
from bench.store import store
from bench.store.documents import read_run_file
from bench.store.provenance import provenance

if TYPE_CHECKING:
    from bench.runs.plan import PlannedCell

STUDY = "study.json"
"""In a run folder: the study that filled it."""


def choose_folder(
    out: Path | str | None, kind: Literal["grid", "study"], name: str, *, take_over: bool = False
) -> Path:
    """Choose the run folder of a grid or study, by default `runs/<name>`, and check that it can be, before anything is
    measured or read.

    An edited grid goes into its folder again, by its name. The cells of another one would vanish from results and
    reports, so its folder is only taken over where the user asks for that. A study has its trials in its folder, which
    nobody takes over: neither another study nor a grid of the same name.

    Raises:
        UserError: nothing can be written there; or its path is not text in UTF-8, as run.json must name it; or the
            folder is another grid's or study's.
    """
    folder = Path(out) if out else Path("runs") / name
    if any("\ud800" <= letter <= "\udfff" for letter in str(folder)):
        raise UserError(f"--out {str(folder)!a}: its name is not text in UTF-8; give another one")
    check_output_folder(folder)
    info = read_run_file(folder)
    if info is None or take_over:
        return folder
    before = "study" if (folder / STUDY).exists() else "grid"
    if (before, info.get("grid", name)) == (kind, name):
        return folder
    remedy = "Give another --out"
    if kind == "grid":
        remedy += (
            ", or --take-over (in Python take_over=True) to use the folder for this grid: the others' cells stay "
            "there, but results and reports no longer show them"
        )
    raise UserError(f"{folder} has the cells of {before} {info['grid']!r}, and this is {kind} {name!r}. {remedy}")


def check_there(folder: Path) -> None:
    """Check that a run folder is still where it was when its cells began.

    Raises:
        UserError: somebody removed or moved it; what its cells would write from now on would be lost.
    """
    if not (folder / "run.json").exists():
        raise UserError(f"{folder} was removed or moved while its cells ran, so they were stopped: run them again")


def forget(folder: Path, cells: "Sequence[PlannedCell]") -> None:
    """Remove the results and checkpoints of cells, so that they start again.

    Raises:
        UserError: another process works on one of the cells.
    """
    for cell in cells:
        try:
            store.forget(folder / cell.id)
        except store.BusyError as error:
            raise UserError(f"--fresh: {error}. Stop that `bench run` first.") from None


def call_text(function: str) -> str:
    """Text for `run.json` in place of a command, e.g. `bench.run, called in mine.py`."""
    return f"{function}, called in {Path(sys.argv[0]).name or 'a prompt'}"


def write_run(
    folder: Path,
    grid: Grid,
    planned: "Sequence[PlannedCell]",
    command: str | None = None,
    draws: Sequence[Sequence[int]] = (),
) -> None:
    """Write `run.json`: the latest grid, its cells in order, notes on their data, and every command so far.

    Args:
        draws: seeds of each independent draw of a study's tuning: one draw is one unit of its intervals.
    """
    cells = [{"id": cell.id, "label": cell.settings.name, "settings": cell.settings.model_dump()} for cell in planned]
    notes = {"notes": texts} if (texts := data_notes(planned)) else {}
    entry = {"command": command or call_text("bench.run"), **provenance()}
    folder.mkdir(parents=True, exist_ok=True)
    with store.locked(folder, wait=True):
        last_document = read_run_file(folder) or {}
        history = [*last_document.get("history", []), entry]
        created = last_document.get("created", entry["time"])
        of_study = {"draws": [list(seeds) for seeds in draws]} if draws else {}
        named = {"cases": list(grid.cases), "reference": grid.reference} if grid.cases else {}
        parts = {**entry, **notes, **of_study, **named}
        document = {"grid": grid.name, "published": grid.published, "created": created, **parts}
        store.write_json(folder / "run.json", {**document, "source": grid.source, "history": history, "cells": cells})
