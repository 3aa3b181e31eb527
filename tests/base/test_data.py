"""What a data set refuses when it is made, so that nothing later rests on it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench.data import Dataset
from bench.errors import UserError

WHOLE = Dataset("mine", np.zeros((4, 2), np.float32), np.array([0, 1, 2, 1]), 3, 3, (0.0, 0.0), (1.0, 1.0), "")


@pytest.mark.parametrize(
    ("y", "says"),
    [
        ([0, 1, 3, 1], "its labels go from 0 to 3, and 3 classes have labels 0 to 2"),
        ([0, -1, 2, 1], "its labels go from -1 to 2"),
        ([0, 1, 2], r"4 samples and labels of shape \(3,\)"),
        ([[0], [1], [2], [1]], r"labels of shape \(4, 1\)"),
        ([0.0, 1.0, 2.0, 1.0], "type float64; each sample needs a label, a whole number"),
        (["0", "1", "2", "1"], "each sample needs a label, a whole number"),
    ],
)
def test_labels_that_index_no_class_are_refused(y: list[Any], says: str) -> None:
    with pytest.raises(UserError, match=f"mine: .*{says}"):
        replace(WHOLE, y=np.array(y))


def test_labels_of_a_class_without_samples_and_of_other_widths_are_fine() -> None:
    assert replace(WHOLE, y=np.array([0, 0, 1, 1], np.uint8)).num_classes == 3
    assert len(WHOLE.subset(np.zeros(0, np.int64), 0).y) == 0
