"""The ledger of traffic: which tensors of a message count, and how often."""

import torch

from bench.federation.traffic import Ledger
from tests.engine.problems import numbered_model


def test_the_ledger_counts_distinct_tensors_once_and_receivers_each() -> None:
    w, ledger = numbered_model(), Ledger()
    for _ in range(3):
        ledger.download({"model": w})
    ledger.download({"model": w.with_weights(w.weights.clone())})
    ledger.upload({"model": w, "loss": 0.5, "more": [torch.zeros(7)]})
    d, b = 4 * w.spec.d, 4 * w.spec.b
    row = ledger.close(1, 2.5, 3.5)
    assert row == {
        "round": 1, "seconds": 2.5, "settled": 3.5, "up": d + 28, "down_distinct": 2 * d, "down_receivers": 4 * d,
        "up_buffers": b, "down_distinct_buffers": b, "down_receivers_buffers": 4 * b,
    }  # fmt: skip
    assert set(ledger.close(2, 3.0, 3.0).values()) == {2, 3.0, 0}


def test_local_buffers_do_not_travel() -> None:
    ledger = Ledger(buffers_travel=False)
    ledger.upload({"model": numbered_model()})
    assert ledger.close(1, 0.0, 0.0)["up_buffers"] == 0
