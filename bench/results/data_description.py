"""A description of a cell's data before any training: sizes, classes, gaps, how different sites are, and what is too
small to test."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.data import Dataset, Floats, Indices, Partition
from bench.federation.cell_data import apply_shifts, load_dataset, load_partition
from bench.results.cell_names import task_name
from bench.results.remarks import partition_remarks
from bench.rng import generator
from bench.settings import Settings
from bench.store.data_record import partition_record

COARSE = 20.0
"""Points: a site whose test tells an accuracy less closely than within so many of either side is too small to test."""
_LEAST = 10  # training samples of a site, and of the others, for a comparison of features
_MOST = 500  # of each, which are compared
_COMPONENTS = 20  # directions of largest variance in which inputs are compared
_FOLDS = 5


@dataclass(frozen=True)
class Site:
    """One client of a partition.

    Attributes:
        name: of the site.
        train, validation, test: numbers of samples.
        classes: `[classes]` training samples of each class.
        missing: share of the training samples' numbers that the table lacks.
        label_distance: total variation between the shares of classes here and at all other sites, 0 .. 1.
        feature_score: how well a linear model tells this site's inputs from the others', by the area under its ROC
            curve on samples that it was not fitted on: 0.5 not at all, 1 always. nan if there are too few samples.
        within: half the width, in points, of the 95 % interval of an accuracy of 50 % on the site's test, where the
            models are right about all samples of a subject or about none; nan without a test.
    """

    name: str
    train: int
    validation: int
    test: int
    classes: tuple[int, ...]
    missing: float
    label_distance: float
    feature_score: float
    within: float


def describe(cell: Settings, data_root: Path) -> dict[str, Any]:
    """Describe how the data of a cell lie over its clients, in values that JSON can hold.

    Returns:
        `data`, `seed`, `partition`, `shape` and `classes`; `features`, the channels of a table by name, and
        `missing`, the share of rows that lack each (both empty for other data); `sites`, a dict for each client
        (`Site`, None for nan); `coarse`, the points beyond which a site's `within` makes it too
        small to test; and `remarks`.

    Raises:
        UserError: the data are missing or cannot be divided so.
    """
    dataset = load_dataset(cell, data_root)
    dataset, partition = apply_shifts(cell, dataset, load_partition(cell, dataset))
    sites = portrait(dataset, partition)
    small = remarks(sites, dataset.classes, by_subject=dataset.subjects is not None)
    texts = [*dataset.notes, *partition_remarks(partition_record(dataset, partition)), *small]
    return {
        "data": task_name(cell),
        "seed": cell.seed,
        "partition": cell.partition,
        "shape": list(dataset.x.shape[1:]),
        "classes": list(dataset.classes) or list(map(str, range(dataset.num_classes))),
        "features": list(dataset.features),
        "missing": _missing(dataset),
        "sites": [{key: _plain(value) for key, value in vars(site).items()} for site in sites],
        "coarse": COARSE,
        "remarks": texts,
    }


def _missing(dataset: Dataset) -> list[float]:
    """The share of rows that lack each of the table's channels; empty for other data."""
    if not dataset.features:
        return []
    shares = np.zeros(len(dataset.features)) if dataset.missing is None else dataset.missing.mean(axis=0)
    return [float(share) for share in shares]


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def portrait(dataset: Dataset, partition: Partition) -> list[Site]:
    """Describe the sites; what is compared are training samples, as the data set has them before normalisation.

    The comparison of features is the classifier two-sample test of Lopez-Paz and Oquab (2017), by logistic
    regression.
    """
    names = partition.names or tuple(map(str, range(len(partition))))
    counts = np.array([np.bincount(dataset.y[at], minlength=dataset.num_classes) for at in partition.train])
    sites = []
    for client, train in enumerate(partition.train):
        others = np.concatenate([np.empty(0, np.int64), *(at for i, at in enumerate(partition.train) if i != client)])
        tested = len(partition.test[client])
        independent = tested if dataset.subjects is None else _effective(dataset.subjects[partition.test[client]])
        gaps = None if dataset.missing is None else dataset.missing[train]
        if gaps is not None:
            gaps = np.delete(gaps, dataset.indicators, axis=1)
        sites.append(
            Site(
                names[client],
                len(train),
                len(partition.validation[client]),
                tested,
                tuple(counts[client].tolist()),
                0.0 if gaps is None or not gaps.size else float(gaps.mean()),
                label_distance(counts[client], counts.sum(axis=0) - counts[client]),
                feature_score(dataset, train, others, client),
                98 / math.sqrt(independent) if tested else math.nan,
            )
        )
    return sites


def _effective(subjects: Indices) -> float:
    """Number of independent samples that tell as much as these, of which those of a subject are alike (Kish 1965)."""
    sizes = np.unique(subjects, return_counts=True)[1]
    return float(sizes.sum() ** 2 / np.square(sizes).sum()) if len(sizes) else 0.0


def label_distance(counts: Indices, others: Indices) -> float:
    """Total variation between two distributions of classes, given as counts `[classes]`; nan if one is empty."""
    if not counts.sum() or not others.sum():
        return math.nan
    return float(np.abs(counts / counts.sum() - others / others.sum()).sum() / 2)


def feature_score(dataset: Dataset, train: Indices, others: Indices, client: int) -> float:
    """The area under the ROC curve with which a linear model tells samples of a site from as many of the others."""
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    size = min(len(train), len(others), _MOST)
    if size < _LEAST or dataset.vocabulary:
        return math.nan
    rng = generator("portrait", client)
    chosen = [np.sort(rng.choice(at, size, replace=False)) for at in (train, others)]
    x: Floats = dataset.filled[np.concatenate(chosen)].reshape(2 * size, -1).astype(np.float64)
    x = x[:, x.std(axis=0) > 0]
    if not x.shape[1]:
        return 0.5
    here = np.repeat([1, 0], size)
    components = min(_COMPONENTS, x.shape[1], 2 * size * (_FOLDS - 1) // _FOLDS - 1)
    model = make_pipeline(
        StandardScaler(), PCA(components, svd_solver="full"), LogisticRegression(max_iter=1000, C=0.1)
    )
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=0)
    chances = cross_val_predict(model, x, here, cv=folds, method="predict_proba")[:, 1]
    return float(roc_auc_score(here, chances))


def remarks(sites: list[Site], classes: tuple[str, ...], *, by_subject: bool) -> list[str]:
    """Name the sites that no test says much about, and those with one class.

    Args:
        sites: from `portrait`.
        classes: names of the classes.
        by_subject: whether the data say which samples are of one subject.
    """
    texts = []
    if coarse := [site for site in sites if site.train and not site.within <= COARSE]:
        need = math.ceil((98 / COARSE) ** 2)
        listed = ", ".join(f"{site.name} ({site.test})" for site in coarse)
        alike = ", those of a subject counted as alike" if by_subject else ""
        texts.append(
            f"too small to test, with fewer than {need} test samples{alike}: {listed}; an accuracy there is "
            f"uncertain by more than {COARSE:g} points"
        )
    for site in sites:
        held = [label for label, count in enumerate(site.classes) if count]
        if len(held) == 1 and len(site.classes) > 1:
            label = classes[held[0]] if classes else held[0]
            texts.append(f"{site.name} trains on one class only, {label}")
    return texts
