"""Scores of classification from logits, as scikit-learn defines them (docs/scores.md).

Its own functions take one to two milliseconds for each class of each client, in every evaluation. The same sums for all
classes together take a fraction of that; the tests hold them to scikit-learn's values.
"""

import numpy as np
import numpy.typing as npt

from bench.data import Floats, Indices
from bench.plugin import METRICS

BINS = 15
"""Bins of the expected calibration error, as Guo et al. (2017) have them."""


@METRICS.register("accuracy")
def accuracy(labels: Indices, logits: Floats) -> float:
    """Share of samples with the right label; always in `metrics.csv`, for further tests here."""
    return float((logits.argmax(1) == labels).mean())


@METRICS.register("loss")
def loss(labels: Indices, logits: Floats) -> float:
    """Mean cross-entropy in nats; always in `metrics.csv`, for further tests here."""
    from scipy.special import log_softmax

    return float(-log_softmax(logits, axis=1)[np.arange(len(labels)), labels].mean())


@METRICS.register("balanced_accuracy")
def balanced_accuracy(labels: Indices, logits: Floats) -> float:
    """Mean recall over the classes that the samples have."""
    right, present, _ = _counts(labels, logits)
    return float((right[present > 0] / present[present > 0]).mean())


@METRICS.register("macro_f1")
def macro_f1(labels: Indices, logits: Floats) -> float:
    """Mean F1 over the classes that the samples have or that are predicted; 0 for a class that is never right."""
    right, present, predicted = _counts(labels, logits)
    occurring = present + predicted > 0
    return float((2 * right[occurring] / (present + predicted)[occurring]).mean())


@METRICS.register("auroc")
def auroc(labels: Indices, logits: Floats) -> float:
    """Area under the ROC curve: of class 1 where there are two classes, else the mean over one class against the rest,
    for the classes that the samples have; nan if they have one class only."""
    from scipy.stats import rankdata

    classes = _scored_classes(labels, logits)
    if not classes:
        return float("nan")
    member = labels[:, None] == classes
    positive = member.sum(0)
    ranks = np.asarray(rankdata(log_odds(logits)[:, classes], axis=0))
    above = (ranks * member).sum(0) - positive * (positive + 1) / 2  # pairs in order, ties counting half (Mann-Whitney)
    return float((above / (positive * (len(labels) - positive))).mean())


@METRICS.register("average_precision")
def average_precision(labels: Indices, logits: Floats) -> float:
    """Average precision over the classes that `auroc` has; nan if the samples have one class only."""
    if not len(classes := _scored_classes(labels, logits)):
        return float("nan")
    odds = log_odds(logits)
    return float(np.mean([_precision(labels == label, odds[:, label]) for label in classes]))


@METRICS.register("nll")
def nll(labels: Indices, logits: Floats) -> float:
    """Mean negative log-likelihood in nats, the `loss` in float64: no probability is clipped."""
    return float(loss(labels, logits))


@METRICS.register("brier")
def brier(labels: Indices, logits: Floats) -> float:
    """Brier score: mean squared distance of the probabilities from the label's vector, 0 to 2; half of it (of class 1
    alone) where there are two classes, as scikit-learn has it."""
    probabilities = _probabilities(logits)
    squared = (probabilities - np.eye(logits.shape[1])[labels]) ** 2
    return float(squared.sum(1).mean()) / (2 if logits.shape[1] == 2 else 1)


@METRICS.register("ece")
def ece(labels: Indices, logits: Floats) -> float:
    """Expected calibration error of the predicted class, with `BINS` bins of equal width: the mean distance of
    confidence from accuracy in a bin, weighted by the bins' samples (Guo et al. 2017, eq. 3)."""
    probabilities = _probabilities(logits)
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    bins = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)  # bin m holds (m / M, (m + 1) / M]
    surplus = np.bincount(bins, weights=right - confidence, minlength=BINS)
    return float(np.abs(surplus).sum() / len(labels))


def _probabilities(logits: Floats) -> Floats:
    from scipy.special import softmax

    return np.asarray(softmax(logits, axis=1), np.float64)


def log_odds(logits: Floats) -> Floats:
    """The logarithm of p / (1 - p) for each class `[samples, classes]`: it has the order of p, of which all above
    1 - 1e-16 are the same number."""
    from scipy.special import logsumexp

    below = logits.astype(np.float64) - logits.max(1, keepdims=True)
    # Sorted, so that two samples with the same logits in other places are tied to the last digit.
    others = np.asarray(logsumexp(np.sort(below, axis=1)[:, :-1], axis=1, keepdims=True))  # of all but the largest
    log_p = below - np.logaddexp(0.0, others)
    odds: Floats = log_p - np.log1p(-np.minimum(np.exp(log_p), 0.5))  # only the largest has more, and its odds follow
    np.put_along_axis(odds, logits.argmax(1)[:, None], -others, axis=1)
    return odds


def _counts(labels: Indices, logits: Floats) -> tuple[Indices, Indices, Indices]:
    """Count by class the samples that are right, that have the class, and that are predicted to have it."""
    predicted, classes = logits.argmax(1), logits.shape[1]
    right = np.bincount(labels[predicted == labels], minlength=classes)
    return right, np.bincount(labels, minlength=classes), np.bincount(predicted, minlength=classes)


def _scored_classes(labels: Indices, logits: Floats) -> list[int]:
    """The classes that are scored one against the rest: those that the samples have, class 1 alone of two classes, and
    none where the samples have one class only."""
    present = np.unique(labels).tolist()
    if len(present) < 2:
        return []
    return [1] if logits.shape[1] == 2 else present


def _precision(member: npt.NDArray[np.bool_], score: Floats) -> float:
    """Average precision of a binary score: precision at each distinct value, weighted by what recall gains there."""
    order = np.argsort(-score, kind="stable")
    hits = np.cumsum(member[order])
    ordered = score[order]
    ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))  # the last of equal values, infinite ones too
    gains = np.diff(hits[ends], prepend=0) / hits[-1]
    return float((gains * hits[ends] / (ends + 1)).sum())
