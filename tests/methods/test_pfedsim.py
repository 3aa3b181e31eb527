"""How similar pFedSim takes heads to be; its rounds are in `test_outside.py`."""

import torch

from methods.pfedsim import similarities

SIZES = [9, 5, 7]


def test_equal_and_opposite_heads() -> None:
    """An equal head has a large weight and not all of it, an opposite one none; all rows sum to 1."""
    shares = similarities(torch.tensor([[1.0, 2.0], [2.0, 4.0], [-1.0, -2.0]], dtype=torch.float64))
    torch.testing.assert_close(shares.sum(1), torch.ones(3, dtype=torch.float64))
    assert 0.9 < shares[0, 1] < 1
    assert shares[0, 2] == 0
    assert shares[2, 2] == 1
