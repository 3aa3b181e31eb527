"""Parts of a model by name, and how they join to the whole."""

import pytest
import torch

from bench.params import join
from tests.engine.problems import numbered_model


@pytest.mark.parametrize("prefixes", [(), ("",), ("head",), ("inner",), ("norm", "head.bias"), ("inner.weight",)])
def test_parts_join_to_the_whole(prefixes: tuple[str, ...]) -> None:
    w = numbered_model()
    part, rest = w.part(*prefixes), w.without(*prefixes)
    assert part.spec.d + rest.spec.d == w.spec.d
    assert part.spec.b + rest.spec.b == w.spec.b
    for joined in (join(part, rest), join(rest, part)):
        assert torch.equal(joined.weights, w.weights)
        assert torch.equal(joined.buffers, w.buffers)
        assert joined.spec == w.spec
    if part.spec.params:
        with pytest.raises(ValueError, match="do not make up"):
            join(part, part)


def test_head_means_the_layer_not_the_letters() -> None:
    w = numbered_model()
    assert [e.name for e in w.part("head").spec.params] == ["head.weight", "head.bias"]
    for name in ("hea", "head.weight.more"):
        for take in (w.part, w.without, lambda prefix: w.spec.slices((prefix,))):
            with pytest.raises(ValueError, match=f"named '{name}' or below it; there are inner.weight, "):
                take(name)


def test_a_part_may_lack_what_the_whole_has() -> None:
    body = numbered_model().without("head")
    assert not body.part("head").spec.params
    assert body.without("head").spec == body.spec
