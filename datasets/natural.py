"""`natural`: clients are the groups of the data, such as people, hospitals, cameras or domains."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import PositiveInt

from bench.data import EMPTY, Dataset, Indices, Split
from bench.errors import UserError
from bench.plugin import PARTITIONS
from bench.rng import generator
from bench.samples.local_parts import split_validation
from bench.samples.subjects import most_frequent
from datasets.partitions import DividedSamples, SplitShares


@PARTITIONS.register("natural")
def natural(
    dataset: Dataset,
    *,
    clients: int | Literal["all"],
    seed: int,
    min_samples: PositiveInt = 1,
    pooled: bool = False,
    held_out: tuple[str | int, ...] = (),
    shares: SplitShares | None = None,
    fixed_tests: bool = False,
    redraw: bool = False,
) -> Split:
    """One client per group of the data, with the group's training samples, and its test samples as local test.

    If there are more groups than clients, as many groups as clients are drawn, the same for every seed: a mean over
    seeds is then one over the same clients. They keep the order of their names. The generic model is tested on the
    union of the local tests.

    The data set and the seed are as in `make_partition`.

    Args:
        clients: a number, those held out among them, or `all` groups that are large enough.
        min_samples: groups with fewer samples to divide are left out.
        pooled: use all groups and assign them to the clients at random; the clients' numbers of groups differ by at
            most one.
        held_out: names of groups that become the new clients of the cell, each a client of its own, after the others.
        shares: divide all samples, including the official test part, and `cut` each client's; where the data name
            subjects, these are divided, each with all of its samples.
        fixed_tests: with `shares`, keep the same samples for tests whatever the seed.
        redraw: draw other groups for every seed.

    Raises:
        UserError: the data have no groups or too few for the clients, a name in `held_out` is not a group, or there are
            no test samples.
    """
    if dataset.groups is None:
        raise UserError(
            f"partition 'natural': {dataset.name} has no groups; tables and texts have an option `site_column`, "
            "`image_folder` has `groups`, and an .npz file may have an array 'groups'"
        )
    samples = DividedSamples.of(dataset, seed, shares, fixed_tests)
    owners = dataset.groups[: len(samples.y)]
    sizes = np.bincount(owners, minlength=len(dataset.group_names))
    large = np.flatnonzero(sizes >= min_samples)
    new = _named(dataset, held_out, large)
    others = np.setdiff1d(large, new)
    count = len(others) if clients == "all" else clients - len(new)
    members = _members(others, count, seed if redraw or pooled else None, pooled, min_samples, dataset.name)
    members += [np.array([group]) for group in new]
    drawn_once = count < len(others) and not redraw and not pooled
    absent = np.setdiff1d(np.arange(len(sizes)), np.concatenate(members)) if clients == "all" or drawn_once else EMPTY
    lists = [np.flatnonzero(np.isin(owners, groups)) for groups in members]
    if shares is None:
        split = Split(lists, test=_tests(dataset, members), global_test=EMPTY)
    elif dataset.subjects is not None:
        split = _cut_subjects(samples, dataset.subjects, lists)
    else:
        split = samples.split(lists)
    names = tuple(" + ".join(dataset.group_names[group] for group in groups) for groups in members)
    places = tuple(range(len(members) - len(new), len(members)))
    left_out = tuple(dataset.group_names[group] for group in absent)
    return replace(split, names=names, new=places, left_out=left_out)


def _cut_subjects(samples: DividedSamples, subjects: Indices, lists: list[Indices]) -> Split:
    """Cut each client's subjects as others cut samples; the subjects kept for tests have as many labels as possible."""
    labels = most_frequent(samples.y, subjects)
    present = [np.unique(subjects[indices]) for indices in lists]
    kept = np.zeros(len(labels), bool)
    if samples.kept is not None and samples.shares is not None:
        for client, numbers in enumerate(present):
            kept[split_validation(labels, numbers, samples.shares[2], 0, client)[1]] = True
    split = replace(samples, y=labels, kept=None if samples.kept is None else kept).split(present)

    def of_subjects(parts: Sequence[Indices]) -> list[Indices]:
        return [at[np.isin(subjects[at], part)] for at, part in zip(lists, parts, strict=True)]

    validation = None if split.validation is None else of_subjects(split.validation)
    always = np.flatnonzero(kept[subjects])
    return Split(of_subjects(split.train), validation, of_subjects(split.test or ()), EMPTY, always)


def _named(dataset: Dataset, names: tuple[str | int, ...], large: Indices) -> list[int]:
    """The numbers of the groups with these names."""
    numbers = {dataset.group_names[group]: int(group) for group in large}
    if strangers := [name for name in names if str(name) not in numbers]:
        some = ", ".join(list(numbers)[:5]) + (", ..." if len(numbers) > 5 else "")
        raise UserError(f"partition 'natural': held_out has {strangers[0]!r}; the groups large enough are {some}")
    if len({str(name) for name in names}) < len(names):
        raise UserError(f"partition 'natural': held_out = {list(names)} names a group twice")
    return [numbers[str(name)] for name in names]


def _members(large: Indices, clients: int, seed: int | None, pooled: bool, least: int, name: str) -> list[Indices]:
    """The groups of each client; those that a seed draws, or without one the same for every seed."""
    if clients < 1:
        raise UserError("partition 'natural': held_out leaves no client to train; name fewer groups or add clients")
    if len(large) < clients:
        raise UserError(
            f"partition 'natural': {name} has {len(large)} groups of {least} samples or more for {clients} clients "
            f"that train; take `clients: all`" + (", or a smaller min_samples" if least > 1 else "")
        )
    shuffled = generator(*([] if seed is None else [seed]), "partition", "natural").permutation(large)
    if pooled:
        return [np.sort(part) for part in np.array_split(shuffled, clients)]
    return list(np.sort(shuffled[:clients])[:, None])


def _tests(dataset: Dataset, members: list[Indices]) -> list[Indices]:
    """Each client's local test: the samples of the official test part that belong to its groups."""
    assert dataset.groups is not None
    part = dataset.groups[dataset.n_train :]
    tests = [dataset.n_train + np.flatnonzero(np.isin(part, groups)) for groups in members]
    if not any(map(len, tests)):
        raise UserError(
            f"partition 'natural': none of the clients' groups is in the test part of {dataset.name}; cut tests from "
            "their own samples, with `shares: [0.75, 0, 0.25]`"
        )
    return tests
