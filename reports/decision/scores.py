"""The score by which a decision is made, as values of single held-out rows whose mean at a site is the site's score.

Intervals need values of rows. Accuracy and log loss are means of them. Balanced accuracy is the mean over a site's
classes of such means, so that classes are strata. An area under the ROC curve is one of placement values: the share of
the rows of other classes that a row is ranked above (DeLong, DeLong and Clarke-Pearson 1988, "Comparing the areas under
two or more correlated receiver operating characteristic curves").
"""

from dataclasses import dataclass

import numpy as np

from bench.data import Floats, Indices
from bench.metrics.classification import log_odds

SCORES = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy, the mean of the shares of each class that are told right",
    "auroc": "the area under the ROC curve (AUROC)",
    "log_loss": "log loss, in hundredths of a nat, turned round so that more is better",
}
"""Names of scores, and what they are."""
RECORDED_AS = {"log_loss": "nll"}
"""Names of scores in a cell's tables, where they differ."""
BY_CLASS = ("balanced_accuracy", "auroc")
"""Scores that rows of a single class do not define."""
RARE = 0.8
"""Share of the largest class above which accuracy says little: the area under the ROC curve is the default then."""


@dataclass(frozen=True)
class HeldOut:
    """Held-out rows of all sites.

    Attributes:
        labels, site: `[rows]`, the class and the number of the site of each.
        stratum: `[rows]`, the number of the site, or of the site and class, for scores that count classes alike.
        share: `[rows]`, of each row in its site's score, with the sum 1 at each site; 0 where the site has no score.
        subject: `[rows]`, the number of each row's subject; None where the data name none.
    """

    labels: Indices
    site: Indices
    stratum: Indices
    share: Floats
    subject: Indices | None = None

    @property
    def scored(self) -> Indices:
        """Numbers of the sites that have a score."""
        return np.unique(self.site[self.share > 0])


def held_out(score: str, labels: Indices, site: Indices, subject: Indices | None = None) -> HeldOut:
    """Strata and shares of the rows for a score."""
    share = np.zeros(len(labels))
    stratum = site * (labels.max(initial=0) + 1) + labels if score in BY_CLASS else site
    for number in np.unique(site):
        here = np.flatnonzero(site == number)
        classes, of, counts = np.unique(stratum[here], return_inverse=True, return_counts=True)
        if score not in BY_CLASS or len(classes) > 1:
            share[here] = 1 / len(classes) / counts[of]
    return HeldOut(labels, site, stratum, share, subject)


def row_values(score: str, rows: HeldOut, logits: Floats) -> Floats:
    """Values of rows in points, `[rows, seeds]`; with `rows.share` as weights their sum at a site is its score.

    Args:
        score: one of `SCORES`.
        rows: the held-out rows.
        logits: `[rows, seeds, classes]`.
    """
    from scipy.special import log_softmax

    at = np.arange(len(rows.labels))
    if score == "log_loss":
        likelihood: Floats = 100 * log_softmax(logits, axis=2)[at, :, rows.labels]
        return likelihood
    if score != "auroc":
        return np.where(logits.argmax(2) == rows.labels[:, None], 100.0, 0.0)
    values = np.zeros(logits.shape[:2])
    for number in rows.scored:
        here = rows.site == number
        values[here] = 100 * _placements(rows.labels[here], logits[here])
    return values


def _placements(labels: Indices, logits: Floats) -> Floats:
    """Placement values of a site's rows, `[rows, seeds]`, whose mean over classes of means is the area.

    Each class is told from the rest, as in `auroc` of `bench/metrics`. A row counts as one of its class, and as one of
    the rest for the other classes; the area itself is taken off, which both parts have as their mean.
    """
    from scipy.stats import rankdata

    rows, seeds, classes = logits.shape
    odds = log_odds(logits.reshape(rows * seeds, classes)).reshape(rows, seeds, classes)
    if classes == 2:
        odds[:, :, 0] = -odds[:, :, 1]  # equal but for rounding, which would break ties
    present, of, counts = np.unique(labels, return_inverse=True, return_counts=True)
    values, area = np.zeros((rows, seeds)), np.zeros(seeds)
    for place, label in enumerate(present):
        member, many = labels == label, int(counts[place])
        ranks = np.asarray(rankdata(odds[:, :, label], axis=0))
        within = np.empty_like(ranks)
        within[member], within[~member] = (rankdata(odds[part, :, label], axis=0) for part in (member, ~member))
        placed = np.where(member[:, None], ranks - within, many - (ranks - within))
        values += placed * np.where(member, 1 / (rows - many), (counts[of] / (rows - many)) / many)[:, None]
        area += placed[member].mean(axis=0) / (rows - many) / len(present)
    return values - area
