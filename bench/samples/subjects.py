"""Subjects: whom or what samples are of, such as the patients of a table that has several rows of each.

Samples of one subject are alike beyond their class. Where some are trained on and others tested on, a model that knows
the subject again is right without having learnt anything of use (Saeb et al. 2017, "The need to approximate the
use-case in clinical machine learning"). So all samples of a subject lie on one side of every division.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from bench.data import Array, Dataset, Indices, Partition
from bench.errors import UserError
from bench.rng import generator
from bench.samples.local_parts import split_validation


def most_frequent(values: Array, subjects: Indices) -> Indices:
    """Find the most frequent value of each subject, `[subjects]`, as its place among the sorted values.

    Of several that are equally frequent it is the first.

    Args:
        values: `[samples]`, such as labels.
        subjects: `[samples]` numbers of the subjects, from 0 without a gap.
    """
    names, places = np.unique(values, return_inverse=True)
    counts = np.zeros((int(subjects.max()) + 1, len(names)), np.int64)
    np.add.at(counts, (subjects, places), 1)
    frequent: Indices = counts.argmax(axis=1)
    return frequent


def subject_notes(subjects: Array, groups: Array | None, what: str) -> list[str]:
    """Say how many subjects there are, and whether some are at several sites.

    Args:
        subjects: `[samples]` the subject of each.
        groups: `[samples]` the site of each, if they are of sites.
        what: a word for a sample, such as "row".
    """
    names, counts = np.unique(subjects, return_counts=True)
    notes = [f"the {what}s are of {len(names)} subjects, up to {counts.max()} of one; each is trained on or tested on"]
    if groups is not None:
        sites = {tuple(pair) for pair in zip(subjects.tolist(), groups.tolist(), strict=True)}
        if several := sorted(name for name, count in Counter(name for name, _ in sites).items() if count > 1):
            who = f"{len(several)} subjects have" if len(several) > 1 else "1 subject has"
            notes.append(
                f"{who} {what}s at several sites, such as {several[0]!r}; if sites number their "
                "subjects each for itself, put the site's name before the number"
            )
    return notes


def split_off_validation(
    y: Indices, subjects: Indices, lists: Sequence[Indices], share: float, seed: int
) -> list[tuple[Indices, Indices]]:
    """Split every client's samples into training and validation, a share of the subjects each time.

    A client's own subjects are divided by their most frequent label, as `split_validation` divides samples. Those that
    several clients have are validated on by all of these or trained on by all. A subject at least stays for training.

    Args:
        y, subjects: `[samples]` labels, and numbers of the subjects.
        lists: the samples of each client.
        share: of subjects for validation.
        seed: seed of the partition.
    """
    present = np.zeros((len(lists), int(subjects.max()) + 1), bool)
    for client, indices in enumerate(lists):
        present[client, subjects[indices]] = True
    shared = present.sum(axis=0) > 1
    held = np.zeros_like(present)
    for client, indices in enumerate(lists):
        alone = indices[~shared[subjects[indices]]]
        if not len(alone):
            continue
        names, numbers = np.unique(subjects[alone], return_inverse=True)
        labels = most_frequent(y[alone], numbers)
        _, chosen = split_validation(labels, np.arange(len(names)), share, seed, client)
        held[client, names[chosen]] = True
    _hold_shared(present, held, np.flatnonzero(shared), share, seed)
    return [
        (indices[~held[client, subjects[indices]]], indices[held[client, subjects[indices]]])
        for client, indices in enumerate(lists)
    ]


def _hold_shared(present: Array, held: Array, shared: Indices, share: float, seed: int) -> None:
    """Choose subjects of several clients for validation, and mark them in `held`, `[clients, subjects]`."""
    wanted = round(share * len(shared))
    left = (present & ~held).sum(axis=1)
    for subject in generator(seed, "partition", "validation", "shared subjects").permutation(shared):
        at = present[:, subject]
        if wanted and (left[at] > 1).all():
            held[at, subject] = True
            left[at] -= 1
            wanted -= 1


def check_sides(source: str, dataset: Dataset, partition: Partition) -> None:
    """Check that no subject is both trained on and held out, by whichever client.

    Raises:
        UserError: one is; the message has a sample of each side.
    """
    subjects = dataset.subjects
    if subjects is None:
        return
    trained = np.concatenate([*partition.train, np.empty(0, np.int64)])
    held = np.concatenate([*partition.validation, *partition.test, partition.global_test, partition.kept])
    if not (both := np.intersect1d(subjects[trained], subjects[held])).size:
        return
    samples = [int(at[subjects[at] == both[0]][0]) for at in (trained, held)]
    if dataset.rows is not None:
        samples = [int(dataset.rows[sample]) for sample in samples]
    what = "samples" if dataset.rows is None else "rows"
    raise UserError(
        f"{source} puts {what} of {both.size} subject{'s' * (both.size > 1)} of {dataset.name} on both sides, such as "
        f"{samples[0] + 1} for training and {samples[1] + 1} for validation or tests; leave out `shares`, or take a "
        "partition that makes no validation and no tests itself: then whole subjects are held out by all clients"
    )
