"""What the dry run says of memory, against what tensors take."""

import pytest
import torch

from bench.estimate import _held
from bench.footprint import Footprint


def test_a_footprint_is_what_is_there_at_one_time() -> None:
    with Footprint() as footprint:
        x = torch.zeros(1000)
        y = x + 1
        view = y[:10]
        assert footprint.live == 8000
        del y
        assert footprint.live == 8000  # the view keeps it
        del view
        z = torch.cat([x, x])
    assert (footprint.live, footprint.peak) == (12_000, 12_000)
    del x, z
    assert (footprint.live, footprint.peak) == (0, 12_000)


@pytest.mark.parametrize(
    ("method", "between", "peak"),
    [
        ("local", 1, 2),  # the old model and the new one
        ("fedavg", 1, 2),  # one that is evaluated as the local model, one that is sent
        ("ditto", 2, 4),  # two models, both old and new
    ],
)
def test_models_that_a_client_holds(method: str, between: float, peak: float) -> None:
    each = _held(method, "{}")[1]
    assert each == pytest.approx((between, peak), abs=0.1)  # and its samples
