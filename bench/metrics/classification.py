"""Scores of classification from logits: scikit-learn's, and two that it lacks or rounds (docs/scores.md).

scikit-learn is imported where it is used, as a cell without such scores needs none.
"""

from collections.abc import Callable

import numpy as np

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
    return mean_loss(labels, logits)


@METRICS.register("balanced_accuracy")
def balanced_accuracy(labels: Indices, logits: Floats) -> float:
    """Mean recall over the classes that the samples have."""
    from sklearn.metrics import recall_score

    present = np.unique(labels)
    return float(recall_score(labels, logits.argmax(1), labels=present, average="macro"))


@METRICS.register("macro_f1")
def macro_f1(labels: Indices, logits: Floats) -> float:
    """Mean F1 over the classes that the samples have or that are predicted; 0 for a class that is never right."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, logits.argmax(1), average="macro", zero_division=0.0))


@METRICS.register("auroc")
def auroc(labels: Indices, logits: Floats) -> float:
    """Area under the ROC curve: of class 1 where there are two classes, else the mean over one class against the rest,
    for the classes that the samples have; nan if they have one class only."""
    from sklearn.metrics import roc_auc_score

    return _one_against_rest(roc_auc_score, labels, logits)


@METRICS.register("average_precision")
def average_precision(labels: Indices, logits: Floats) -> float:
    """Average precision over the classes that `auroc` has; nan if the samples have one class only."""
    from sklearn.metrics import average_precision_score

    return _one_against_rest(average_precision_score, labels, logits)


@METRICS.register("nll")
def nll(labels: Indices, logits: Floats) -> float:
    """Mean negative log-likelihood in nats, the `loss` in float64: no probability is clipped."""
    return mean_loss(labels, logits)


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


def mean_loss(labels: Indices, logits: Floats) -> float:
    """Mean cross-entropy in nats."""
    from scipy.special import log_softmax

    return float(-log_softmax(logits, axis=1)[np.arange(len(labels)), labels].mean())


def _probabilities(logits: Floats) -> Floats:
    from scipy.special import softmax

    return np.asarray(softmax(logits, axis=1), np.float64)


def _one_against_rest(score: Callable[..., float], labels: Indices, logits: Floats) -> float:
    """Mean of a binary score over the classes that the samples have, of class 1 alone where there are two classes."""
    present = np.unique(labels)
    if len(present) < 2:
        return float("nan")
    probabilities = _probabilities(logits)
    classes = [1] if logits.shape[1] == 2 else present.tolist()
    return float(np.mean([score(labels == label, probabilities[:, label]) for label in classes]))
