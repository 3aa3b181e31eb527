"""Models from outside that a decision is held against: scikit-learn's, which need no federation and no network."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.data import Dataset, Floats, Indices, Partition

ALONE, POOLED = "each site by itself", "the rows of all sites in one place, which federation would replace"
"""Where a model was fitted."""
_SMALLEST = 1e-6  # probability: a forest may say 0, of which the logarithm would be infinite


def baselines(
    dataset: Dataset, partition: Partition, site: Indices, sample: Indices
) -> Iterator[tuple[str, str, Floats]]:
    """Fit logistic regression and gradient-boosted trees on the clients' training samples.

    They have scikit-learn's defaults, with more steps for logistic regression to converge; nothing is tuned.

    Args:
        dataset, partition: samples as cells train on them, after normalisation; of a table.
        site, sample: `[rows]`, the client and the position of each held-out sample.

    Yields:
        The name of a model, where it was fitted (`ALONE`, `POOLED`), and the logarithms of its probabilities,
        `[rows, 1, classes]`; that of a class that training lacked is the smallest.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    x = dataset.filled.reshape(len(dataset.y), -1).astype(np.float64)
    models: dict[str, Any] = {
        "logistic regression": lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        "gradient-boosted trees": lambda: HistGradientBoostingClassifier(random_state=0),
    }
    with threadpool_limits(1):  # threads that wait for a busy core take longer than one that works
        for name, make in models.items():
            for fitted, trained in ((ALONE, partition.train), (POOLED, [np.concatenate(partition.train)])):
                chances = np.full((len(site), dataset.num_classes), _SMALLEST)
                for number, at in enumerate(trained):
                    rows = np.flatnonzero(site == number) if fitted == ALONE else np.arange(len(site))
                    if len(rows):
                        chances[rows] = _told(make, x[at], dataset.y[at], x[sample[rows]], dataset.num_classes)
                yield name, fitted, np.log(np.maximum(chances, _SMALLEST))[:, None]


def _told(make: Any, x: Floats, y: Indices, x_test: Floats, classes: int) -> Floats:
    """Probabilities `[tests, classes]`; those of a site with one class, or without a row to train on, are constant."""
    chances = np.zeros((len(x_test), classes))
    if len(np.unique(y)) < 2:
        chances[:, y[0] if len(y) else slice(None)] = 1.0 if len(y) else 1 / classes
        return chances
    model = make().fit(x, y)
    chances[:, model.classes_] = model.predict_proba(x_test)
    return chances
