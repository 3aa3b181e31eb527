"""Publication of a league's entry: a folder that others can verify, and the parts of a pull request."""

import csv
import importlib.metadata
import inspect
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from bench.child_processes import safe_path
from bench.citations import cite
from bench.config.digests import sources
from bench.config.identity import cell_id, declared_checksum
from bench.errors import UserError
from bench.plugin import FILE_MODULE, METHODS, OURS
from bench.results.cell_names import drawn, task_name
from bench.results.results import RunView
from bench.store.store import FINISHED, read_timing
from reports.league.archive import write_files
from reports.league.rule import REFERENCES, evaluations_on_tests
from reports.league.tuning import budget_text, budgets, was_tuned
from reports.page.section import environment
from reports.tables.table import Column, Table, TableEntry, amount, to_latex, words

ENTRIES = Path("reports", "league", "entries")
"""Where entries lie in the repository, each with its plug-in beside it."""
_PASSED = (0, 3)
"""Exit statuses of a verification: all is as it was; or on this kind of processor no drawn cell could be confirmed."""
_TEMPLATES = Path(__file__).parent / "templates"
_BEST = 3
"""So many of the league stand beside a method, and the references."""


def write_export(entry: Path, run: RunView, page: Path, out: Path, study: str) -> list[str]:
    """Gather in a folder what a publication needs of an entry; returns warnings of what its reader will miss.

    Args:
        entry: the packed run.
        run: the same unpacked.
        page: the league's page, with the entry on it.
        study: name of the league's study.

    Raises:
        UserError: the method's code here is not what the entry was computed with, or the page is not there.
    """
    name = run.cells[0].label
    check_code(entry, run)
    budget = budget_text([run.path])
    tables = {figure: _beside(page / f"main_{figure}.csv", name, figure, study, budget) for figure in ("pm", "gm")}
    code = own_files(run.cells[0].settings.method)
    facts = _facts(run) | {"entry": entry.name, "study": study, "plugin": next(iter(code.values()), None)}
    texts = {f"table_{figure}.tex": to_latex(table) for figure, table in tables.items()}
    texts |= {"settings.yaml": _settings(run), "environment.txt": installed()}
    engine = environment(_TEMPLATES, escaped=False)
    texts |= {template: engine.get_template(template).render(facts) for template in engine.list_templates()}
    note = f"Commit {facts['commit']}; {study}, entry {facts['method']}"
    used = [cell.settings for cell in run.cells]
    texts["CITATION.bib"] = cite(cells=used, year=facts["year"], version=facts["version"], note=note).bibtex
    files = {entry.name: entry.read_bytes(), **{str(place): file.read_bytes() for file, place in code.items()}}
    write_files(out, files | {file_name: text.encode() for file_name, text in texts.items()})
    warnings: list[str] = facts["warnings"]
    return warnings


def check_code(entry: Path, run: RunView) -> None:
    """Refuse code under which the cells would have other ids: nobody could verify the entry with it."""
    for cell in run.cells:
        if cell_id(cell.settings, declared_checksum(cell.settings)) != cell.id:
            raise UserError(
                f"{entry}: {cell.name} was computed with other code than that of the method {cell.settings.method!r} "
                "here, so nobody could verify it. Run it again, or restore the file as it was"
            )


def own_files(method: str) -> dict[Path, Path]:
    """List the files of a plug-in's method and their places in the folder, its own first; none for a method that is
    installed."""
    item = METHODS.get(method)
    if not item.__module__.startswith(FILE_MODULE):
        return {}
    file = Path(inspect.getfile(item))
    modules = sources(item.__module__, file)
    paths = [path for module, path in modules.items() if module.partition(".")[0] not in OURS]
    return {path: path.relative_to(file.parent) for path in paths if path.is_relative_to(file.parent)}


def _beside(file: Path, method: str, figure: str, study: str, budget: str) -> Table:
    """Set the method beside a few others in a table of the width of a page: tasks below each other.

    Args:
        file: the page's main table, the best method first.
    """
    if not file.exists():
        raise UserError(f"there is no {file}: `bench league report` makes it")
    rows: dict[str, dict[str, TableEntry]] = {}
    with open(file, encoding="utf-8", newline="") as lines:
        for line in csv.DictReader(lines):
            rows.setdefault(line["row"], {})[line["column"]] = _entry(line)
    if method not in rows:
        raise UserError(f"{file} has no {method!r}: `bench league report` makes the page with it")
    ranked = [row for row, entries in rows.items() if entries["tier"].value is not None]
    others = [row for row in (*REFERENCES, *ranked[:_BEST]) if row in rows and row != method]
    shown = [method, *dict.fromkeys(others)]
    caption = (
        f"{figure.upper()} accuracy on test samples in percent, means over seeds, on each task of {study}: {method} "
        f"beside {len(shown) - 1} of the league's {len(rows) - 1} other methods, each {budget}. Among "
        "all of them, bold: the best of the task; ≈: equivalent to it; †: undecided; in brackets: not trained by the "
        "method, or not ranked."
    )
    return Table(
        f"{method}_{figure}",
        f"{method} in the league",
        caption,
        "Task",
        tuple(map(Column, shown)),
        tuple((column, tuple(rows[row][column] for row in shown)) for column in rows[method]),
    )


def _entry(line: dict[str, Any]) -> TableEntry:
    if not line["value"]:
        return words(line["note"])
    decimals = len(line["value"].partition(".")[2])
    return TableEntry(
        float(line["value"]), note=line["note"], mark=line["mark"], derived=bool(line["derived"]), decimals=decimals
    )


def _settings(run: RunView) -> str:
    """The settings that the cells have, by task and draw of tuning."""
    draws = {seed: number for number, seeds in enumerate(run.info.get("draws", []), start=1) for seed in seeds}
    chosen = {
        drawn(task_name(cell.settings), draws.get(cell.settings.seed, 0)): {"lr": cell.settings.lr, **cell.settings.hp}
        for cell in run.cells
    }
    what = (
        f"What tuning chose for {run.cells[0].label}"
        if was_tuned(run.path)
        else f"The defaults of {run.cells[0].label}"
    )
    head = f"# {what}, by task. All other settings are the league's.\n"
    return head + yaml.safe_dump(chosen, sort_keys=False)


def installed() -> str:
    """The installed packages with their versions, a line each."""
    names = sorted(f"{package.name}=={package.version}" for package in importlib.metadata.distributions())
    return "".join(f"{name}\n" for name in names)


def _facts(run: RunView) -> dict[str, Any]:
    """Collect what the templates say of an entry; all of it is read from the entry."""
    done = [cell for cell in run.cells if cell.status.state in FINISHED]
    info, commit = run.info, run.info["commit"] or ""
    warnings = []
    if not commit:
        warnings.append("the harness was no git checkout: no commit says which code computed this entry")
    elif commit.endswith("-dirty"):
        warnings.append(
            f"the harness had edits that are in no commit ({commit}): others can verify it with {commit[:-6]} only if "
            "the edits change no results"
        )
    if missing := len(run.cells) - len(done):
        warnings.append(f"{missing} cells are missing: the method has no rank")
    return {
        "method": run.cells[0].label,
        "cells": len(done),
        "diverged": sum(cell.status.state == "diverged" for cell in done),
        "tasks": len({task_name(cell.settings) for cell in done}),
        "seeds": ", ".join(map(str, sorted({cell.settings.seed for cell in done}))),
        "commit": commit.removesuffix("-dirty") or "unknown",
        "version": info["versions"]["pFLeague"],
        "versions": ", ".join(f"{name} {version}" for name, version in info["versions"].items()),
        "machine": ", ".join(f"{name} {value}" for name, value in info["machine"].items()),
        "date": info["time"],
        "year": info["time"][:4],
        "command": info["command"],
        "minutes": sum(float(read_timing(cell.folder).get("seconds", 0.0)) for cell in done) / 60,
        "evaluations": sum(map(evaluations_on_tests, done)),
        "warnings": warnings,
        "draws": len(info.get("draws", [])),
        **(_budget(run.path) if was_tuned(run.path) else {"trials": 0}),
    }


def _budget(entry: Path) -> dict[str, Any]:
    """Trials, rounds and hours of tuning, summed over tasks."""
    lines = budgets(entry)
    trials = [int(line["trials"]) for line in lines]
    return {
        "trials": sum(trials),
        "trials_each": ", ".join(map(str, sorted(set(trials)))),
        "pruned": sum(int(line["pruned"]) for line in lines),
        "tuning_rounds": sum(int(line["rounds trained"]) for line in lines),
        "tuning_hours": amount(sum(float(line["hours"]) for line in lines)).number,  # a small study's are not 0.00
        "ranges": sorted({line["range"] for line in lines}),
    }


def write_submission(
    entry: Path, run: RunView, out: Path, standing: str, *, cells: int, jobs: int | None, data_root: Path
) -> Path:
    """Gather in a folder what a pull request adds, and `SUBMISSION.md` for its text.

    The cells that are computed again are for whoever submits: others are drawn where the entry is verified.

    Args:
        entry: the packed run.
        run: the same unpacked, and admitted.
        out: the folder.
        standing: name of the folder of entries.
        cells: how many cells are computed again, blind.
        jobs: cells side by side; None: one per core.
        data_root: where data files lie.

    Returns:
        `SUBMISSION.md`.

    Raises:
        UserError: the method's code here is not what the entry was computed with, or the verification fails.
    """
    check_code(entry, run)
    code = own_files(run.cells[0].settings.method)
    places = {entry: ENTRIES / standing / entry.name}
    places |= {file: ENTRIES / standing / place for file, place in code.items()}
    write_files(out, {str(place): file.read_bytes() for file, place in places.items()})
    plugins = list(code)[:1]
    command = verification(out / places[entry], plugins, cells)
    command += [f"--data-root={data_root}", *([f"--jobs={jobs}"] if jobs else [])]
    again = [sys.executable, "-m", "bench.cli", *command]
    verified = subprocess.run(again, capture_output=True, text=True, env={**os.environ, **safe_path()})
    if verified.returncode not in _PASSED:
        said = f"{verified.stdout}{verified.stderr}".rstrip()
        raise UserError(f"{entry}: its verification fails, so nothing is ready to submit:\n{said}")
    text = _TEXT.format(
        method=run.cells[0].label,
        standing=standing,
        files="\n".join(f"- `{place}`" for place in places.values()),
        computed=run.info.get("command", "-"),
        commit=run.info.get("commit") or "-",
        machine=run.info.get("machine", "-"),
        command=shlex.join(["bench", *verification(places[entry], [places[file] for file in plugins], cells)]),
        status=verified.returncode,
        output=verified.stdout.rstrip(),
    )
    write_files(out, {"environment.txt": installed().encode(), "SUBMISSION.md": text.encode()})
    return out / "SUBMISSION.md"


def verification(entry: Path, plugins: Sequence[Path], cells: int) -> list[str]:
    """The arguments of `bench` that compute cells of an entry again, blind, drawn anew by each call."""
    files = [f"--plugin={file}" for file in plugins]
    return ["verify", str(entry), f"--cells={cells}", "--blind", *files]


_TEXT = """# {method} in {standing}

Copy this folder's `reports/` into the repository, and in `reports/league/entries/{standing}/` run
`sha256sum *.xz > SHA256SUMS`. The pull request adds:

{files}

Computed by `{computed}` at commit {commit} on {machine}; installed packages: `environment.txt`.

`{command}` (exit status {status}; 3: on this kind of processor no drawn cell could be confirmed):

```
{output}
```
"""
