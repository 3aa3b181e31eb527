"""Which samples the batches of a client have, and random values that are drawn with them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.engine.batches import DrawAddress, draw_batches, draw_values, steps_per_epoch
from bench.requests import Categorical, Feed, Normal

AT = DrawAddress(seed=1, round=2, owner=3)


@given(n=st.integers(1, 23), width=st.integers(1, 7), epochs=st.integers(1, 3))
def test_an_epoch_sees_every_sample_once(n: int, width: int, epochs: int) -> None:
    per_epoch = steps_per_epoch(n, width, batch_statistics=False)
    found = draw_batches(Feed(), n, width, epochs * per_epoch, AT)
    for e in range(epochs):
        rows = range(e * per_epoch, (e + 1) * per_epoch)
        seen = np.concatenate([found.positions[k, : found.sizes[k]] for k in rows])
        assert sorted(seen) == list(range(n))
    # With more steps the batches continue where fewer steps stop. Padding repeats a sample of the same batch.
    more = draw_batches(Feed(), n, width, epochs * per_epoch + 2, AT)
    assert (more.positions[: len(found.positions)] == found.positions).all()
    assert all(set(p) == set(p[:s]) for p, s in zip(found.positions, found.sizes, strict=True))


def test_batches_depend_on_their_address_only() -> None:
    def order(feed: Feed, at: DrawAddress) -> list[int]:
        return draw_batches(feed, 50, 50, 1, at).positions[0].tolist()

    base = order(Feed(), AT)
    assert order(Feed(batch_size=7), AT) == base
    for other in (DrawAddress(9, 2, 3), DrawAddress(1, 9, 3), DrawAddress(1, 2, 9)):
        assert order(Feed(), other) != base
    assert order(Feed(stream=1), AT) != base


@given(n=st.integers(1, 12), width=st.integers(1, 6))
def test_uniform_batches_draw_without_replacement(n: int, width: int) -> None:
    found = draw_batches(Feed(order="uniform"), n, width, 8, AT)
    assert (found.sizes == min(n, width)).all()
    for positions, size in zip(found.positions, found.sizes, strict=True):
        assert len(set(positions[:size].tolist())) == size


def test_cyclic_batches_keep_the_stored_order() -> None:
    found = draw_batches(Feed(order="cyclic"), 5, 2, 4, AT)
    assert found.positions.tolist() == [[0, 1], [2, 3], [4, 4], [0, 1]]
    assert found.sizes.tolist() == [2, 2, 1, 2]


@pytest.mark.parametrize(("n", "expected"), [(9, 2), (8, 2), (1, 1), (5, 1), (6, 2)])
def test_batch_statistics_never_see_one_sample_of_many(n: int, expected: int) -> None:
    assert steps_per_epoch(n, 4, batch_statistics=True) == expected


def test_draws() -> None:
    normal = draw_values(Normal((3,)), "eps", 4, 500, AT, 0)
    assert normal.shape == (500, 4, 3)
    assert abs(float(np.asarray(normal, float).std()) - 1) < 0.05
    y = draw_values(Categorical((0.0, 0.25, 0.75)), "y", 4, 500, AT, 0)
    assert np.bincount(np.asarray(y, int).ravel(), minlength=3) / 2000 == pytest.approx([0, 0.25, 0.75], abs=0.04)
    assert (draw_values(Normal((3,)), "eps", 4, 7, AT, 0) == normal[:7]).all()
