"""The numbers of docs/league.md, "What it says so far": printed here, and on the page of `bench league report`.

    python docs/examples/league_numbers.py                       # the entries that come with the harness
    python docs/examples/league_numbers.py runs/league_1_small/*.tar.xz

Corrected intervals are Student's, paired by seed, with Bonferroni's level for the candidates that one was chosen from:
all methods of a mean or a task, or all pairs of a generic and a personalized model.
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from bench.results.pack import unpack
from reports.league.gain import ALONE, BOUND, Gains, Measure, by_seed, gains
from reports.league.page import shipped
from reports.league.pictures import means
from reports.league.rule import by_case, family_mean, positions, ranked
from reports.reading.generic_models import equal_models
from reports.reading.load import Store, load
from reports.statistics.inference import LEVEL, paired, summarise
from reports.tables.accuracy import GM, PM, selection
from reports.tables.standings import derived_rows


def main() -> None:
    """Print a part for each paragraph."""
    files = [Path(name) for name in sys.argv[1:]] or shipped("league_1_small")
    with tempfile.TemporaryDirectory() as scratch:
        for file in files:
            unpack(file, Path(scratch, file.name))
        store = by_case(load([Path(scratch, file.name) for file in files]))
        chosen = selection(store)
        print_ranks(store, chosen)
        if (measured := gains(store, chosen)) is not None:
            print_gains(store, measured)
            print_room(store, chosen, measured)
        print_leaders(store, chosen)
        print_generic_ones(store)


def print_ranks(store: Store, chosen: str) -> None:
    """Ranks, intervals and tiers of both models."""
    for figure in (PM, GM):
        compared, places = ranked(store, figure, chosen)
        at, mean = positions(places), family_mean(store, means(store, list(places), figure, chosen))
        tiers = Counter(place.tier for place in places.values())
        widths = [place.last - place.first + 1 for place in places.values()]
        print(
            f"\n## Ranks, {figure.name}: {len(store.rows)} entries, {len(places)} ranked, {len(compared.scores)} models"
        )
        print(f"tiers: {dict(sorted(tiers.items()))}; interval widths: median {np.median(widths):g} ranks")
        print(f"intervals from 1: {sum(place.first == 1 for place in places.values())}; highest mean: {mean.idxmax()}")
        for row in sorted(places, key=lambda row: (at[row], row)):
            place, clone = places[row], f" (= {compared.clones[row]})" if row in compared.clones else ""
            print(f"{at[row]}. {row}{clone}: {place.first}-{place.last}, tier {place.tier}, {mean[row]:.2f} %")


def print_gains(store: Store, measured: Gains) -> None:
    """Gains above 0 and sure ones; by families and with all tasks alike."""
    gain, p = measured.gain, measured.p
    print(f"\n## Gains over the better of {' and '.join(ALONE)}: {len(p)} methods")
    positive = [row for row in p if gain.means[row].mean > 0]
    print(f"{len(positive)} gain anything:")
    _print_measure(gain, positive)
    for word, up in (("gain", True), ("lose", False)):
        sure = [row for row in p if p[row] < LEVEL and (gain.means[row].mean > 0) == up]
        print(f"{len(sure)} surely {word}:")
        _print_measure(gain, sure)
    alike, places = gain.by_task.loc[list(p)].mean(axis="columns"), ranked_by(gain, p)
    print("all tasks alike:")
    for at, row in enumerate(alike.sort_values(ascending=False).index[:6], start=1):
        print(f"{at}. {row} {alike[row]:+.2f} (by families {gain.means[row].mean:+.2f}, {places.index(row) + 1}.)")
    for row in dict.fromkeys([*places[:3], *alike.nlargest(3).index]):
        print(f"{row} by task: " + ", ".join(f"{task} {value:+.2f}" for task, value in gain.by_task.loc[row].items()))


def ranked_by(measure: Measure, rows: Iterable[str]) -> list[str]:
    """The rows with the highest mean first."""
    return sorted(rows, key=lambda row: -measure.means[row].mean)


def print_room(store: Store, chosen: str, measured: Gains) -> None:
    """How far the bound is above what needs no method, and the scores between the two."""
    if measured.score is None:
        return
    print(f"\n## Personalization scores; {BOUND} above the better of {' and '.join(ALONE)}, interval of each by itself")
    bound = next(cell.row for cell in store.cells if cell.view.settings.method == BOUND)
    accuracies = {row: by_seed(store, row, PM, chosen) for row in (bound, *ALONE)}
    for task in store.tasks:
        better = max(ALONE, key=lambda row: float(accuracies[row][task].mean()))
        room = summarise((accuracies[bound][task] - accuracies[better][task]).dropna().to_numpy())
        print(f"{task}: {room.mean:+.2f} [{room.low:.2f}, {room.high:.2f}] over {better}")
    known = [row for row in measured.p if measured.score.means[row].mean >= 0]
    print(f"{measured.score.by_task.notna().any().sum()} tasks have room; {len(known)} methods at 0 or above:")
    _print_measure(measured.score, known)


def _print_measure(measure: Measure, rows: Iterable[str]) -> None:
    for row in ranked_by(measure, rows):
        one, all_hold = measure.means[row], measure.corrected[row]
        print(
            f"  {row} {one.mean:+.2f}, corrected [{all_hold.low:.2f}, {all_hold.high:.2f}], by itself "
            f"[{one.low:.2f}, {one.high:.2f}]"
        )


def print_leaders(store: Store, chosen: str) -> None:
    """The first of each task beside what needs no method, the second and third, and the best generic model."""
    compared, _ = ranked(store, PM, chosen)
    own = [row for row in compared.scores if row not in ALONE]
    generic = sorted(derived_rows(store, store.tasks, PM) - derived_rows(store, store.tasks, GM))
    accuracies = {row: by_seed(store, row, PM, chosen) for row in (*own, *ALONE, *generic)}
    print(f"\n## Leaders: {len(own)} personalized and {len(generic)} generic models beside {' and '.join(ALONE)}")
    for task in store.tasks:
        seeds = {row: dict(one[task]) for row, one in accuracies.items()}
        mean = pd.Series({row: one[task].mean() for row, one in accuracies.items()})
        order = mean[own].sort_values(ascending=False).index
        best_generic = str(mean[generic].idxmax())
        print(f"{task}:")
        for row in order[:3]:
            for reference in ALONE:
                print(f"  {row} - {reference}: {_corrected(seeds[row], seeds[reference], len(own))}")
            print(f"  {best_generic} - {row}: {_corrected(seeds[best_generic], seeds[row], len(generic) * len(own))}")
        print(f"  {order[0]} - {order[1]}: {mean[order[0]] - mean[order[1]]:+.2f}")
        at = list(order).index("feddbe") + 1
        print(f"  feddbe ({at}.) - finetune: {_corrected(seeds['feddbe'], seeds['finetune'], len(own))}")


def _corrected(one: dict[str, float], other: dict[str, float], candidates: int) -> str:
    """A difference in points, with its interval corrected for the candidates, and by itself."""
    whole, lone = paired(one, other, LEVEL / candidates), paired(one, other)
    return (
        f"{whole.difference:+.2f}, corrected for {candidates} [{whole.low:.2f}, {whole.high:.2f}], by itself "
        f"[{lone.low:.2f}, {lone.high:.2f}]"
    )


def print_generic_ones(store: Store) -> None:
    """On how many tasks the personalized models of methods that train some are the generic one."""
    cells = equal_models(store.figures, {cell.view.id: cell.view for cell in store.cells})
    same = cells.groupby(["row", "task"]).all()
    counts = Counter(row for row, _ in same[same].index)
    print("\n## Personalized models that are the generic one, tasks")
    print(", ".join(f"{row} {count}" for row, count in counts.most_common()))


if __name__ == "__main__":
    main()
