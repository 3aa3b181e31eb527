"""The generator of an address."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bench.rng import generator, key


@given(address=st.tuples(st.text(max_size=3), st.integers()))
def test_a_generator_is_philox_with_the_address_as_key(address: tuple[str, int]) -> None:
    expected = np.random.Generator(np.random.Philox(key=key(*address)))
    assert (generator(*address).random(5) == expected.random(5)).all()
