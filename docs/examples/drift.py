"""How far are the same cells apart on two kinds of processor, and what shift would `bench verify` see?

    python docs/examples/drift.py ENTRY... --cells 240 --seed 11 --skip feddf,fedala

Draws cells, computes them again (`--scratch FOLDER` keeps them, so that the same command goes on), and prints the
outcomes, how far accuracies, losses and samples are apart, and in which share of 20 simulated runs of n of these cells
a shift of their PM accuracies is called wrong (docs/lab-notes.md).
"""

import argparse
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from bench.results.pack import unpack
from bench.results.results import CellView, load_run
from bench.rng import generator
from bench.runs.cell_options import Options
from bench.runs.plan import plan
from bench.runs.session import work
from bench.runs.verify.drift import shift
from bench.runs.verify.files import read_rows
from bench.runs.verify.recomputed import CellVerdict, compare
from bench.runs.workers import LocalRunner

DATA = Path("data")
RUNS = 20


def compute(cells: list[CellView], scratch: Path) -> list[tuple[CellView, Path, CellVerdict]]:
    """Each cell with the folder of the same one computed here, and the verdict."""
    planned = plan([cell.settings for cell in cells], DATA, download=False)
    runner = LocalRunner(None, "auto")
    options = Options(cells=runner.sharing, data_root=DATA).model_dump_json()
    different = list({one.id: one for one in planned}.values())
    work(scratch, different, options, runner)
    return [(cell, scratch / one.id, compare(cell, scratch / one.id)) for cell, one in zip(cells, planned, strict=True)]


def right(folder: Path) -> dict[tuple[str, ...], int]:
    """Right test samples by metric, round and client."""
    rows = (row for row in read_rows(folder, "clients") if row["split"] == "test")
    return {(row["metric"], row["round"], row["client"]): int(row["correct"]) for row in rows}


def say(name: str, values: list[float]) -> None:
    """One line: how many differ at all, how many lie above, and how far they are apart."""
    moved = np.array([value for value in values if abs(value) > 1e-9])
    if len(moved):
        far = ", ".join(f"{np.quantile(np.abs(moved), q):.3g}" for q in (0.5, 0.9, 1.0))
        share = f"{len(moved)} of {len(values)}, {(moved > 0).sum()} up"
        print(f"| {name} | {share} | {np.mean(values):+.3f} | {np.std(values):.3f} | {far} |")


def power(pool: list[dict[str, float]], cells: int, points: float) -> str:
    """In which share of simulated runs the shift is seen."""
    rng = generator("docs", "drift", cells, points)
    seen = 0
    for _ in range(RUNS):
        drawn = [(pool[index], rng.choice((-1, 1))) for index in rng.integers(len(pool), size=cells)]
        moved = [
            {k: sign * v + (points if k.startswith("pm accuracy") else 0) for k, v in one.items()}
            for one, sign in drawn  # either computer may have been the one that the run was computed on
        ]
        seen += shift(moved) is not None
    return f"{seen / RUNS:.0%}"


def main() -> None:
    """Compute and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("entries", nargs="+", type=Path)
    parser.add_argument("--cells", type=int, default=240)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--skip", default="", help="Methods whose drawn cells are left out, as they take long.")
    parser.add_argument("--scratch", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        cells: list[CellView] = []
        for entry in given.entries:
            unpack(entry, Path(temporary, entry.name))
            cells += load_run(Path(temporary, entry.name)).cells
        order = np.random.default_rng(given.seed).permutation(len(cells))[: given.cells]
        drawn = [cells[index] for index in order if cells[index].label not in given.skip.split(",")]
        scratch = given.scratch or Path(temporary, "new")
        scratch.mkdir(parents=True, exist_ok=True)
        report(compute(drawn, scratch))


def report(found: list[tuple[CellView, Path, CellVerdict]]) -> None:
    """Print the tables."""
    paths = Counter(verdict.text.partition(", on another path ")[2] for _, _, verdict in found)
    print(f"{len(found)} cells of {len({cell.label for cell, _, _ in found})} methods: ", end="")
    print(", ".join(f"{count} {name}" for name, count in Counter(one.outcome for _, _, one in found).items()))
    print(f"paths: {'; '.join(paths)}\n")
    print("| difference | cells that differ | mean | sd | median, 90 %, most of those |\n|---|---|---:|---:|---|")
    by_name: dict[str, list[float]] = defaultdict(list)
    for _, _, verdict in found:
        for name, value in verdict.apart.items():
            by_name[name].append(value)
    for name, values in by_name.items():
        say(name, values)
    say("right samples of a client and round", clients(found))
    pools = {"as drawn": [one.apart for _, _, one in found if one.apart]}
    pools["drifted only"] = [one.apart for _, _, one in found if one.outcome == "drifted" and one.apart]
    print("\n| cells | drawn from | no shift | +0.5 | +1 | +3 points |\n|---:|---|---:|---:|---:|---:|")
    for count in (15, 20, 30):
        for name, pool in pools.items():
            print(f"| {count} | {name} | {' | '.join(power(pool, count, by) for by in (0, 0.5, 1, 3))} |", flush=True)


def clients(found: list[tuple[CellView, Path, CellVerdict]]) -> list[float]:
    """By how many right samples a client's test is above the one computed here, over cells, metrics and rounds."""
    differences: list[float] = []
    for cell, folder, _ in found:
        here = right(folder)
        differences += [float(count - here[key]) for key, count in right(cell.folder).items() if key in here]
    return differences


if __name__ == "__main__":
    main()
