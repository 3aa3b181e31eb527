"""What the league's page says, in a few sentences that are computed from its tables."""

from collections import Counter
from collections.abc import Iterator

from reports.league.gain import Gains
from reports.league.pictures import means
from reports.league.rule import family_mean, ranked
from reports.page.sections import Section
from reports.reading.figure import Figure
from reports.reading.load import Store
from reports.statistics.inference import LEVEL, Summary
from reports.tables.accuracy import GM, PM
from reports.tables.standings import derived_rows

GLOSSARY = (
    "GM: the generic model, one for all clients, on the common test set. PM: the personalized models, each on its "
    "client's own test set. A task is named after what differs between its clients; the tasks of a data set are a data "
    "family. Tier: methods that the seeds do not tell apart from the tier's first. In brackets: what a method does not "
    "train (a generic model on the clients' tests), or what no method may do (`centralized`); shown, never ranked. "
    "Every number in a table of methods leads to its settings and to the command that computes it again."
)
_NAMED = 3


def findings(store: Store, chosen: str, found: Gains | None) -> Section:
    """The glossary and the findings."""
    points = [*_ranks(store, PM, chosen), *_ranks(store, GM, chosen)]
    if found is not None:
        points += _gains(found)
    points += _leaders(store, chosen)
    return Section("short", "In short", GLOSSARY, points=tuple(points))


def _ranks(store: Store, figure: Figure, chosen: str) -> Iterator[str]:
    compared, places = ranked(store, figure, chosen)
    if not places:
        return
    mean = family_mean(store, means(store, list(places), figure, chosen))
    first, highest = max(places, key=lambda row: places[row].mean), str(mean.idxmax())
    tier = [row for row in places if places[row].tier == 1]
    yield (
        f"{figure.name}: {len(compared.scores)} methods train it, of which {len(tier)} are in the first tier. First by "
        f"log-odds is {first} (rank {places[first].first} to {places[first].last}), first by accuracy {highest} "
        f"({mean[highest]:.2f} %)."
    )


def _gains(found: Gains) -> Iterator[str]:
    own = found.gain.corrected
    above = [row for row in own if own[row].mean > 0]
    sure = [row for row in own if found.p[row] < LEVEL]
    gaining, losing = ([row for row in sure if (own[row].mean > 0) == up] for up in (True, False))
    yield (
        f"{len(above)} of {len(own)} methods gain, averaged over tasks, over the better of training alone and "
        f"fine-tuning; largest: {_named(own, '+.2f')} points (95 % intervals that hold for all methods at once, as "
        f"these are chosen from them). Corrected for their number, {len(gaining)} surely gain and {len(losing)} surely "
        "lose."
    )
    if found.score is not None and found.score.by_task.notna().any(axis=None):
        scores = found.score.corrected
        tasks = int(found.score.by_task.notna().any().sum())
        yield (
            "On the way from there (0) to one model trained on everybody's data and then fine-tuned (1), on the "
            f"{tasks} tasks with room between them: {_named(scores, '.2f')} (intervals for all at once)."
        )


def _named(measured: dict[str, Summary], form: str) -> str:
    """The first few with their corrected intervals."""
    first = sorted(measured, key=lambda row: -measured[row].mean)[:_NAMED]
    texts = [f"{row} {one.mean:{form}} [{one.low:.2f}, {one.high:.2f}]" for row in first if (one := measured[row])]
    return ", ".join(texts)


def _leaders(store: Store, chosen: str) -> Iterator[str]:
    """Who has the highest mean on how many tasks, and where a generic model has a higher one."""
    compared, derived = ranked(store, PM, chosen)[0], derived_rows(store, store.tasks, PM)
    generic = [row for row in derived if row not in derived_rows(store, store.tasks, GM)]
    if not compared.scores:
        return
    own, other = (means(store, rows, PM, chosen) for rows in (list(compared.scores), generic))
    by_count: dict[int, list[str]] = {}
    for row, count in Counter(own.idxmax().tolist()).most_common():
        by_count.setdefault(count, []).append(str(row))
    leads = "; ".join(f"on {count}: {', '.join(rows)}" for count, rows in by_count.items())
    yield (
        f"Number of tasks on which a method has the highest PM: {leads}. How far each is ahead, with an interval that "
        "knows that it was chosen, stands in the table of who leads."
    )
    if generic and (better := own.columns[other.max() > own.max()].tolist()):
        yield f"A generic model has a higher mean still on: {', '.join(better)}."
