"""Scores of classification against scikit-learn's, by hand, and on problems whose answer is known."""

from importlib.metadata import version

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax

from bench.metrics.classification import BINS
from bench.plugin import METRICS
from tests.later import Later

metrics = Later("sklearn.metrics")

EXACT = 1e-12
NAMES = ("accuracy", "loss", "balanced_accuracy", "macro_f1", "auroc", "average_precision", "nll", "brier", "ece")


def score(name: str, labels: np.ndarray, logits: np.ndarray) -> float:
    return float(METRICS.get(name)(labels, logits))


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Labels, which may have gaps, and logits, which may be tied, as of a network in float32."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    classes, samples = draw(st.sampled_from([2, 3, 10])), draw(st.integers(2, 60))
    present = rng.permutation(classes)[: draw(st.integers(1, classes))]
    logits = rng.normal(size=(samples, classes)) * draw(st.sampled_from([0.1, 1.0, 8.0]))
    rounded = np.round(logits, draw(st.sampled_from([0, 7]))).astype(np.float32).astype(np.float64)
    return rng.choice(present, samples), rounded


def log_odds(logits: np.ndarray, label: int) -> np.ndarray:
    """The log-odds of a class in more digits than ours, rounded to what is no rounding of theirs."""
    rest = np.sort(np.delete(logits, label, 1).astype(np.longdouble), axis=1)
    odds = logits[:, label] - rest[:, -1] - np.log(np.exp(rest - rest[:, -1:]).sum(1))
    return np.round(odds.astype(np.float64), 10)


def sklearns(labels: np.ndarray, logits: np.ndarray) -> dict[str, float]:
    """The scores as scikit-learn has them; one class against the rest where its own mean needs all classes."""
    p, predicted, classes = softmax(logits, axis=1), logits.argmax(1), range(logits.shape[1])
    present = np.unique(labels)
    values = {
        "accuracy": float((predicted == labels).mean()),
        "macro_f1": metrics.f1_score(labels, predicted, average="macro", zero_division=0.0),
    }
    if set(predicted) <= set(present) and len(present) > 1:  # else it warns
        values["balanced_accuracy"] = metrics.balanced_accuracy_score(labels, predicted)
    if p[np.arange(len(labels)), labels].min() > np.finfo(float).eps:  # smaller ones it clips
        values["nll"] = values["loss"] = metrics.log_loss(labels, p, labels=list(classes))
    if len(present) > 1:
        of = [1] if len(classes) == 2 else present
        odds = {c: log_odds(logits, c) for c in of}
        values["auroc"] = np.mean([metrics.roc_auc_score(labels == c, odds[c]) for c in of])
        values["average_precision"] = np.mean([metrics.average_precision_score(labels == c, odds[c]) for c in of])
    if len(classes) == 2:
        values["brier"] = metrics.brier_score_loss(labels, p[:, 1], pos_label=1)
    elif tuple(map(int, version("scikit-learn").split(".")[:2])) >= (1, 7):  # earlier ones have two classes only
        values["brier"] = metrics.brier_score_loss(labels, p, labels=list(classes), scale_by_half=False)
    return values


@given(problems())
def test_scores_are_scikit_learns(problem: tuple[np.ndarray, np.ndarray]) -> None:
    for name, expected in sklearns(*problem).items():
        assert score(name, *problem) == pytest.approx(expected, rel=EXACT, abs=EXACT), name


@pytest.mark.parametrize("classes", [2, 3])
def test_samples_of_which_a_model_is_certain_are_ranked(classes: int) -> None:
    """Probabilities are 1 above margins of 37, and 0 below -745; scikit-learn ranks by the margins themselves."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 500)
    for center, spread in ((70, 20), (-2000, 300)):
        margins = center + spread * (labels + rng.normal(size=500))
        logits = np.concatenate([np.zeros((500, 1)), margins[:, None], np.full((500, classes - 2), -1e4)], axis=1)
        expected = metrics.roc_auc_score(labels, margins)
        assert score("auroc", labels, logits) == pytest.approx(expected, rel=EXACT)
        if classes == 2:
            expected = metrics.average_precision_score(labels, margins)
            assert score("average_precision", labels, logits) == pytest.approx(expected, rel=EXACT)


def test_one_class_has_no_area_and_no_precision_but_all_else() -> None:
    labels, logits = np.full(5, 2), np.random.default_rng(0).normal(size=(5, 4))
    values = {name: score(name, labels, logits) for name in NAMES}
    assert {name for name, value in values.items() if np.isnan(value)} == {"auroc", "average_precision"}


def test_certain_and_wrong_is_not_clipped() -> None:
    """scikit-learn clips a probability at 2e-16, which is a loss of 36: a network's may be larger."""
    logits = np.array([[900.0, 0.0], [0.0, 900.0]])
    assert score("nll", np.array([1, 1]), logits) == 450.0


def test_calibration_error_by_hand() -> None:
    """Confidences 0.6 three times, of which two are right, and 0.9, wrong: 3/4 |2/3 - 0.6| + 1/4 |0 - 0.9|."""
    p = np.array([[0.6, 0.4], [0.6, 0.4], [0.4, 0.6], [0.1, 0.9]])
    labels = np.array([0, 0, 0, 0])
    assert score("ece", labels, np.log(p)) == pytest.approx(0.75 * abs(2 / 3 - 0.6) + 0.25 * 0.9, rel=EXACT)
    assert score("ece", np.array([0, 1]), np.zeros((2, 2))) == 0.0  # half certain, half right
    assert score("ece", np.array([0]), np.array([[800.0, 0.0]])) == 0.0  # certain and right: the last bin
    edge = np.array([[0.0, 0.0, 0.0], [0.01, 0.0, 0.0]])  # 1/3 is the end of a bin, and right; the next is wrong
    above = softmax(edge, axis=1)[1, 0]
    assert score("ece", np.array([0, 1]), edge) == pytest.approx((1 - 1 / 3) / 2 + above / 2, rel=EXACT)


@pytest.mark.parametrize("classes", [2, 10])
def test_a_calibrated_model_has_no_calibration_error_beyond_noise(classes: int) -> None:
    """Labels drawn by the model's own probabilities; the noise of a bin is that of its binomial count."""
    rng = np.random.default_rng(0)
    samples = 50_000
    logits = 2 * rng.normal(size=(samples, classes))
    labels = (softmax(logits, axis=1).cumsum(1) > rng.random((samples, 1))).argmax(1)
    noise = np.sqrt(BINS * 0.25 / samples)  # of the sum over bins, at most: Cauchy and Schwarz
    assert score("ece", labels, logits) < 2 * noise
    assert score("ece", labels, 3 * logits) > 10 * noise
    for better in ("nll", "brier"):  # proper scores: no other temperature is better
        assert score(better, labels, logits) < min(score(better, labels, k * logits) for k in (0.8, 1.25))


def test_logits_without_end_are_tied() -> None:
    """As of a model that masks classes; the order of the samples does not matter."""
    labels = np.array([0, 1, 2, 0, 1, 2])
    logits = np.array([[1.0, 0.5, -np.inf]] * 6)
    for order in ([0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0]):
        assert score("average_precision", labels[order], logits) == pytest.approx(1 / 3, rel=EXACT)
    assert np.isnan(score("average_precision", np.zeros(3, int), np.zeros((3, 1))))
