"""The SCD study: run its two grids and test the paper's claims on them (docs/scd-study.md).

    python docs/examples/scd_study.py runs/scd-study [--jobs 2] [--set ...]

It first halves the pictures of `data/mnist.npz` and `data/cifar10_jpeg.npz` (MedMNIST's keys), once; not where
`--set datasets=...` names others. Everything after the folder goes to `bench run`, for both grids. The same command
resumes where it was stopped. It prints the scores and the claims as Markdown and writes them to `tables.md`,
`scores.csv` and `claims.csv` in the folder: differences in points of test accuracy, paired by seed, with their 95 % t
intervals; nothing is corrected for the number of claims. The scores of Tables 6 to 8's values go to `curves.csv`, which
`docs/examples/scd_curves.py` draws.
"""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from reports.reading.load import GM, PM, Figure, Store, load
from reports.statistics.inference import paired, summarise

HERE = Path(__file__).parent
PICTURES = ("data/mnist.npz", "data/cifar10_jpeg.npz")
GRIDS = {"arms": HERE / "scd_study.yaml", "curves": HERE / "scd_curves.yaml"}
READINGS = ("generalised_kl", "simplex", "mean", "restart")
CLAIMS = (
    ("S1", "both terms beat FedAvg", GM, "{}", "fedavg"),
    ("S2", "FedAvg beats SCD without the personal term", GM, "fedavg", "{}_no_p"),
    ("S3", "the generic term helps the personalized models", PM, "{}", "{}_no_g"),
    ("S4", "the personal term helps the personalized models", PM, "{}", "{}_no_p"),
    ("S5", "both terms beat Ditto, lambda 1", PM, "{}", "ditto_1"),
    ("S5", "both terms beat FedRep", PM, "{}", "fedrep"),
)
PUBLISHED = {"tau": 0.4, "lambda_g": 0.05, "lambda_p": 0.01}


@dataclass(frozen=True)
class Finding:
    """One claim on one task: mean paired difference in points and its 95 % interval; it says `better - worse`."""

    claim: str
    says: str
    figure: str
    reading: str
    task: str
    seeds: int
    difference: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """Whether the interval lies on one side of 0."""
        return "holds" if self.low > 0 else "contradicted" if self.high < 0 else "open"


def main(folder: Path, options: list[str]) -> None:
    """Run what is left of the grids; print and write what the claims come to."""
    if not any(option.startswith("datasets=") for option in options):
        for name in PICTURES:
            halve(Path(name))
    for name, grid in GRIDS.items():
        command = [sys.executable, "-m", "bench.cli", "run", "--grid", str(grid), "--out", str(folder / name), *options]
        subprocess.run(command, check=True)
    report(folder)


def report(folder: Path) -> None:
    """Print and write what the claims come to, as far as the grids have been run."""
    stores = {name: load([folder / name]) for name in GRIDS if (folder / name / "run.json").exists()}
    found = [f for name, store in stores.items() for f in (claims if name == "arms" else maxima)(store)]
    names = {"arms": "scores", "curves": "curves"}
    tables = {names[name]: scores(store) for name, store in stores.items()}
    tables["claims"] = pd.DataFrame([{**vars(f), "verdict": f.verdict} for f in found])
    for name, table in tables.items():
        table.round(2).to_csv(folder / f"{name}.csv", index=False)
    text = markdown(folder)
    (folder / "tables.md").write_text(text, encoding="utf-8")
    print(text)


def markdown(folder: Path) -> str:
    """The two CSV files of a folder as Markdown tables: mean ± standard deviation, and differences with intervals."""
    scored, found = (pd.read_csv(folder / f"{name}.csv") for name in ("scores", "claims"))
    scored["text"] = [_pm(*row) for row in zip(scored["mean"], scored["std"], scored["seeds"], strict=True)]
    found["text"] = [
        f"{d:+.2f} [{low:+.2f}, {high:+.2f}]{'' if verdict == 'open' else f' **{verdict}**'}"
        for d, low, high, verdict in found[["difference", "low", "high", "verdict"]].itertuples(index=False)
    ]
    found["claim"] = [
        f"{c}: {says} ({figure})"
        for c, says, figure in zip(found["claim"], found["says"], found["figure"], strict=True)
    ]
    wide = scored.pivot_table(index="row", columns=["task", "figure"], values="text", aggfunc="first", sort=False)
    wide.columns = [f"{figure}, {task}" for task, figure in wide.columns]
    verdicts = found.pivot_table(index=["claim", "reading"], columns="task", values="text", aggfunc="first", sort=False)
    return f"{as_markdown(wide)}\n\n{as_markdown(verdicts)}\n"


def _pm(mean: float, std: float, seeds: int) -> str:
    return f"{mean:.2f} ± {std:.2f} ({seeds})" if seeds > 1 else f"{mean:.2f} (1)"


def as_markdown(table: pd.DataFrame) -> str:
    """Index and columns as a Markdown table, empty where there is nothing."""
    head = [*table.index.names, *map(str, table.columns)]
    rows = [head, ["---"] * len(head), *table.reset_index().fillna("").astype(str).to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def halve(file: Path) -> None:
    """Write FILE_16.npz, the pictures at 16 x 16, unless it is there already.

    Raises:
        SystemExit: the originals are missing.
    """
    halved = file.with_stem(f"{file.stem}_16")
    if halved.exists():
        return
    if not file.exists():
        sys.exit(f"{file} is missing: put MNIST or CIFAR-10 there under MedMNIST's keys (docs/data.md)")
    arrays = dict(np.load(file))
    arrays.update({key: half(x) for key, x in arrays.items() if key.endswith("_images")})
    np.savez(halved, **arrays)


def half(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """`[n, 16, 16, ...]` of `[n, 28, 28, ...]`, which gets a black margin of two pixels, or `[n, 32, 32, ...]`."""
    margin = (32 - images.shape[1]) // 2
    x = np.pad(images, [(0, 0), (margin, margin), (margin, margin), *[(0, 0)] * (images.ndim - 3)])
    return x.reshape(len(x), 16, 2, 16, 2, *x.shape[3:]).mean((2, 4)).round().astype(np.uint8)


def claims(store: Store) -> Iterator[Finding]:
    """S1 to S5 for every reading and task of the arms; those with fewer than two seeds in common are left out."""
    for task in store.tasks:
        for claim, says, figure, better, worse in CLAIMS:
            for reading in READINGS:
                pair = [values(store, name.format(reading), task, figure) for name in (better, worse)]
                yield from _finding(claim, says, figure, reading, task, *pair)


def maxima(store: Store) -> Iterator[Finding]:
    """S6: the published value of tau and of each lambda against the value beside it that did best on the same seeds.

    The rival is chosen by what it is tested on: a printed maximum that is one of several equals is not said to hold.
    """
    labels = {(cell.view.label, cell.task): cell.view.settings.hp for cell in store.cells}
    for label, task in labels:
        rows = {
            cell.row: cell.view.settings.hp for cell in store.cells if (cell.view.label, cell.task) == (label, task)
        }
        centre = next(row for row, hp in rows.items() if all(hp[name] == value for name, value in PUBLISHED.items()))
        for name in PUBLISHED:
            others = [row for row, hp in rows.items() if [k for k, v in PUBLISHED.items() if hp[k] != v] == [name]]
            for figure in (GM, PM):
                rivals = {row: found for row in others if (found := values(store, row, task, figure))}
                if rivals:
                    best = max(rivals, key=lambda row: summarise([*rivals[row].values()]).mean)
                    says = f"{name} = {PUBLISHED[name]:g} beats {rows[best][name]:g}, the best of the others"
                    ours = values(store, centre, task, figure)
                    yield from _finding("S6", says, figure, label, task, ours, rivals[best])


def scores(store: Store) -> pd.DataFrame:
    """Means and standard deviations over seeds, percent."""
    lines = []
    for task in store.tasks:
        for row in store.rows:
            for figure in (GM, PM):
                if found := values(store, row, task, figure):
                    s = summarise([*found.values()])
                    lines.append((row, task, figure.name, s.n, s.mean, s.std))
    return pd.DataFrame(lines, columns=["row", "task", "figure", "seeds", "mean", "std"])


def values(store: Store, row: str, task: str, figure: Figure) -> dict[str, float]:
    """Test accuracy in percent by seed, at the round chosen on validation data."""
    return store.scores(row, task, figure)


def _finding(
    claim: str, says: str, figure: Figure, reading: str, task: str, better: dict[str, float], worse: dict[str, float]
) -> Iterator[Finding]:
    if len(better.keys() & worse.keys()) > 1:  # one seed has no interval
        c = paired(better, worse)
        yield Finding(claim, says, figure.name, reading, task, c.n, c.difference, c.low, c.high)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python docs/examples/scd_study.py FOLDER [options of bench run]")
    main(Path(sys.argv[1]), sys.argv[2:])
