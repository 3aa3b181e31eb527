"""States as plain values and tensors, and back."""

import pytest
import torch

from bench.federation.snapshot import Packer, unpack
from tests.engine.problems import numbered_model


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
