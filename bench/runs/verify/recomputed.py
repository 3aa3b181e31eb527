"""A finished cell beside the same cell computed again, and how far two paths may be apart (docs/verify.md).

On the same recorded path the bytes are equal. On another one there are three cases. Both run the same kernels: every
number is equal. Their kernels round differently and training is stable: losses agree to three digits or more, and no
more than a sample or two is classified otherwise. Or training has drifted apart, which the losses show: then the
accuracies of an honest cell can be anywhere, so that this path cannot decide.
"""

import math
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from bench.plugin import METRICS
from bench.results.results import CellView
from bench.runs.verify.consistency import ROUNDING, read_rows
from bench.runs.verify.drift import STABLE, differences, scaled
from bench.runs.verify.evaluated import not_evaluated, scores_of
from bench.runs.verify.further import allowed_flips, beyond_rounding, other_score
from bench.store.data_record import record_of
from bench.store.documents import read_json
from bench.store.store import COLUMNS, FURTHER, read_status

_COUNTED = ("ledger", "work", "timeline")
"""Tables that are the same on every path, unless a method sends as much as its numbers ask for and they drift apart."""
_AMOUNTS = {
    "ledger": ("up", "down_distinct", "down_receivers"),
    "work": ("steps", "samples", "server_steps", "server_samples"),
}
"""What would then differ from round to round; the timeline follows from the ledger."""
_VALUES = {"metrics": "value", "clients": "correct", "changes": "value"}
"""Tables of what the models score, each with the column that may differ."""

_Group = tuple[str, str, str, str]
"""Rows of `metrics.csv`: metric, whose tests (`on`), split and round."""

Agreement = Literal["same", "near", "drifted", "wrong"]


@dataclass(frozen=True)
class Recomputed:
    """The result of computing one cell again.

    Attributes:
        outcome: `same` bytes, or numbers; `near`: the same models but for rounding; `drifted`: training drifted apart;
            or `wrong`.
        text: explains it.
        paths: what differs between the two paths; empty on the same one.
        apart: how far its numbers lie above those computed here, by figure; of cells that are `near` or `drifted`.
    """

    outcome: Agreement
    text: str
    paths: str = ""
    apart: dict[str, float] = field(default_factory=dict, compare=False)


def compare(cell: CellView, folder: Path) -> Recomputed:
    """Compare a cell with the same cell computed again in `folder`."""
    verdict = _compare(cell, folder)
    unchecked = sorted(scores_of(cell).difference(METRICS.names()))
    unchecked += [f"evaluated.csv ({', '.join(left_out)})"] if (left_out := not_evaluated(cell, folder)) else []
    return replace(verdict, text=f"{verdict.text}; not checked: {', '.join(unchecked)}") if unchecked else verdict


def _compare(cell: CellView, folder: Path) -> Recomputed:
    old, new = cell.status, read_status(folder)
    if new.state != old.state:
        return Recomputed("wrong", f"{old.state} in the run, {new.state} here. {new.reason}".rstrip())
    if new.derived != old.derived:
        return Recomputed("wrong", f"derived metrics: {old.derived} in the run, {new.derived} here")
    names = [name for name in COLUMNS if name not in FURTHER and (cell.folder / f"{name}.csv").exists()]
    other = [name for name in names if not _same(cell.folder, folder, f"{name}.csv")]
    if new.path == old.path:
        if other:
            return Recomputed("wrong", f"other numbers on the same path: {_difference(cell.folder, folder, other[0])}")
        if _has_relations(cell) and not _same(cell.folder, folder, "relations.json"):
            return Recomputed("wrong", "other numbers on the same path: relations.json")
        if further := _other_privacy(cell.folder, folder) or other_score(cell, folder):
            return Recomputed("wrong", f"other numbers on the same path: {further}")
        return Recomputed("same", "the same bytes")
    paths = _paths(old.path, new.path)
    if new.rounds != old.rounds:
        return Recomputed("drifted", f"diverged after {old.rounds} rounds in the run, after {new.rounds} here", paths)
    verdict = _on_another_path(cell, folder, other, paths)
    if verdict.outcome not in ("near", "drifted"):
        return verdict
    return replace(verdict, apart=differences(cell, replace(cell, folder=folder, status=new)))


def _on_another_path(cell: CellView, new: Path, other: list[str], paths: str) -> Recomputed:
    """Compare a cell with the files of a folder; the tables named in `other` are not the same bytes."""
    old = cell.folder
    for name in other:
        if name in _VALUES and not _same_rows(old, new, name):
            return Recomputed("wrong", f"other rows: {_difference(old, new, name)}", paths)
    if further := other_score(cell, new, values=False):
        return Recomputed("wrong", f"other rows: {further}", paths)
    by_group = _moved(old, new)
    moved, scored = max(by_group.values(), default=0.0), _scored(old, new, by_group)
    worst = max(scored, key=lambda pair: pair.apart / pair.allowed, default=_Scored(0, 0, "no round"))
    samples = f"{worst.apart} of {worst.samples} samples otherwise in {worst.name}"
    counted = [name for name in other if name in _COUNTED]
    counts = [f"another count: {_difference(old, new, name)}" for name in counted]
    follow = all(_follows_numbers(old, new, "work" if name == "work" else "ledger") for name in counted)
    if privacy := _other_privacy(old, new):  # noise is counted by what clients send and by the steps that they take
        counts.append(privacy)
        follow = follow and any(_follows_numbers(old, new, name) for name in _AMOUNTS)
    text = f"losses differ by {100 * moved:.2g} % at most, and {samples}"
    if moved > STABLE and (odd := scaled(old, new) or _still(scored)):
        return Recomputed("wrong", f"no training drifts so: {odd}; {samples}", paths)
    if moved > STABLE:
        outcome: Agreement = "drifted" if follow else "wrong"
        return Recomputed(outcome, "; ".join([f"training drifted apart: {text}", *counts]), paths)
    if counts:  # FedKD sends so many singular values as hold a share of a sum: rounding can make it one more
        excused = moved > ROUNDING and follow and "work" not in counted
        return Recomputed("drifted" if excused else "wrong", counts[0], paths)
    if moved > ROUNDING and (further := beyond_rounding(cell, new, worst.apart)):
        return Recomputed("wrong", f"no rounding moves a score so far: {further}; {text}", paths)
    if moved > ROUNDING and worst.apart <= worst.allowed:
        return Recomputed("near", f"the same models but for rounding: {text}", paths)
    if moved > ROUNDING:
        return Recomputed("wrong", f"too many samples for such losses ({worst.allowed} may be): {text}", paths)
    edited = [samples] if worst.apart else []
    edited += ["hits.csv"] if "hits" in other else []
    edited += ["relations.json"] if _has_relations(cell) and not _related(old, new) else []
    edited += [further] if (further := other_score(cell, new)) else []
    if edited:
        return Recomputed("wrong", f"the same losses and other numbers: {', '.join(edited)}", paths)
    return Recomputed("same", "the same numbers", paths)


def _follows_numbers(old: Path, new: Path, name: str) -> bool:
    """Whether a method's counts can depend on its numbers: then they are seldom the same in two rounds.

    In the league's entries these are FedKD, whose messages are cut by their singular values, and a few that send to the
    clients they choose; all others have one number of bytes, or another one in the first round.
    """
    old_rows, rows = ([[row[key] for key in _AMOUNTS[name]] for row in read_rows(f, name)] for f in (old, new))
    return old_rows != rows and len(set(map(tuple, rows))) > 2


def _still(scored: list["_Scored"]) -> str | None:
    """Find models with other samples right and the same losses: models with the same losses are the same models."""
    still = next((pair for pair in scored if pair.apart and pair.moved <= ROUNDING), None)
    return None if still is None else f"other samples are right in {still.name}, whose losses are the same"


@dataclass(frozen=True)
class _Scored:
    """Differences in how a metric's models classify the samples of a split in a round, in two computations.

    Attributes:
        apart: difference of the numbers of correct samples, summed over clients.
        samples: number of samples that are scored.
        name: metric, split and round.
        moved: the largest relative difference of their losses.
    """

    apart: int
    samples: int
    name: str
    moved: float = 0.0

    @property
    def allowed(self) -> int:
        """Number of samples that the same models may classify otherwise because of rounding."""
        return allowed_flips(self.samples)


def _scored(old: Path, new: Path, moved: dict[_Group, float]) -> list[_Scored]:
    """Measure how far counts are apart: by client, and on a common test set, of which only accuracies are known."""
    groups: dict[_Group, list[tuple[int, int]]] = defaultdict(list)
    for row, other in zip(read_rows(old, "clients"), read_rows(new, "clients"), strict=True):
        apart = abs(int(row["correct"]) - int(other["correct"]))
        groups[row["metric"], "local", row["split"], row["round"]].append((apart, int(row["samples"])))
    record = read_json(old / "partition.json")
    for row, other in zip(read_rows(old, "metrics"), read_rows(new, "metrics"), strict=True):
        common = record_of(record, int(row["round"]))["n_global_test"]
        if common and (row["on"], row["split"], row["quantity"]) == ("global", "test", "accuracy"):
            apart = abs(round(common * (float(row["value"]) - float(other["value"]))))
            groups[row["metric"], "global", "test", row["round"]].append((apart, common))
    return [
        _Scored(sum(n for n, _ in rows), sum(n for _, n in rows), _name(group), moved.get(group, math.inf))
        for group, rows in groups.items()
    ]


def _name(group: _Group) -> str:
    metric, on, split, version = group
    return f"{metric}, {split if on == 'local' else 'common test set'}, round {version}"


def _moved(old: Path, new: Path) -> dict[_Group, float]:
    """The largest relative difference of the losses in `metrics.csv`, by group of rows."""
    differences: dict[_Group, float] = defaultdict(float)
    for row, other in zip(read_rows(old, "metrics"), read_rows(new, "metrics"), strict=True):
        if row["quantity"] == "loss":
            group, apart = (row["metric"], row["on"], row["split"], row["round"]), 0.0
            if row["value"] != other["value"]:
                values = float(row["value"]), float(other["value"])
                apart = abs(values[0] - values[1]) / max(map(abs, values))
            differences[group] = max(differences[group], math.inf if math.isnan(apart) else apart)
    return differences


_WORDS = ("accountant", "adjacency", "sampling", "unprotected")


def _other_privacy(old: Path, new: Path) -> str:
    """Describe how the worth of the noise differs in two folders; empty where it does not.

    It follows from the settings and from how often noise was released. Its last digit may be rounded otherwise, and
    the words around the numbers are those of the version that wrote them.
    """
    first, here = ((read_json(folder / "privacy.json") or {}).get("statements", []) for folder in (old, new))
    if len(first) != len(here):
        return f"privacy.json: {len(first)} statements in the run, {len(here)} here"
    for statement, other in zip(first, here, strict=True):
        for key in dict.fromkeys(key for key in (*statement, *other) if key not in _WORDS):
            values = statement.get(key), other.get(key)
            if values[0] != values[1] and not (key == "epsilon" and None not in values and _round_alike(*values)):
                return f"privacy.json: {key} {values[0]} in the run, {values[1]} here"
    return ""


def _round_alike(first: float, other: float) -> bool:
    return math.isclose(first, other, rel_tol=1e-9, abs_tol=1.5e-4)


def _has_relations(cell: CellView) -> bool:
    """Whether `relations.json` is to be compared: shipped entries have neither it nor its checksum."""
    return (cell.folder / "relations.json").exists() or "relations.json" in cell.status.checksums


def _related(old: Path, new: Path) -> bool:
    """Whether `relations.json` has the same numbers in both folders, but for rounding; mostly there is none."""
    both: list[dict[str, Any]] = [read_json(folder / "relations.json") or {} for folder in (old, new)]
    matrices = [record.pop("matrices", {}) for record in both]
    return (
        both[0] == both[1]
        and matrices[0].keys() == matrices[1].keys()
        and all(_close(np.array(matrix), np.array(matrices[1][name])) for name, matrix in matrices[0].items())
    )


def _close(first: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> bool:
    return first.shape == other.shape and bool(np.allclose(first, other, 1e-6, 1e-6))


def _same(old: Path, new: Path, name: str) -> bool:
    """Return whether both folders have the file with the same content, or neither has it."""
    contents = [path.read_bytes() if path.exists() else None for path in (old / name, new / name)]
    return contents[0] == contents[1]


def _same_rows(old: Path, new: Path, name: str) -> bool:
    """Return whether a table has the same rows in both folders, whatever the values in them."""
    rows = [[{**row, _VALUES[name]: ""} for row in read_rows(folder, name)] for folder in (old, new)]
    return rows[0] == rows[1]


def _difference(old: Path, new: Path, name: str) -> str:
    """Describe the first line in which a table differs."""
    texts = [(folder / f"{name}.csv").read_text(encoding="utf-8").splitlines() for folder in (old, new)]
    for number, (line, other) in enumerate(zip(*texts, strict=False), start=1):
        if line != other:
            return f"{name}.csv, line {number}: {line} in the run, {other} here"
    return f"{name}.csv: {len(texts[0])} lines in the run, {len(texts[1])} here"


def _paths(old: dict[str, Any], new: dict[str, Any]) -> str:
    keys = [key for key in sorted(old | new) if old.get(key) != new.get(key)]
    return ", ".join(f"{key} {old.get(key)} -> {new.get(key)}" for key in keys)
