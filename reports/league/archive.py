"""Archive of a league: its entries, their figures as one table, checksums, citation, Croissant metadata of all that."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from bench import croissant
from bench.citations import cite, software
from bench.results.pack import SHARED, compressed, read_shared
from bench.results.results import RunView
from bench.store import inside
from reports.league.tuning import budget_text

COLUMNS = {
    "label": ("Text", "The method: the entry's name."),
    "dataset": ("Text", "The data set of the task."),
    "case": ("Text", "What else tells the task apart."),
    "alpha": ("Float", "Concentration of the task's Dirichlet partition; empty where there is none."),
    "seed": ("Integer", "Seed of data partition, weights, sampling and batches; the same for all methods."),
    "cell": ("Text", "Id of the cell: name of its folder inside the entry."),
    "status": ("Text", "done, or diverged: such a cell has no figure and counts as guessing."),
    "metric": ("Text", "gm: the generic model; pm: the personalized models; lm: the clients' local ones."),
    "on": ("Text", "global: the common tests; local: each client's own."),
    "mean": ("Text", "Weights of the clients: train_size or equal; empty on the common tests."),
    "round": ("Integer", "The reported round, which validation accuracy chose."),
    "value": ("Float", "Test accuracy, 0 .. 1."),
    "derived": ("Boolean", "Whether the method does not train this model, so that the harness derived it."),
}
"""Columns of the table with their types and meaning."""


def write_archive(entries: Mapping[Path, RunView], out: Path, title: str, version: str) -> Path:
    """Gather the entries of a league in a folder that can be published; the same entries give the same bytes.

    Args:
        entries: packed runs with what is in them.
        out: the folder; files of an earlier archive there are replaced.
        title: of the league, e.g. `league-2, small tier`.
        version: of the league, `MAJOR.MINOR.PATCH`.

    Returns:
        Its metadata, `croissant.json`.
    """
    runs = list(entries.values())
    contents = {f"entries/{file.name}": file.read_bytes() for file in entries}
    if shared := {
        key: text for folder in {file.parent for file in entries} for key, text in read_shared(folder).items()
    }:
        contents[f"entries/{SHARED}"] = compressed(shared)
    contents["results.csv"] = _table(runs).encode()
    used = [cell.settings for run in runs for cell in run.cells]
    contents["CITATION.bib"] = cite(cells=used, note=title).bibtex.encode()
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    about = dict.fromkeys(sums, "Packed run of one method: settings, partitions, tables of all cells.") | {
        "results.csv": "Reported test accuracies of all cells.",
        f"entries/{SHARED}": "Partitions that the packed runs have in common, by checksum.",
        "CITATION.bib": "BibTeX of pFLeague and of the methods and data sets.",
    }
    files = [
        croissant.file_object(name, name, sha256=sums[name], size=len(content), description=about[name])
        for name, content in contents.items()
    ]
    described = croissant.metadata(
        f"pFLeague {title}",
        f"Results of methods of personalized federated learning, each {budget_text(run.path for run in runs)}, on "
        "the same tasks and seeds. `bench verify` computes cells of an entry again; `bench unpack` makes a run folder "
        "of it.",
        licence="Apache-2.0", bibtex=software(note=title), published=max(str(run.info["time"])[:10] for run in runs),
        version=version, distribution=files,
        record_sets=[croissant.record_set("results", about["results.csv"], "results.csv", COLUMNS)],
    )  # fmt: skip
    contents["SHA256SUMS"] = "".join(f"{checksum}  {name}\n" for name, checksum in sums.items()).encode()
    contents["croissant.json"] = described.encode()
    write_files(out, contents)
    return out / "croissant.json"


def write_files(out: Path, contents: Mapping[str, bytes]) -> None:
    """Write files into a folder by their paths in it; those that are there are replaced as a whole."""
    out.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        inside.make_folder(out, (out / name).parent)
        inside.replace(out / name, content)


def _table(runs: list[RunView]) -> str:
    """The figures of the reported round, one row each; a cell without figures has one row, too."""
    rows = pd.concat([run.results for run in runs], ignore_index=True)
    reported = rows[rows["selection"].isin(["validation", ""])]
    return reported[list(COLUMNS)].to_csv(index=False, lineterminator="\n")
