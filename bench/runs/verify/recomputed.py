"""A finished cell beside the same cell computed again, and how far two paths may be apart (docs/verify.md).

On the same recorded path the bytes are equal. On another one there are three cases. Both run the same kernels: every
number is equal. Their kernels round differently and training is stable: losses agree to three digits or more, and no
more than a sample or two is classified otherwise. Or training has drifted apart, which the losses show: then the
accuracies of an honest cell can be anywhere, so that this path cannot decide.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bench.plugin import METRICS
from bench.results.figures import ALL
from bench.results.results import CellView
from bench.runs.verify.drift import STABLE, differences
from bench.runs.verify.files import ROUNDING, Row, read_rows
from bench.settings import RECORDED, CorruptedTest, FurtherTest, PlainTest
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
"""Tables of what the models score, which every path writes row by row, each with the column that may differ."""
_ADDED = ("round", "metric", "on", "mean", "client", "split", "quantity")
"""What tells a row of `evaluated.csv`, to which `bench evaluate` adds rows."""
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
    unchecked += [f"evaluated.csv ({', '.join(left_out)})"] if (left_out := _not_evaluated(cell, folder)) else []
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
    faults += _other_privacy(cell.folder, folder) or _other_scores(_further_pairs(cell, folder))
    return ("wrong", f"other numbers on the same path: {faults[0]}") if faults else ("same", "the same bytes")


def _on_another_path(cell: CellView, new: Path, other: list[str]) -> tuple[Agreement, str]:
    """Compare a cell with the files of a folder; the tables named in `other` are not the same bytes."""
    old = cell.folder
    pairs = _further_pairs(cell, new)
    rows = [_difference(old, new, name) for name in other if name in _VALUES and not _same_rows(old, new, name)]
    if rows := rows or [pair.text for pair in pairs if pair.here is None]:
        return "wrong", f"other rows: {rows[0]}"
    scored = _scored(old, new)
    moved = max((group.moved for group in scored), default=0.0)
    worst = max(scored, key=lambda group: group.apart / group.allowed, default=_Scored("no round"))
    samples = f"{worst.apart} of {worst.samples} samples otherwise in {worst.name}"
    counted = [name for name in other if name in _COUNTED]
    counts = [f"another count: {_difference(old, new, name)}" for name in counted]
    follow = all(_follows_numbers(old, new, "work" if name == "work" else "ledger") for name in counted)
    if privacy := _other_privacy(old, new):  # noise is counted by what clients send and by the steps that they take
        counts += privacy
        follow = follow and any(_follows_numbers(old, new, name) for name in _AMOUNTS)
    text = f"losses differ by {100 * moved:.2g} % at most, and {samples}"
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
    edited = [samples] if worst.apart else []
    edited += ["hits.csv"] if "hits" in other else []
    edited += _other_scores(pairs)[:1]
    return (
        ("wrong", f"the same losses and other numbers: {', '.join(edited)}") if edited else ("same", "the same numbers")
    )


def _follows_numbers(old: Path, new: Path, name: str) -> bool:
    """Whether a method's counts can depend on its numbers: then they are seldom the same in two rounds.

    In the league's entries these are FedKD, whose messages are cut by their singular values, and a few that send to the
    clients they choose; all others have one number of bytes, or another one in the first round.
    """
    old_rows, rows = ([[row[key] for key in _AMOUNTS[name]] for row in read_rows(f, name)] for f in (old, new))
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
    """A row beside accuracies and losses of the cell's own tests, and the value computed here.

    Attributes:
        place: file and line.
        row: the row of the run.
        here: the value here; None: no such row.
        moved: whether a model of another round was scored here, so that the values say nothing.
    """

    place: str
    row: Row
    here: float | None
    moved: bool = False

    @property
    def close(self) -> bool:
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
        return f"{self.place}: {','.join(self.row.values())} in the run, {self.here} here"


def _further_pairs(cell: CellView, folder: Path) -> list[_Pair]:
    """Rows of further scores, of earlier and later data (`changes.csv`), and of later evaluations, as far as their
    scores are known here.

    A cell that was resumed with other `metrics` has some scores of some rounds only.
    """
    return [
        pair
        for pair in (*_score_pairs(cell, folder), *_added_pairs(cell, folder))
        if pair.row["quantity"] in METRICS.names()
    ]


def _score_pairs(cell: CellView, folder: Path) -> Iterator[_Pair]:
    for name in (*FURTHER, "changes"):
        if all((of / f"{name}.csv").exists() for of in (cell.folder, folder)):
            columns = COLUMNS[name][:-1]
            here = {tuple(row[key] for key in columns): float(row["value"]) for row in read_rows(folder, name)}
            for line, row in enumerate(read_rows(cell.folder, name), start=2):
                yield _Pair(f"{name}.csv, line {line}", row, here.get(tuple(row[key] for key in columns)))


def _added_pairs(cell: CellView, folder: Path) -> Iterator[_Pair]:
    """The rows of `evaluated.csv`, but for tests that cannot be compared (`_not_evaluated`).

    Training that rounds otherwise may report another round.
    """
    if not (cell.folder / "evaluated.csv").exists():
        return
    computed, left_out = _computed(folder), set(_not_evaluated(cell, folder))
    of_any_round = {key[1:]: value for key, value in computed.items()}
    for line, row in enumerate(read_rows(cell.folder, "evaluated"), start=2):
        if row["split"] not in left_out:
            key = tuple(row[column] for column in _ADDED)
            here = computed.get(key, of_any_round.get(key[1:]))
            yield _Pair(f"evaluated.csv, line {line}", row, here, moved=key not in computed)


def _computed(folder: Path) -> dict[tuple[str, ...], float]:
    """Values by row, as `evaluated.csv` has them: what was asked for at once stands in the tables of scores."""
    names = [name for name in ("evaluated", *FURTHER, "metrics") if (folder / f"{name}.csv").exists()]
    rows = [{"client": str(ALL), "on": "local", "mean": "", **row} for name in names for row in read_rows(folder, name)]
    return {tuple(row[column] for column in _ADDED): float(row["value"]) for row in rows}


def _not_evaluated(cell: CellView, folder: Path) -> list[str]:
    """The tests of a cell's later evaluations that cannot be compared with those in `folder`."""
    names = list(dict.fromkeys(cell.table("evaluated")["split"]))
    again = read_json(folder / "settings.json")
    if again is None or again["select_by"] != cell.settings.select_by:  # models of other rounds
        return names
    known = {key[_ADDED.index("split")] for key in _computed(folder)} if names else set()
    return [name for name in names if name not in known]


def evaluated_tests(cell: CellView) -> list[FurtherTest]:
    """The further tests that a cell has rows of, as far as their names, or its settings, say what they are."""
    known = {label: test for test in cell.settings.tests for label in test.labels}
    tests: list[FurtherTest] = []
    for label in dict.fromkeys(cell.table("evaluated")["split"]):
        kind, _, rest = label.partition(" ")
        corruption, _, severity = rest.rpartition(" ")
        if label in known:
            tests.append(known[label])
        elif label == "global" or label == "others":
            tests.append(PlainTest(name=label))
        elif kind == "corrupted" and corruption and severity in "12345":
            tests.append(CorruptedTest(name="corrupted", kinds=(corruption,), severity=int(severity)))
    return list({test.labels: test for test in tests}.values())


def scores_of(cell: CellView) -> set[str]:
    """The further scores that a cell has rows of, in its own tables and in that of later evaluations."""
    return {*cell.table("scores")["quantity"], *cell.table("evaluated")["quantity"]}.difference(RECORDED)


def _other_scores(pairs: Sequence[_Pair]) -> list[str]:
    """Describe the further scores of the run that are others here."""
    return [pair.text for pair in pairs if pair.moved or not pair.close]


def _beyond_rounding(cell: CellView, pairs: Sequence[_Pair], apart: int) -> str:
    """Describe the first further score that differs by more than rounding can move it; empty where none does.

    Clients' values are not looked at: whoever edits them has to edit the means that follow.

    Args:
        cell: the finished cell.
        pairs: its further scores.
        apart: how many samples of the cell's own tests were classified otherwise; of others it is not known.
    """
    record = read_json(cell.folder / "partition.json")
    for pair in pairs:
        of_round = record_of(record, int(pair.row["round"]))
        samples = sum(of_round[f"n_{'validation' if pair.row['split'] == 'validation' else 'test'}"])
        samples = samples or of_round["n_global_test"] or 1
        possible = apart * max(_WEIGHT / samples, _CLASSES / len(of_round["counts"][0]))
        if not pair.place.startswith(FURTHER):
            possible = max(possible, allowed_flips(samples) * _WEIGHT / samples)
        of_clients = pair.row.get("client", str(ALL)) != str(ALL)
        if not (pair.moved or of_clients) and pair.apart > _TOLERANCE + possible:
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
