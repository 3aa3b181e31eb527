"""The evidence for a decision: which test samples the models of each method classify correctly, site by site."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.data import Floats, Indices
from bench.results.figures import reported_figures
from bench.results.results import CellView, load_run
from bench.store import documents, store
from reports.reading.load import PM
from reports.tables.cost import BYTES, MEGABYTE


@dataclass(frozen=True)
class Candidate:
    """A method with the setting that was chosen for it.

    Attributes:
        name: of the method.
        settings: what was searched, and the values chosen.
        personal: whether each site has a model for itself; else there is a single generic one.
        validation: accuracy in percent on validation samples, the mean over seeds: methods are chosen by it.
        correct: `[test samples, seeds]`, 100 where the models of the reported round are right, else 0.
        megabytes: that a site sends and receives, the mean over seeds.
        seconds: of computing for a site on this machine, the median over seeds, as the first cell of a process takes
            longer.
    """

    name: str
    settings: dict[str, Any]
    personal: bool
    validation: float
    correct: Floats
    megabytes: float
    seconds: float


@dataclass(frozen=True)
class Evidence:
    """All candidates on the same test samples and seeds.

    Attributes:
        sites: their names.
        site: `[test samples]`, the number of each sample's site.
        seeds: of the reported runs.
        candidates: by name.
        missing: methods without a result for every seed, with the reason.
        rows: of all sites, for training, validation and tests.
        subject: `[test samples]`, the number of each sample's subject; None where the data name none.
    """

    sites: tuple[str, ...]
    site: Indices
    seeds: tuple[int, ...]
    candidates: dict[str, Candidate]
    missing: dict[str, str]
    rows: int
    subject: Indices | None = None


def read_evidence(
    folder: Path,
    sites: Sequence[str],
    rows: int,
    settings: dict[str, dict[str, Any]],
    subjects: Indices | None = None,
) -> Evidence:
    """Read the reported runs of a study: those of protocol `honest`.

    Args:
        folder: the run folder.
        sites: names of the clients.
        rows: of all of them.
        settings: the chosen values of each method.
        subjects: of the samples that the cells have after shifts and normalisation; None where the data name none.
    """
    by_name: dict[str, list[CellView]] = {name: [] for name in settings}
    for cell in load_run(folder).cells:
        if cell.settings.protocol == "honest" and cell.label in by_name:
            by_name[cell.label].append(cell)
    seeds = tuple(sorted({cell.settings.seed for cells in by_name.values() for cell in cells}))
    candidates: dict[str, Candidate] = {}
    missing: dict[str, str] = {}
    site, sample = np.empty(0, np.int64), np.empty(0, np.int64)
    for name, cells in by_name.items():
        states = {cell.settings.seed: cell.status.state for cell in cells}
        lacking = [seed for seed in seeds if states.get(seed) != "done"]
        if not seeds or lacking:
            missing[name] = f"seed {lacking[0]}: {states.get(lacking[0], 'not run')}" if lacking else "not run"
            continue
        ordered = sorted(cells, key=lambda cell: cell.settings.seed)
        candidates[name], site, sample = _candidate(name, ordered, settings[name])
    of_tests = None if subjects is None else subjects[sample]
    return Evidence(tuple(sites), site, seeds, candidates, missing, rows, of_tests)


def _candidate(name: str, cells: Sequence[CellView], settings: dict[str, Any]) -> tuple[Candidate, Indices, Indices]:
    """The candidate, and of each test sample the site and the position in the data set."""
    personal = "pm" not in cells[0].status.derived
    metric = "pm" if personal else "gm"
    validation, correct, megabytes, seconds = [], [], [], []
    site, sample = np.empty(0, np.int64), np.empty(0, np.int64)
    for cell in cells:
        reported = (f["round"] for f in reported_figures(cell) if (f["metric"], f["on"]) == (metric, "local"))
        round_ = int(next(reported))
        accuracies = PM.accuracies(cell.table("metrics"), "validation")
        validation.append(float(accuracies[accuracies["round"] == round_]["value"].iloc[0]))
        hits = cell.hits(metric, round=round_)
        correct.append(100.0 * hits["correct"].to_numpy(dtype=float))
        site, sample = (hits[column].to_numpy(dtype=np.int64) for column in ("client", "sample"))
        ledger = cell.table("ledger")
        clients = len((documents.read(cell.folder, "partition.json") or {}).get("n_train", [0]))
        megabytes.append(float(ledger[list(BYTES)].to_numpy().sum()) / MEGABYTE / clients)
        seconds.append(store.read_timing(cell.folder).get("seconds", 0.0) / clients)
    costs = float(np.mean(megabytes)), float(np.median(seconds))
    return Candidate(name, settings, personal, float(np.mean(validation)), np.array(correct).T, *costs), site, sample
