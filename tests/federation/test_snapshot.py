"""States as plain values and tensors, and back."""

import pytest
import torch

from bench.federation.snapshot import Packer, unpack
from tests.engine.problems import numbered_model, run, toy


def test_snapshots_come_back_and_share_what_was_shared() -> None:
    w = numbered_model()
    state = {"a": w, "b": [w, w.part("head"), 3], "c": {4: torch.ones(2), "d": None}, "e": (1.5, "x", True)}
    packer = Packer()
    plain = packer.pack(state)
    back = unpack(plain, packer.tensors, {w.spec.arch: w.spec})
    assert torch.equal(back["a"].weights, w.weights)
    assert back["b"][1].spec == w.part("head").spec
    assert torch.equal(back["b"][1].weights, w.part("head").weights)
    assert back["c"][4].tolist() == [1, 1]
    assert back["e"] == [1.5, "x", True]
    assert back["a"].weights.data_ptr() == back["b"][0].weights.data_ptr()
    with pytest.raises(TypeError, match="not set"):
        Packer().pack({"a": {1, 2}})


def test_a_restored_server_knows_its_round_and_who_was_selected() -> None:
    """What clients would download after the last round may follow from both: FedCross deals models to the selected."""
    straight, restored = (toy("fedcross", participation=0.6) for _ in range(2))
    run(straight, 3)
    restored.restore(*straight.state())
    assert (restored.server.round, restored.server.selected) == (2, straight.server.selected)
    ids = straight.server.selected
    dealt = [[federation.clients.down(i)["model"].weights for i in ids] for federation in (straight, restored)]
    assert all(torch.equal(mine, other) for mine, other in zip(*dealt, strict=True))
    assert any(not torch.equal(mine, dealt[0][0]) for mine in dealt[0])
