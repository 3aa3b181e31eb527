"""What a round takes of each method, counted by hand: batches trained on and samples read, of clients and server."""

from typing import Any

import pytest

from tests.engine.problems import run, toy

SIZES = [9, 5]  # with batches of 4: 3 and 2 batches an epoch


@pytest.mark.parametrize(
    ("method", "hp", "steps", "samples"),
    [
        ("fedavg", {}, 5, 14),
        ("local", {}, 5, 14),
        ("ditto", {"personal_epochs": 1}, 10, 28),
        ("ditto", {"personal_epochs": 3}, 20, 56),
        ("fedrep", {"head_epochs": 2}, 15, 42),
        ("pfedme", {"K": 4}, 5, 56),
        ("scd", {"personal_epochs": 1}, 10, 28),
        ("fedbabu", {}, 5, 14),  # fine-tuning belongs to evaluation
    ],
)
def test_a_round_of_all_clients(method: str, hp: dict[str, Any], steps: int, samples: int) -> None:
    federation = toy(method, sizes=SIZES, hp=hp, batch_size=4, epochs=1)
    for _ in range(2):
        run(federation, 1)
        federation.evaluate()
    assert federation.work == {"steps": steps, "samples": samples, "server_steps": 0, "server_samples": 0}
