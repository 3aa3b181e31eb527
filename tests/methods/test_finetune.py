"""FedAvg with fine-tuning, and FedUpdate, which is the same: for how long, at which rate, and of which layers."""

from itertools import islice
from typing import Any

import pytest
import torch

from tests.engine.problems import generic, personal, remarks, run, toy
from tests.methods.reference import PLAIN, descend, gradient, local_batches, near

SIZES = [9, 5]


@pytest.mark.parametrize(
    ("method", "hp", "epochs", "steps"),
    [
        ("finetune", {"fine_tune_epochs": 2}, 2, None),
        ("fedupdate", {}, 1, None),
        ("fedupdate", {"fine_tune_epochs": 3, "fine_tune_steps": 1}, 3, 1),
    ],
)
def test_personalized_models_are_fine_tuned_generic_ones(
    method: str, hp: dict[str, Any], epochs: int, steps: int | None
) -> None:
    """At a rate of their own; the generic model is FedAvg's, bit for bit."""
    federation = toy(method, sizes=SIZES, hp={"fine_tune_lr": 0.3, **hp}, **PLAIN)
    fedavg = toy("fedavg", sizes=SIZES, **PLAIN)
    run(federation, 2)
    run(fedavg, 2)
    for i, tuned in personal(federation).items():
        steps_taken = islice(local_batches(SIZES, 2, i, epochs), steps)
        near(tuned, descend(generic(fedavg).numpy(), steps_taken, lr=0.3))
    assert torch.equal(generic(federation), generic(fedavg))


def test_the_head_alone() -> None:
    """The body is the generic model's."""
    federation = toy("finetune", sizes=SIZES, hp={"layers": ["head"], "fine_tune_epochs": 1}, **PLAIN)
    run(federation, 2)
    w = generic(federation).numpy()
    for i, tuned in personal(federation).items():
        expected = w.copy()
        for x, target in local_batches(SIZES, 2, i):
            expected[12:] -= 0.1 * gradient(expected, x, target)[12:]
        near(tuned, expected)


def test_of_no_layers_it_is_fedavg_and_says_so() -> None:
    federation = toy("finetune", hp={"layers": []}, model="test_norm")
    run(federation, 2)
    assert all(torch.equal(w, generic(federation)) for w in personal(federation).values())
    assert remarks(federation)
