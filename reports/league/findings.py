"""Findings of the league's page, in a few sentences that are computed from its tables."""

from collections import Counter
from collections.abc import Iterator

from reports.league.gain import Gains
from reports.league.pictures import means
from reports.league.rule import family_mean, rank_text, ranked
from reports.page.section import Section
from reports.reading.load import GM, PM, Figure, Store
from reports.statistics.inference import Summary
from reports.tables.standings import derived_rows

GLOSSARY = (
    "GM: the generic model, one for all clients, on the common test set. PM: the personalized models, each on its "
    "client's own test set. A task is named after what differs between its clients; the tasks of a data set are a data "
    "family. Tier: methods that the intervals do not tell apart from the tier's first. In brackets: what a method does "
    "not train (a generic model on the clients' tests), or what no method may do (`centralized`); shown, never ranked. "
    "Every number in a table of methods leads to its settings and to the command that computes it again."
)
_FEW = 3


def findings(store: Store, comparison: Gains | None) -> Section:
    """Section of the glossary and the findings."""
    points = [*_ranks(store, PM), *_ranks(store, GM)]
    if comparison is not None:
        points += _gains(comparison)
    points += _leaders(store)
    return Section("short", "In short", GLOSSARY, points=tuple(points))


def _ranks(store: Store, figure: Figure) -> Iterator[str]:
    compared, places = ranked(store, figure)
    if not places:
        return
    mean = family_mean(store, means(store, list(places), figure))
    first, highest = max(places, key=lambda row: places[row].mean), str(mean.idxmax())
    tier = [row for row in compared.scores if places[row].tier == 1]
    yield (
        f"{figure.name}: {len(compared.scores)} methods train it, {len(tier)} of them in the first tier. First by "
        f"log-odds is {first} (rank {rank_text(places[first])}), first by accuracy {highest} "
        f"({mean[highest]:.2f} %)."
    )


def _gains(comparison: Gains) -> Iterator[str]:
    summaries = comparison.gain.corrected
    above = [row for row in summaries if summaries[row].mean > 0]
    gaining = [row for row, summary in summaries.items() if summary.low > 0]
    losing = [row for row, summary in summaries.items() if summary.high < 0]
    yield (
        f"{len(above)} of {len(summaries)} methods gain, averaged over tasks, over the better of training alone and "
        f"fine-tuning; largest: {_first_few(summaries, '+.2f')} points (95 % intervals that hold for all methods at "
        f"once, as these are chosen from them). By these intervals {len(gaining)} surely gain and {len(losing)} "
        "surely lose."
    )
    if comparison.score is not None and comparison.score.by_task.notna().any(axis=None):
        scores = comparison.score.corrected
        tasks = int(comparison.score.by_task.notna().any().sum())
        yield (
            "On the way from there (0) to one model trained on everybody's data and then fine-tuned (1), on the "
            f"{tasks} tasks with room between them: {_first_few(scores, '.2f')} (intervals for all at once)."
        )


def _first_few(measured: dict[str, Summary], form: str) -> str:
    """Name the first few with their corrected intervals."""
    first = sorted(measured, key=lambda row: -measured[row].mean)[:_FEW]
    summaries = [(row, measured[row]) for row in first]
    return ", ".join(f"{row} {mean.mean:{form}} [{mean.low:.2f}, {mean.high:.2f}]" for row, mean in summaries)


def _leaders(store: Store) -> Iterator[str]:
    """Say who has the highest mean on how many tasks, and where a generic model has a higher one."""
    compared, derived = ranked(store, PM)[0], derived_rows(store, store.tasks, PM)
    generic = [row for row in derived if row not in derived_rows(store, store.tasks, GM)]
    if not compared.scores:
        return
    accuracies, generic_accuracies = (means(store, rows, PM) for rows in (list(compared.scores), generic))
    by_count: dict[int, list[str]] = {}
    for row, count in Counter(accuracies.idxmax().tolist()).most_common():
        by_count.setdefault(count, []).append(str(row))
    leads = "; ".join(f"on {count}: {', '.join(rows)}" for count, rows in by_count.items())
    yield (
        f"Number of tasks on which a method has the highest PM: {leads}. How far each is ahead, with an interval that "
        "knows that it was chosen, stands in the table of who leads."
    )
    if generic and (tasks := accuracies.columns[generic_accuracies.max() > accuracies.max()].tolist()):
        yield f"A generic model has a higher mean still on: {', '.join(tasks)}."
