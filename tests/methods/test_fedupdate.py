"""FedUpdate against its formulas, and where it is FedAvg."""

from itertools import islice
from typing import Any

import pytest
import torch

from methods.fedupdate import Hyper
from tests.engine.problems import generic, personal, run, toy
from tests.methods.reference import PLAIN, descend, local_batches, near

SIZES = [9, 5]


@pytest.mark.parametrize(("hyper", "steps"), [({}, None), ({"fine_tune_epochs": 3, "fine_tune_steps": 1}, 1)])
def test_personalized_models_are_fine_tuned_generic_ones(hyper: dict[str, Any], steps: int | None) -> None:
    """For an epoch, or for so many steps, at a rate of their own; the generic model stays what it was."""
    federation = toy("fedupdate", sizes=SIZES, hp={"fine_tune_lr": 0.3, **hyper}, **PLAIN)
    run(federation, 2)
    w = generic(federation)
    for i, found in personal(federation).items():
        near(found, descend(w.numpy(), islice(local_batches(SIZES, 2, i), steps), lr=0.3))
    assert torch.equal(generic(federation), w)


def test_new_clients_fine_tune_as_long_as_they_are_told() -> None:
    """None of it is the generic model; more epochs are another model."""
    federation = toy("fedupdate", new_clients=2, new_client_epochs=(0, 1, 2), rounds=2)
    scores = run(federation, 2)
    losses = [
        next(row["value"] for row in scores.metrics if row["metric"] == f"new{k}" and row["quantity"] == "loss")
        for k in (0, 1, 2)
    ]
    assert len(set(losses)) == 3


def test_no_fine_tuning_is_announced() -> None:
    """By steps or by epochs."""
    assert Hyper().degenerate() == Hyper(fine_tune_epochs=0, fine_tune_steps=2).degenerate() == []
    for none in (Hyper(fine_tune_epochs=0), Hyper(fine_tune_steps=0)):
        assert "FedAvg" in none.degenerate()[0]
