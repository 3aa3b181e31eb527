"""What each method sends per client and round, as the method cards say: from the ledger, in scalars."""

from typing import Any

import pytest

from tests.engine.problems import toy

D, B, C = 21, 12, 3  # model, body, classes of the model `test_linear`
HYPER = (C * 16 + 16) + (16 * 9 + 9)  # classes -> 16 -> head
GATE = (3 * 6 + 6) + 2 * 6  # 3 features -> 6, with a normalisation
EMBEDDER = B + (6 * 5 + 5) + (5 * 2 + 2)  # (3 features, 3 classes) -> 5 -> 2
GENERATOR = (4 + C) * 5 + 5 + 2 * 5 + (5 * 3 + 3)  # (noise, label) -> 5 with BatchNorm -> 3 features

MODEL = (
    "apfl", "cfl", "ditto", "fedadmm", "fedah", "fedala", "fedamp", "fedap", "fedavg", "fedavgm", "fedbn",
    "feddf", "feddyn", "fedlc", "fedmrl", "fedntd", "fedopt", "fedphp", "fedprox", "fedrod", "fedupdate",
    "finetune", "fml", "knnper", "metafed", "moon", "mrmtl", "perfedavg", "pfedgraph", "pfedhn", "pfedla",
    "pfedme", "scd", "superfed",
)  # fmt: skip
"""They send the model down and up; FedBN has no normalisation to keep here."""
OF_ITS_OWN = {
    "fd": C * C + C, "fedamp": D, "fedgc": D - B, "fedpac": 9, "flute": 9, "ktpfl": 60 * C, "metafed": D,
    "pefll": D + 2, "pfedgraph": D, "pfedhn": D, "pfedla": D, "pfedsim": B, "pgfed": D, "pgfedmo": D, "pgfed_ce": D,
}  # fmt: skip
"""Scalars of a download that are another client's others: its target, its head or its whole model."""
PGFED = (3 * D + 2, 2 * D + 1 + 2)  # of two clients, all of whom have sent a gradient and a constant


@pytest.mark.parametrize(
    ("method", "hp", "down", "up"),
    [
        *((name, {}, D, D) for name in MODEL),
        *((name, {}, B, B) for name in ("fedas", "fedbabu", "fedper", "fedrep")),
        *((name, {}, D - B, D - B) for name in ("lgfedavg", "pflda")),
        ("apple", {}, 2 * D, D + 2),  # the models of both
        ("ccvr", {}, 2 * D, D + 3 + 9 + 27),  # the model, before and within the round; sums by class
        ("elastic", {}, D, 2 * D),
        ("fd", {}, C * C + C, C * C + C),
        ("fedcp", {}, D + GATE, D + GATE),
        ("feddbe", {}, D + 3 + 1, D),
        ("fedem", {"components": 2}, 2 * D, 2 * D),
        ("fedgc", {}, D, D + C),
        ("fedgen", {"noise": 4, "hidden": 5, "generator_steps": 1}, D + GENERATOR + C, D + C),
        ("fedgh", {}, D - B, C * 3 + C),
        ("fedl2g", {"guide": "features"}, C * 3, C * 3),
        ("fedl2g", {}, C * C, C * C),
        ("fedmd", {"subset": 7}, 7 * C, 7 * C),
        ("fednova", {}, D, D + 1),
        ("fedpac", {}, D + 9 + C, D + 9 + C + 9 + 1),
        ("fedpcl", {}, C * 3 + C + 2 * (C * 3 + C), C * 3 + C),
        ("fedproto", {}, C * 3 + C, C * 3 + C),  # 3 features
        ("fedrod", {"head": "hyper"}, D + HYPER, D + HYPER),
        ("fedrod", {"head_phase": "after"}, D, D),
        ("fedselect", {}, D, D + D / 8),  # a mask takes a byte for each parameter
        ("fedtgp", {}, C * 3 + C, C * 3 + C),
        ("fedthe", {}, D + 3, D + 3),
        ("floco", {"endpoints": 4}, D + 3 * (D - B), D + 3 * (D - B)),
        ("floco_plus", {"endpoints": 4}, D + 3 * (D - B), D + 3 * (D - B)),
        ("flute", {}, D, D + C),
        ("gpfl", {}, B + C * 3 + 2 * (12 + 6), B + C * 3 + 2 * (12 + 6)),
        ("hypcluster", {"c": 3}, 3 * D, D),
        ("ifca", {"k": 3, "shared": ["inner"]}, B + 3 * (D - B), D),
        ("ifca", {"k": 3}, 3 * D, D),
        ("ktpfl", {}, 60 * C, 60 * C),  # public samples
        ("local", {}, 0, 0),
        ("pefll", {"embedding": 2, "hidden": 4, "layers": 1, "embed_hidden": 5}, EMBEDDER + D + 2, EMBEDDER + D + 2),
        ("perada", {"adapter": ["head"], "distil_steps": 1}, D - B, D - B),
        ("perada", {"distil_steps": 1}, D, D),
        ("pfedfda", {}, B + C * 3 + 9, B + C * 3 + 9),
        ("pfedsim", {"warmup": 0}, B, D),
        ("pgfed", {}, *PGFED),
        ("pgfed_ce", {}, 2 * D, 2 * D + 1),
        ("pgfedmo", {}, *PGFED),
        ("scaffold", {}, 2 * D, 2 * D),
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


@pytest.mark.parametrize("method", ["lga", "plga", "fedavg_async", "fedavg_sync", "fedasync_mix", "perfedavg_async"])
def test_one_generic_model_goes_to_all_who_start_on_the_round_clock(method: str) -> None:
    """And one model comes back from each: the server leaps and mixes. Two clients are on their way in round 2."""
    federation = toy(method, sizes=[9, 5, 4], stragglers={0: 2, 2: 1})
    for starting in (3, 1):
        federation.advance()
        row = federation.ledger[-1]
        assert (row["up"], row["down_receivers"], row["down_distinct"]) == (starting * 8 * D, starting * 8 * D, 8 * D)
