"""What each method sends per client and round, as the method cards say: from the ledger, in scalars."""

from typing import Any

import pytest

from tests.engine.problems import toy

D, B, C = 21, 12, 3  # model, body, classes of the model `test_linear`
HYPER = (C * 16 + 16) + (16 * 9 + 9)  # classes -> 16 -> head
GATE = (3 * 6 + 6) + 2 * 6  # 3 features -> 6, with a normalisation
GENERATOR = (4 + C) * 5 + 5 + 2 * 5 + (5 * 3 + 3)  # (noise, label) -> 5 with BatchNorm -> 3 features


OF_ITS_OWN = {
    "fd": C * C + C, "fedamp": D, "fedgc": D - B, "fedpac": 9, "flute": 9, "pfedgraph": D, "pfedhn": D, "pfedla": D,
}  # fmt: skip
"""Scalars of a download that are another client's others: its target, its head or its whole model."""


@pytest.mark.parametrize(
    ("method", "hp", "down", "up"),
    [
        ("apple", {}, 2 * D, D + 2),  # the models of both
        ("ccvr", {}, 2 * D, D + 3 + 9 + 27),  # the model, before and within the round; sums by class
        ("fedamp", {}, D, D),
        ("fedgc", {}, D, D + C),
        ("fedpac", {}, D + 9 + C, D + 9 + C + 9 + 1),
        ("fedselect", {}, D, D + D / 8),  # a mask takes a byte for each parameter
        ("flute", {}, D, D + C),
        ("pfedgraph", {}, D, D),
        ("pfedhn", {}, D, D),
        ("pfedla", {}, D, D),
        ("fedavg", {}, D, D),
        ("local", {}, 0, 0),
        ("ditto", {}, D, D),
        ("scd", {}, D, D),
        ("fedprox", {}, D, D),
        ("fedavgm", {}, D, D),
        ("feddyn", {}, D, D),
        ("feddf", {}, D, D),
        ("fedmd", {"subset": 7}, 7 * C, 7 * C),
        ("scaffold", {}, 2 * D, 2 * D),
        ("pfedme", {}, D, D),
        ("fedper", {}, B, B),
        ("fedrep", {}, B, B),
        ("lgfedavg", {}, D - B, D - B),
        ("apfl", {}, D, D),
        ("elastic", {}, D, 2 * D),
        ("superfed", {}, D, D),
        ("perada", {"distil_steps": 1}, D, D),
        ("perada", {"adapter": ["head"], "distil_steps": 1}, D - B, D - B),
        ("perfedavg", {}, D, D),
        ("fedupdate", {}, D, D),
        ("fedbabu", {}, B, B),
        ("finetune", {}, D, D),
        ("fedap", {}, D, D),
        ("fedbn", {}, D, D),  # a model without normalisation
        ("moon", {}, D, D),
        ("fedala", {}, D, D),
        ("fedopt", {}, D, D),
        ("mrmtl", {}, D, D),
        ("cfl", {}, D, D),
        ("fedlc", {}, D, D),
        ("fedntd", {}, D, D),
        ("fml", {}, D, D),
        ("fd", {}, C * C + C, C * C + C),
        ("fedproto", {}, C * 3 + C, C * 3 + C),  # 3 features
        ("ifca", {"k": 3}, 3 * D, D),
        ("ifca", {"k": 3, "shared": ["inner"]}, B + 3 * (D - B), D),
        ("hypcluster", {"c": 3}, 3 * D, D),
        ("fedrod", {}, D, D),
        ("fedrod", {"head_phase": "after"}, D, D),
        ("fedrod", {"head": "hyper"}, D + HYPER, D + HYPER),
        ("fedem", {"components": 2}, 2 * D, 2 * D),
        ("fedas", {}, B, B),
        ("feddbe", {}, D + 3 + 1, D),
        ("gpfl", {}, B + C * 3 + 2 * (12 + 6), B + C * 3 + 2 * (12 + 6)),
        ("fedcp", {}, D + GATE, D + GATE),
        ("fedadmm", {}, D, D),
        ("knnper", {}, D, D),
        ("floco", {"endpoints": 4}, D + 3 * (D - B), D + 3 * (D - B)),
        ("floco_plus", {"endpoints": 4}, D + 3 * (D - B), D + 3 * (D - B)),
        ("fednova", {}, D, D + 1),
        ("fedgh", {}, D - B, C * 3 + C),
        ("fedl2g", {}, C * C, C * C),
        ("fedl2g", {"guide": "features"}, C * 3, C * 3),
        ("fedmrl", {}, D, D),
        ("fedtgp", {}, C * 3 + C, C * 3 + C),
        ("fedphp", {}, D, D),
        ("pflda", {}, D - B, D - B),
        ("fedah", {}, D, D),
        ("pfedfda", {}, B + C * 3 + 9, B + C * 3 + 9),
        ("fedthe", {}, D + 3, D + 3),
        ("fedpcl", {}, C * 3 + C + 2 * (C * 3 + C), C * 3 + C),
        ("fedgen", {"noise": 4, "hidden": 5, "generator_steps": 1}, D + GENERATOR + C, D + C),
    ],
)
def test_scalars_per_client(method: str, hp: dict[str, Any], down: int, up: float) -> None:
    """In the second round (FedGen sends no generator in the first); all tensors have eight bytes a scalar."""
    federation = toy(method, sizes=[9, 5], hp=hp)
    for _ in range(2):
        federation.advance()
    row = federation.ledger[-1]
    assert (row["down_receivers"], row["up"]) == (2 * 8 * down, 2 * 8 * up)
    assert row["down_distinct"] == 8 * (down + OF_ITS_OWN.get(method, 0))


@pytest.mark.parametrize("method", ["fedasync", "fedbuff"])
def test_asynchronous_versions_count_the_rounds_that_began(method: str) -> None:
    """One model down and one up for each client that started; what is still under way has been sent."""
    federation = toy(method, sizes=[9, 5])
    for _ in range(3):
        federation.advance()
        row = federation.ledger[-1]
        started = sum(span.kind == "download" for span in federation.spans)
        assert started > 0
        assert row["up"] == row["down_receivers"] == started * 8 * D


def test_the_synchronous_baseline_of_lga_sends_what_fedavg_sends() -> None:
    for method in ("fedavg_sync", "fedavg_async", "fedasync_mix", "perfedavg_async"):
        federation = toy(method, sizes=[9, 5])
        federation.advance()
        row = federation.ledger[-1]
        assert (row["up"], row["down_receivers"], row["down_distinct"]) == (2 * 8 * D, 2 * 8 * D, 8 * D)
