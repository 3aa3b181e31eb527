"""FedAvg with fine-tuning: whose models they are, and of which layers."""

from typing import Any

import pytest
import torch

from methods.finetune import Hyper
from tests.engine.problems import generic, personal, remarks, run, toy
from tests.methods.reference import PLAIN, descend, gradient, local_batches, near

SIZES = [9, 5]


def test_personalized_models_are_fine_tuned_generic_ones() -> None:
    """Two epochs at a rate of their own; the generic model is FedAvg's, bit for bit."""
    federation = toy("finetune", sizes=SIZES, hp={"fine_tune_epochs": 2, "fine_tune_lr": 0.3}, **PLAIN)
    fedavg = toy("fedavg", sizes=SIZES, **PLAIN)
    run(federation, 2)
    run(fedavg, 2)
    assert torch.equal(generic(federation), generic(fedavg))
    for i, found in personal(federation).items():
        near(found, descend(generic(fedavg).numpy(), local_batches(SIZES, 2, i, epochs=2), lr=0.3))


def test_the_head_alone() -> None:
    """The body is the generic model's."""
    federation = toy("finetune", sizes=SIZES, hp={"layers": ["head"], "fine_tune_epochs": 1}, **PLAIN)
    run(federation, 2)
    w = generic(federation).numpy()
    for i, found in personal(federation).items():
        expected = w.copy()
        for x, target in local_batches(SIZES, 2, i):
            expected[12:] -= 0.1 * gradient(expected, x, target)[12:]
        near(found, expected)


@pytest.mark.parametrize("hp", [{"fine_tune_epochs": 0}, {"layers": []}, {"fine_tune_epochs": 1}])
def test_without_fine_tuning_it_is_fedavg(hp: dict[str, Any]) -> None:
    """And says so; one epoch of all layers is FedUpdate."""
    federation, update = toy("finetune", hp=hp, model="test_norm"), toy("fedupdate", model="test_norm")
    run(federation, 2)
    run(update, 2)
    nothing = bool(remarks(federation))
    assert nothing == ("layers" in hp or hp["fine_tune_epochs"] == 0)
    for i, w in personal(federation).items():
        assert torch.equal(w, generic(federation)) == nothing
        assert torch.equal(w, personal(update)[i]) == (not nothing)
    assert Hyper().degenerate() == []
