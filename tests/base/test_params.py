"""Parts of a model by name, and how they join to the whole."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from bench.model_call import PLAIN, _templates
from bench.params import NORMALISATION, Params, Spec, join
from bench.tensors import frozen_layers
from tests.engine.problems import numbered_model

TENSORS = numbered_model().tensors()
NAMES = list(TENSORS)


def test_head_means_the_layer_not_the_letters() -> None:
    w = numbered_model()
    assert [e.name for e in w.part("head").spec.params] == ["head.weight", "head.bias"]
    for name in ("hea", "head.weight.more"):
        for take in (w.part, w.without, lambda prefix: w.spec.slices((prefix,))):
            with pytest.raises(ValueError, match=f"named '{name}' or below it; there are inner.weight, "):
                take(name)


def frozen_model(names: set[str]) -> Params:
    """The numbered model with these tensors frozen."""
    spec = Spec.of("norm", numbered_model().spec.module, {name: TENSORS[name] for name in NAMES if name in names})
    moving = [torch.zeros(0), *(TENSORS[e.name].reshape(-1) for e in spec.params)]
    return Params(torch.cat(moving), torch.cat([torch.zeros(0), *(TENSORS[e.name] for e in spec.buffers)]), spec)


@given(st.sets(st.sampled_from(NAMES)), st.sets(st.sampled_from([*NAMES, "inner", "norm", "head"])))
def test_frozen_tensors_are_in_no_vector_and_their_names_are_names_of_parts(frozen: set[str], named: set[str]) -> None:
    """A part and the rest have each tensor once, frozen or not, and join to the whole."""
    w, prefixes = frozen_model(frozen), tuple(sorted(named))
    part, rest = w.part(*prefixes), w.without(*prefixes)
    assert {e.name for e in w.spec.frozen} == frozen
    assert w.spec.d + w.spec.b == sum(TENSORS[name].numel() for name in NAMES if name not in frozen)
    assert part.tensors().keys() | rest.tensors().keys() == set(NAMES)
    assert not part.tensors().keys() & rest.tensors().keys()
    for joined in (join(part, rest), join(rest, part)):
        assert joined.tensors().keys() == set(NAMES)
        assert all(torch.equal(tensor, TENSORS[name]) for name, tensor in joined.tensors().items())
    assert join(part, rest).spec == w.spec
    if part.spec.params:
        with pytest.raises(ValueError, match="do not make up"):
            join(part, part)
    assert sum(run.stop - run.start for run in w.spec.slices(prefixes)) == part.spec.d
    assert w.without("head").part(*prefixes).spec == w.part(*prefixes).without("head").spec
    assert (w.spec == numbered_model().spec) == (not frozen)


@given(st.sets(st.sampled_from(NAMES)), st.sets(st.sampled_from(NAMES)))
def test_specs_are_equal_where_names_and_values_of_frozen_tensors_are(one: set[str], other: set[str]) -> None:
    assert (frozen_model(one).spec == frozen_model(other).spec) == (one == other)
    assert (frozen_model(one).spec.held is frozen_model(other).spec.held) == (one == other)


def test_a_layer_is_frozen_where_all_of_its_tensors_are() -> None:
    module = numbered_model().spec.module
    layers = dict(module.named_modules())
    assert frozen_layers(module, {"norm.weight", "norm.bias", "head.weight"}) == []
    assert frozen_layers(module, {name for name in NAMES if name.startswith("norm.")}) == [layers["norm"]]
    assert frozen_layers(module, set(NAMES)) == list(module.modules())


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("training", [True, False])
def test_the_copy_of_a_network_that_calls_run_on_computes_nothing(training: bool) -> None:
    """It may be made while a step is being recorded, by a cell whose recordings another one has begun."""
    spec = Spec.of(f"copied {training}", nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).to("meta"))
    with _Operations() as operations:
        template = _templates.get(spec, training, False, PLAIN)
    assert operations.count == 0
    assert template.net is not spec.module


def test_layers_are_found_by_type() -> None:
    """At any place and with any name; layers without tensors are not found."""
    with torch.device("meta"):
        net = torch.nn.Sequential()
        net.add_module("stem", torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2)))
        net.add_module("bn", torch.nn.Linear(2, 2))  # the name is of BatchNorm, the layer is not
        net.add_module("rest", torch.nn.Sequential(torch.nn.GroupNorm(1, 2), torch.nn.InstanceNorm2d(2)))
        net.add_module("last", torch.nn.LayerNorm(2))
    spec = Spec.of("odd", net)
    assert spec.of_type(*NORMALISATION) == ("stem.1", "rest.0", "last")
    assert spec.of_type(torch.nn.BatchNorm1d) == ()
    assert spec.part(("bn",)).of_type(torch.nn.LayerNorm) == ("last",)
