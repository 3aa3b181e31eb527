"""Which differences of a league's methods would other draws turn? One half of the draws against the other.

    python docs/examples/league_halves.py FOLDER                # entries (.tar.xz): their differences from fine-tuning
    python docs/examples/league_halves.py FOLDER local fedavg   # from other methods

Prints the differences in points of PM accuracy that are sure, with intervals corrected for all methods, tasks and
references asked for, and the mean in each half. A half has other trials, other seeds and other partitions than the
other one. The last line counts the sure differences that have another sign in one half.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.data import Floats
from bench.results.pack import unpack
from reports.league.rule import by_case, task_weights
from reports.reading.load import PM, Store, load
from reports.statistics.inference import LEVEL
from reports.statistics.reference import differences
from reports.tables.standings import family


@dataclass(frozen=True)
class Difference:
    """A method minus a reference on a task or over all, in points, with the means of both halves of the units."""

    where: str
    method: str
    reference: str
    mean: float
    half_width: float
    halves: tuple[float, float]

    @property
    def sure(self) -> bool:
        """Whether the corrected interval leaves out 0."""
        return abs(self.mean) > self.half_width

    @property
    def turns(self) -> bool:
        """Whether a half has another sign than the whole."""
        return any(part * self.mean <= 0 for part in self.halves)

    def __str__(self) -> str:
        low, high = self.mean - self.half_width, self.mean + self.half_width
        first, second = self.halves
        return (
            f"{self.where}: {self.method} - {self.reference} {self.mean:+.2f} [{low:.2f}, {high:.2f}], "
            f"halves {first:+.2f} and {second:+.2f}"
        )


def against(store: Store, reference: str, level: float) -> Iterator[Difference]:
    """Compare all methods with one, over all tasks and on each.

    Raises:
        SystemExit: the reference has no personalized model on all tasks.
    """
    group = family(store, store.tasks, PM)
    scores = group.scores
    if reference not in scores:
        raise SystemExit(f"{reference} is not compared on all tasks: {', '.join(scores)} are")
    rows = [row for row in scores if row != reference]
    erratic = [row in group.erratic for row in (reference, *rows)]
    tasks = [np.array(units) for units in zip(*(scores[row] for row in rows), strict=True)]
    whole = [("all tasks", tasks, scores[reference], task_weights(store, store.tasks), group.least)]
    single = [
        (name, [of_task], [units], np.ones(1), (least,))
        for name, of_task, units, least in zip(store.tasks, tasks, scores[reference], group.least, strict=True)
    ]
    for where, of_tasks, units, weights, least in [*whole, *single]:
        compared = differences(of_tasks, units, weights, erratic, least)
        widths = compared.half(level / (len(rows) * (1 + len(tasks))))
        halves = [_mean_of_half(of_tasks, units, weights, part) for part in (0, 1)]
        for at, row in enumerate(rows):
            parts = float(halves[0][at]), float(halves[1][at])
            yield Difference(where, row, reference, float(compared.mean[at]), float(widths[at]), parts)


def _mean_of_half(tasks: Sequence[Floats], reference: Sequence[Floats], weights: Floats, part: int) -> Floats:
    """Means `[methods]` over the first or the second half of the units."""
    by_task = []
    for methods, units in zip(tasks, reference, strict=True):
        middle = len(units) // 2
        chosen = slice(middle) if part == 0 else slice(middle, None)
        by_task.append((methods[:, chosen] - units[chosen]).mean(axis=1))
    return np.asarray(weights @ np.array(by_task))


def main() -> None:
    """Print the sure differences, the largest first, and how many of them turn."""
    folder, references = Path(sys.argv[1]), sys.argv[2:] or ["finetune"]
    with tempfile.TemporaryDirectory() as scratch:
        files = sorted(folder.glob("*.tar.xz"))
        for file in files:
            unpack(file, Path(scratch, file.name))
        store = by_case(load([Path(scratch, file.name) for file in files]))
        compared = [item for name in references for item in against(store, name, LEVEL / len(references))]
    sure = sorted((difference for difference in compared if difference.sure), key=lambda item: -abs(item.mean))
    for difference in sure:
        print(difference)
    turned = sum(difference.turns for difference in sure)
    print(f"{len(sure)} of {len(compared)} differences are sure; {turned} of them have another sign in one half")


if __name__ == "__main__":
    main()
