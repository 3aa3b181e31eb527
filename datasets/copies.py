"""Equal samples of a user's data: in several parts, at several sites, or of several classes."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bench.data import Array, Dataset
from bench.samples.subjects import subject_notes
from datasets.assemble import assemble, held_out_order


def equal_places(keys: Iterable[Hashable]) -> list[list[int]]:
    """List the places of each key that occurs more than once, in the order of its first place."""
    places: dict[Hashable, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        places[key].append(place)
    return [group for group in places.values() if len(group) > 1]


def notes_on_copies(
    equal: Sequence[Sequence[int]], parts: Array, sites: Array | None, what: str, shown: Callable[[int], str]
) -> list[str]:
    """Say which equal samples are at several sites, and which are for training and for tests or validation.

    Args:
        equal: the places of equal samples, a list for each of them.
        parts: `[samples]` 0 for training, 1 for validation, 2 for tests.
        sites: `[samples]` the site of each, if they are of sites.
        what: a word for a sample, such as "row".
        shown: makes the name of the sample at a place.
    """
    notes = []
    if sites is not None and (across := [group for group in equal if len(set(sites[group])) > 1]):
        pairs = Counter(tuple(sorted(map(str, set(sites[group])))) for group in across)
        (some, _), first = pairs.most_common(1)[0], across[0]
        other = next(place for place in first if sites[place] != sites[first[0]])
        notes.append(
            f"{counted([place for group in across for place in group], what)} are equal at several sites, most at "
            f"{' and '.join(some[:3])} (such as {shown(first[0])} and {shown(other)}): is a person at both? Then one "
            "site trains on what another is tested on"
        )
    for part, purpose in ((2, "tests"), (1, "validation")):  # what is for validation joins training
        parted = [group for group in equal if parts[group].min() < part]
        if leaking := sorted(place for group in parted for place in group if parts[place] == part):
            verb = "equals" if len(leaking) == 1 else "equal"
            which = f"(the first: {shown(leaking[0])})"
            notes.append(f"{counted(leaking, what)} for {purpose} {verb} {what}s for training {which}")
    return notes


def with_copies(
    name: str, x: Array, y: Array, n_train: int, what: str, shown: Callable[[int], str] | None = None, *,
    validation: Sequence[int], groups: Array | None = None, subjects: Array | None = None, **options: Any,
) -> Dataset:  # fmt: skip
    """The data set of a user's samples, with notes on their subjects, on samples that are equal to others, and on those
    of these that have different labels; a test part is held out if there is none.

    Args:
        name, x, y, n_train, groups, subjects, options: as `datasets.assemble.assemble` takes them.
        what: a word for a sample, such as "picture".
        shown: makes the name of a sample by its place in the source; its number, if there is none.
        validation: the places in the source of a validation part, which has joined the training part.
    """
    held = None
    if n_train == len(y):
        held, n_train = held_out_order(y, subjects if subjects is not None and subjects.shape == y.shape else None)
        x, y = x[held], y[held]
        groups, subjects = (of if of is None or of.shape != y.shape else of[held] for of in (groups, subjects))
    data = assemble(name, x, y, n_train, rows=held, groups=groups, subjects=subjects, **options)
    rows = np.arange(len(y)) if held is None else held

    def name_of(place: int) -> str:
        row = int(rows[place])
        return f"{what} {row + 1}" if shown is None else shown(row)

    equal = equal_places(data.sample_digests())
    parts = np.isin(rows, validation).astype(np.int64)
    parts[n_train:] = 2
    notes = notes_on_copies(equal, parts, groups, what, name_of)
    if contrary := [group for group in equal if len(set(data.y[group].tolist())) > 1]:
        first = contrary[0]
        other = next(place for place in first if data.y[place] != data.y[first[0]])
        count = counted([place for group in contrary for place in group], what)
        notes.append(f"{count} are equal and have different labels (such as {name_of(first[0])} and {name_of(other)})")
    notes += [] if subjects is None else subject_notes(subjects, groups, what)
    return replace(data, notes=(*data.notes, *(f"{name}: {note}" for note in notes)))


def counted(places: Sequence[int], what: str) -> str:
    """Say how many samples there are."""
    return f"{len(places)} {what}{'s' if len(places) > 1 else ''}"
