"""A finished cell beside the same cell computed again, and how far two paths may be apart (docs/verify.md).

On the same recorded path the bytes are equal. On another one there are three cases. Both run the same kernels: every
number is equal. Their kernels round differently and training is stable: losses agree to three digits or more, and no
more than a sample or two is classified otherwise. Or training has drifted apart, which the losses show: then the
accuracies of an honest cell can be anywhere, so that this path cannot decide.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bench.plugin import METRICS
from bench.results.results import CellView
from bench.runs.verify.drift import STABLE, differences
from bench.runs.verify.files import ROUNDING, Row, read_rows
from bench.store.data_record import record_of
from bench.store.documents import read_json
from bench.store.store import COLUMNS, FURTHER, read_status

_COUNTED = {
    "ledger": ("up", "down_distinct", "down_receivers"),
    "work": ("steps", "samples", "server_steps", "server_samples"),
    "timeline": (),
}
"""Tables that are the same on every path, unless a method sends or trains as much as its numbers ask for; each with
what would then differ from round to round. The timeline follows from the ledger."""
_VALUES = {"metrics": "value", "clients": "correct", "changes": "value"}
"""Tables of what the models score, which every path writes row by row, each with the column that may differ."""
_TOLERANCE, _WEIGHT, _CLASSES = 0.01, 3, 2
"""How far rounding alone may move a score: by 0.01, and for each sample that is classified otherwise as three samples
or as two whole classes, whatever is more (the only sample of a rare class is its whole recall)."""
_WORDS = ("accountant", "adjacency", "sampling", "unprotected")
"""The words around the numbers of `privacy.json`, which are those of the version that wrote them."""

Agreement = Literal["same", "near", "drifted", "wrong"]


@dataclass(frozen=True)
class CellVerdict:
    """The result for one cell; `text` explains it in one line.

    Attributes:
        outcome: `same` bytes, or numbers; `near`: the same models but for rounding; `drifted`: training drifted apart;
            or `wrong`.
        apart: how far its numbers lie above those computed here, by figure; of cells that are `near` or `drifted`.
    """

    cell: CellView
    outcome: Agreement
    text: str
    apart: dict[str, float] = field(default_factory=dict, compare=False)

    @property
    def name(self) -> str:
        """The cell's name, with its method where the label is another name."""
        settings = self.cell.settings
        return f"{self.cell.name}{'' if settings.name == settings.method else f' (method {settings.method})'}"


def compare(cell: CellView, folder: Path) -> CellVerdict:
    """Compare a cell with the same cell computed again in `folder`."""
    here = replace(cell, folder=folder, status=read_status(folder))
    outcome, text = _compare(cell, here)
    old, new = cell.status.path, here.status.path
    if new != old:
        keys = [key for key in sorted(old | new) if old.get(key) != new.get(key)]
        text += f", on another path ({', '.join(f'{key} {old.get(key)} -> {new.get(key)}' for key in keys)})"
    unchecked = sorted(scores_of(cell).difference(METRICS.names()))
    unchecked += ["evaluated.csv"] if (cell.folder / "evaluated.csv").exists() else []
    text += f"; not checked: {', '.join(unchecked)}" if unchecked else ""
    moved = outcome in ("near", "drifted") and here.status.rounds == cell.status.rounds
    return CellVerdict(cell, outcome, text, differences(cell, here) if moved else {})


def _compare(cell: CellView, here: CellView) -> tuple[Agreement, str]:
    old, new, folder = cell.status, here.status, here.folder
    if new.state != old.state:
        return "wrong", f"{old.state} in the run, {new.state} here. {new.reason}".rstrip()
    if new.derived != old.derived:
        return "wrong", f"derived metrics: {old.derived} in the run, {new.derived} here"
    names = [name for name in COLUMNS if name not in FURTHER and (cell.folder / f"{name}.csv").exists()]
    other = [name for name in names if not _same(cell.folder, folder, f"{name}.csv")]
    if new.path != old.path:
        if new.rounds != old.rounds:
            return "drifted", f"diverged after {old.rounds} rounds in the run, after {new.rounds} here"
        return _on_another_path(cell, folder, other)
    faults = [_difference(cell.folder, folder, name) for name in other[:1]]
    faults += [] if _same(cell.folder, folder, "relations.json") or not _has_relations(cell) else ["relations.json"]
    faults += _other_privacy(cell.folder, folder)
    faults += [pair.text for pair in _further_pairs(cell, folder) if not pair.same]
    return ("wrong", f"other numbers on the same path: {faults[0]}") if faults else ("same", "the same bytes")


def _on_another_path(cell: CellView, new: Path, other: list[str]) -> tuple[Agreement, str]:
    """Compare a cell with the files of a folder; the tables named in `other` are not the same bytes."""
    old, pairs = cell.folder, _further_pairs(cell, new)
    rows = [_difference(old, new, name) for name in other if name in _VALUES and not _same_rows(old, new, name)]
    if rows := rows + [pair.text for pair in pairs if pair.here is None]:
        return "wrong", f"other rows: {rows[0]}"
    if privacy := _other_privacy(old, new):
        return "wrong", privacy[0]
    scored = _scored(old, new)
    moved = max((group.moved for group in scored), default=0.0)
    worst = max(scored, key=lambda group: group.apart / group.allowed, default=_Scored("no round"))
    samples = f"{worst.apart} of {worst.samples} samples otherwise in {worst.name}"
    text = f"losses differ by {100 * moved:.2g} % at most, and {samples}"
    counted = [name for name in other if name in _COUNTED]
    counts = [f"another count: {_difference(old, new, name)}" for name in counted]
    follow = all(_follows_numbers(old, new, name) for name in counted)
    if moved > STABLE:
        return "drifted" if follow else "wrong", "; ".join([f"training drifted apart: {text}", *counts])
    if counts:  # FedKD sends so many singular values as hold a share of a sum: rounding can make it one more
        excused = moved > ROUNDING and follow and "work" not in counted
        return "drifted" if excused else "wrong", counts[0]
    if moved > ROUNDING:
        if further := _beyond_rounding(cell, pairs, worst.apart):
            return "wrong", f"no rounding moves a score so far: {further}; {text}"
        if worst.apart > worst.allowed:
            return "wrong", f"too many samples for such losses ({worst.allowed} may be): {text}"
        return "near", f"the same models but for rounding: {text}"
    edited = [samples] * bool(worst.apart) + ["hits.csv"] * ("hits" in other)
    if edited := edited + [pair.text for pair in pairs if not pair.same]:
        return "wrong", f"the same losses and other numbers: {', '.join(edited[:3])}"
    return "same", "the same numbers"


def _follows_numbers(old: Path, new: Path, name: str) -> bool:
    """Whether a method's counts can depend on its numbers: then they are seldom the same in two rounds.

    In the league's entries these are FedKD, whose messages are cut by their singular values, and a few that send to the
    clients they choose; all others have one number of bytes, or another one in the first round.
    """
    table = "ledger" if name == "timeline" else name
    old_rows, rows = ([[row[key] for key in _COUNTED[table]] for row in read_rows(f, table)] for f in (old, new))
    return old_rows != rows and len(set(map(tuple, rows))) > 2


@dataclass
class _Scored:
    """Differences in how a metric's models classify the samples of a split in a round, in two computations.

    Attributes:
        name: metric, split and round.
        apart: difference of the numbers of correct samples, summed over clients.
        samples: number of samples that are scored.
        moved: the largest relative difference of their losses.
    """

    name: str
    apart: int = 0
    samples: int = 0
    moved: float = 0.0

    @property
    def allowed(self) -> int:
        """Number of samples that the same models may classify otherwise because of rounding."""
        return allowed_flips(self.samples)


def allowed_flips(samples: int) -> int:
    """Number of samples that the same models may classify otherwise because of rounding."""
    return 1 + samples // 150


def _scored(old: Path, new: Path) -> list[_Scored]:
    """Measure how far losses and counts are apart: by client, and on a common test set, of which only accuracies are
    known."""
    groups: dict[tuple[str, ...], _Scored] = {}

    def group(metric: str, on: str, split: str, version: str) -> _Scored:
        name = f"{metric}, {split if on == 'local' else 'common test set'}, round {version}"
        return groups.setdefault((metric, on, split, version), _Scored(name))

    record = read_json(old / "partition.json")
    for row, other in zip(read_rows(old, "metrics"), read_rows(new, "metrics"), strict=True):
        scored, values = (
            group(row["metric"], row["on"], row["split"], row["round"]),
            (float(row["value"]), float(other["value"])),
        )
        common = record_of(record, int(row["round"]))["n_global_test"]
        if row["quantity"] == "loss" and row["value"] != other["value"]:
            moved = abs(values[0] - values[1]) / max(map(abs, values))
            scored.moved = max(scored.moved, math.inf if math.isnan(moved) else moved)
        elif common and (row["on"], row["split"], row["quantity"]) == ("global", "test", "accuracy"):
            scored.apart += abs(round(common * (values[0] - values[1])))
            scored.samples += common
    for row, other in zip(read_rows(old, "clients"), read_rows(new, "clients"), strict=True):
        scored = group(row["metric"], "local", row["split"], row["round"])
        scored.apart += abs(int(row["correct"]) - int(other["correct"]))
        scored.samples += int(row["samples"])
    return list(groups.values())


@dataclass(frozen=True)
class _Pair:
    """A row of a further score, and the value computed here; None: there is no such row here."""

    table: str
    line: int
    row: Row
    here: float | None

    @property
    def same(self) -> bool:
        """Whether both values are the same but for the order of sums."""
        value = float(self.row["value"])
        return self.here is not None and bool(np.isclose(value, self.here, rtol=1e-9, atol=1e-9, equal_nan=True))

    @property
    def apart(self) -> float:
        """The distance between the values, as a share of those above 1; infinite where only one is defined."""
        first, here = float(self.row["value"]), math.nan if self.here is None else self.here
        if math.isnan(first) or math.isnan(here):
            return 0.0 if math.isnan(first) and math.isnan(here) else math.inf
        return abs(first - here) / max(1.0, abs(first), abs(here))

    @property
    def text(self) -> str:
        """The row and both values."""
        return f"{self.table}.csv, line {self.line}: {','.join(self.row.values())} in the run, {self.here} here"


def _further_pairs(cell: CellView, folder: Path) -> list[_Pair]:
    """Rows of further scores, and of earlier and later data (`changes.csv`), as far as their scores are known here.

    A cell that was resumed with other `metrics` has some scores of some rounds only.
    """
    pairs = []
    for name in (*FURTHER, "changes"):
        if all((of / f"{name}.csv").exists() for of in (cell.folder, folder)):
            columns = COLUMNS[name][:-1]
            here = {tuple(row[key] for key in columns): float(row["value"]) for row in read_rows(folder, name)}
            pairs += [
                _Pair(name, line, row, here.get(tuple(row[key] for key in columns)))
                for line, row in enumerate(read_rows(cell.folder, name), start=2)
                if row["quantity"] in METRICS.names()
            ]
    return pairs


def scores_of(cell: CellView) -> set[str]:
    """The further scores that a cell has rows of in its own tables."""
    return set(cell.table("scores")["quantity"])


def _beyond_rounding(cell: CellView, pairs: Sequence[_Pair], apart: int) -> str:
    """Describe the first mean of a score that differs by more than rounding can move it; empty where none does.

    Args:
        cell: the finished cell.
        pairs: its further scores.
        apart: how many samples of the cell's own tests were classified otherwise; of `changes.csv` it is not known.
    """
    record = read_json(cell.folder / "partition.json")
    for pair in pairs:
        of_round = record_of(record, int(pair.row["round"]))
        samples = sum(of_round[f"n_{'validation' if pair.row['split'] == 'validation' else 'test'}"])
        samples = samples or of_round["n_global_test"] or 1
        flips = apart if pair.table in FURTHER else max(apart, allowed_flips(samples))
        possible = flips * max(_WEIGHT / samples, _CLASSES / len(of_round["counts"][0]))
        if "client" not in pair.row and pair.apart > _TOLERANCE + possible:
            return pair.text
    return ""


def _other_privacy(old: Path, new: Path) -> list[str]:
    """Describe how the worth of the noise differs in two folders.

    It follows from the settings and from how often noise was released. Its last digit may be rounded otherwise.
    """
    first, here = ((read_json(folder / "privacy.json") or {}).get("statements", []) for folder in (old, new))
    if len(first) != len(here):
        return [f"privacy.json: {len(first)} statements in the run, {len(here)} here"]
    return [
        f"privacy.json: {key} {statement.get(key)} in the run, {other.get(key)} here"
        for statement, other in zip(first, here, strict=True)
        for key in dict.fromkeys((*statement, *other))
        if key not in _WORDS and not _alike(key, statement.get(key), other.get(key))
    ]


def _alike(key: str, first: Any, other: Any) -> bool:
    if key == "epsilon" and None not in (first, other):
        return math.isclose(first, other, rel_tol=1e-9, abs_tol=1.5e-4)
    return bool(first == other)


def _has_relations(cell: CellView) -> bool:
    """Whether `relations.json` is to be compared: shipped entries have neither it nor its checksum."""
    return (cell.folder / "relations.json").exists() or "relations.json" in cell.status.checksums


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
