"""Scores beside accuracy and loss (docs/scores.md), of the logits of some samples, and their means over clients."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.data import Floats, Indices
from bench.errors import in_words, refusing_exits
from bench.plugin import METRICS, file_of, is_external


class FurtherScores:
    """Computes the registered scores of some names.

    A score of the user's own that raises an exception is missing (nan) there: hours of training are worth more.

    Args:
        names: names of the scores.

    Attributes:
        problems: texts about scores that failed, each about the first time, by score.

    Raises:
        UserError: a name is unknown.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._functions = {name: METRICS.get(name) for name in names}
        self.problems: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._functions)

    def values(self, labels: Indices, logits: Floats, samples: str) -> dict[str, float]:
        """Compute all scores; all are missing (nan) where a logit is not finite.

        Args:
            labels: `[n]`, of at least one sample.
            logits: `[n, classes]`.
            samples: what the samples are, for messages.
        """
        if not np.isfinite(logits).all():
            return dict.fromkeys(self._functions, math.nan)
        return {
            name: self._value(name, function, labels, logits, samples) for name, function in self._functions.items()
        }

    def _value(self, name: str, function: Any, labels: Indices, logits: Floats, samples: str) -> float:
        if not is_external(function):
            return float(function(labels, logits))
        try:
            with refusing_exits():  # copies, so that it can change none for another score
                return float(function(labels.copy(), logits.copy()))
        except Exception as error:
            reason = in_words(error, file_of(function))
            self.problems.setdefault(name, f"{failure(name)} on {samples}, where it is missing now: {reason}")
            return math.nan


def failure(name: str) -> str:
    """The beginning of the text that a score failed."""
    return f"the metric {name!r} failed"


def mean_of_present(values: Floats, shares: Floats) -> float:
    """Mean over the clients that have a value, `[clients]` each, by their shares; nan where none has."""
    present = ~np.isnan(values) & (shares > 0)
    return float(shares[present] @ values[present] / shares[present].sum()) if present.any() else math.nan
