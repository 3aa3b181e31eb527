"""The evidence for a decision: how well the models of each method tell each held-out row, site by site."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.data import Floats, Indices
from bench.results.figures import reported_figures
from bench.results.reported_round import COSTS, table_of
from bench.results.results import CellView, load_run
from bench.store import documents, store
from reports.decision.baselines import baselines
from reports.decision.scores import HeldOut, held_out, row_values
from reports.tables.cost import BYTES, MEGABYTE

if TYPE_CHECKING:
    from bench.results.saved_models import SavedModels


@dataclass(frozen=True)
class Candidate:
    """A method with the setting that was chosen for it.

    Attributes:
        name: of the method.
        settings: what was searched, and the values chosen.
        personal: whether each site has a model for itself; else there is a single generic one.
        validation: score in points on validation rows, the mean over sites and seeds: methods are chosen by it.
        values: `[held-out rows, seeds]` of the models of the reported round (`row_values`).
        megabytes: that a site sends and receives, the mean over seeds.
        seconds: of computing for a site on this machine, the median over seeds, as the first cell of a process takes
            longer.
        probabilities: `[held-out rows, seeds, classes]` of the models; None where only the values are known.
    """

    name: str
    settings: dict[str, Any]
    personal: bool
    validation: float
    values: Floats
    megabytes: float
    seconds: float
    probabilities: Floats | None = None


@dataclass(frozen=True)
class Baseline:
    """A model from outside of the portfolio, on the same held-out rows.

    Attributes:
        name: in words.
        fitted: where, in words: each site by itself, or on the rows of all sites in one place.
        values: `[held-out rows, seeds]`, or `[held-out rows, 1]` where seeds make no difference (`row_values`).
    """

    name: str
    fitted: str
    values: Floats


@dataclass(frozen=True)
class Evidence:
    """All candidates on the same held-out rows and seeds.

    Attributes:
        sites: their names.
        sizes: of each site, its rows for training, validation and tests.
        rows: the held-out ones.
        score: the name of the score that decides, one of `SCORES`.
        classes: their names.
        seeds: of the reported runs.
        candidates: by name.
        missing: methods without a result for every seed, with the reason.
        guess: `[held-out rows, 1]`, the values of always saying what is most frequent at a site.
        baselines: models from outside.
    """

    sites: tuple[str, ...]
    sizes: tuple[int, ...]
    rows: HeldOut
    score: str
    classes: tuple[str, ...]
    seeds: tuple[int, ...]
    candidates: dict[str, Candidate]
    missing: dict[str, str]
    guess: Floats
    baselines: tuple[Baseline, ...] = ()


def read_evidence(
    folder: Path, score: str, data: dict[str, Any], settings: dict[str, dict[str, Any]], seeds: int, data_root: Path
) -> Evidence:
    """Read the reported runs of a study: those of protocol `honest`; their kept models are applied to the tests.

    Args:
        folder: the run folder.
        score: that decides.
        data: the description of the data (`bench.results.data_description.describe`).
        settings: the chosen values of each method.
        seeds: how many there are of each method.
        data_root: where data files lie.
    """
    by_name: dict[str, list[CellView]] = {name: [] for name in settings}
    for cell in load_run(folder).cells:
        if cell.settings.protocol == "honest" and cell.label in by_name and cell.settings.seed < seeds:
            by_name[cell.label].append(cell)
    candidates: dict[str, Candidate] = {}
    missing: dict[str, str] = {}
    rows, outside = held_out(score, np.empty(0, np.int64), np.empty(0, np.int64)), tuple[Baseline, ...]()
    for name, cells in by_name.items():
        states = {cell.settings.seed: cell.status.state for cell in cells}
        if lacking := [seed for seed in range(seeds) if states.get(seed) != "done"]:
            missing[name] = f"seed {lacking[0]}: {states.get(lacking[0], 'not run')}"
            continue
        ordered = sorted(cells, key=lambda cell: cell.settings.seed)
        candidates[name], rows, sample, saved = _candidate(name, ordered, settings[name], score, data_root)
    sites = data["sites"]
    sizes = tuple(sum(site[part] for part in ("train", "validation", "test")) for site in sites)
    if candidates:
        outside = _baselines(score, rows, sample, saved)
    counts = np.array([site["classes"] for site in sites], float).reshape(len(sites), len(data["classes"]))
    prior = np.log((counts + 1) / (counts + 1).sum(axis=1, keepdims=True))
    guess = row_values(score, rows, prior[rows.site][:, None])
    names, classes = tuple(site["name"] for site in sites), tuple(data["classes"])
    return Evidence(names, sizes, rows, score, classes, tuple(range(seeds)), candidates, missing, guess, outside)


def _candidate(
    name: str, cells: Sequence[CellView], settings: dict[str, Any], score: str, data_root: Path
) -> tuple[Candidate, HeldOut, Indices, "SavedModels"]:
    """The candidate, the held-out rows, which are the same for all cells, their positions in the data, and these."""
    from scipy.special import softmax

    from bench.results.saved_models import SavedModels  # here, as it takes torch

    personal = "pm" not in cells[0].status.derived
    metric, quantity = "pm" if personal else "gm", cells[0].settings.select_by
    validation, logits, megabytes, seconds = [], [], [], []
    for cell in cells:
        figures = reported_figures(cell)
        reported = next(int(f["round"]) for f in figures if (f["metric"], f["on"]) == (metric, "local"))
        table = cell.table(table_of(quantity)).set_index(["metric", "on", "mean", "split", "quantity", "round"])
        value = float(table["value"].get((metric, "local", "equal", "validation", quantity, reported), np.nan))
        validation.append(-100 * value if quantity in COSTS else 100 * value)
        saved = SavedModels(cell, data_root)
        site, sample, of_cell = saved.test_logits(metric)
        logits.append(of_cell)
        ledger = cell.table("ledger")
        clients = len((documents.read(cell.folder, "partition.json") or {}).get("n_train", [0]))
        megabytes.append(float(ledger[list(BYTES)].to_numpy().sum()) / MEGABYTE / clients)
        seconds.append(store.read_timing(cell.folder).get("seconds", 0.0) / clients)
    dataset = saved.dataset
    subject = None if dataset.subjects is None else dataset.subjects[sample]
    rows = held_out(score, dataset.y[sample].astype(np.int64), site, subject)
    stacked = np.stack(logits, axis=1)
    values, chances = row_values(score, rows, stacked), np.asarray(softmax(stacked, axis=2))
    known = [value for value in validation if np.isfinite(value)]
    mean, costs = float(np.mean(known)) if known else -np.inf, (float(np.mean(megabytes)), float(np.median(seconds)))
    return Candidate(name, settings, personal, mean, values, *costs, chances), rows, sample, saved


def _baselines(score: str, rows: HeldOut, sample: Indices, saved: "SavedModels") -> tuple[Baseline, ...]:
    """The models from outside on the same rows, of a table; other data have none."""
    if saved.dataset.table is None:
        return ()
    logits = baselines(saved.dataset, saved.partition, rows.site, sample)
    return tuple(Baseline(name, fitted, row_values(score, rows, of_rows)) for name, fitted, of_rows in logits)
