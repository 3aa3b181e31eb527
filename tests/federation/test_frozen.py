"""Frozen layers are held once, are neither trained nor sent nor saved, and everything else is as without them."""

import gc
import pickle
import weakref
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bench.engine.backends import backends
from bench.engine.step import has_batch_statistics
from bench.errors import UserError
from bench.federation.snapshot import Packer, unpack
from bench.method import compose
from bench.model_call import Forward
from bench.params import NORMALISATION, Params, parts
from bench.plugin import MODELS
from tests.engine.problems import OF_ANY_MODEL, assert_same, everything, personal, run, toy, toy_data


class _Tailed(nn.Module):
    """A body of a linear layer, BatchNorm and another linear layer, so that a part of the body can train."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.inner = nn.Linear(inputs, 6)
        self.norm = nn.BatchNorm1d(6)
        self.tail = nn.Linear(6, 5)
        self.head = nn.Linear(5, classes)

    def features(self, x: Tensor) -> Tensor:
        return torch.relu(self.tail(torch.relu(self.norm(self.inner(x.flatten(1))))))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x))
        return out


@MODELS.register("test_tailed")
def tailed(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A model whose layers up to the tail are frozen here. Where all of a body is, `test_features.py` is about it."""
    return _Tailed(int(np.prod(shape)), classes)


BODY: dict[str, Any] = {"model": "test_tailed", "frozen": ("inner", "norm")}
TAIL, HEAD = 6 * 5 + 5, 5 * 3 + 3  # numbers


def held(w: Params) -> dict[str, Tensor]:
    return {e.name: w.tensors()[e.name] for e in w.spec.frozen}


@pytest.mark.parametrize("method", OF_ANY_MODEL)
def test_every_method_trains_what_is_not_frozen(method: str) -> None:
    """Both executors alike; frozen tensors, running statistics included, are one tensor for all models."""
    states = {}
    for executor in ("sequential", "cohort"):
        federation = toy(method, executor=executor, **BODY)
        start = federation.server.initial_model()
        assert list(held(start)) == [e.name for e in start.spec.frozen]
        values = {tensor.data_ptr(): tensor.clone() for tensor in held(start).values()}
        assert (len(values), start.spec.d, start.spec.b) == (6, TAIL + HEAD, 0)
        evaluation = run(federation, 2)
        assert not federation.engine.fallbacks
        models = [*evaluation.personal.values(), *([evaluation.generic] if evaluation.generic else [])]
        for w in [w for w in [*models, *parts(federation.server.state)] if isinstance(w, Params)]:
            for tensor in held(w).values():
                assert torch.equal(tensor, values[tensor.data_ptr()])
        states[executor] = everything(federation)
    assert_same(states["cohort"], states["sequential"])


CONSTANT: dict[str, Tensor] = {}


class _ConstantBody(nn.Module):
    """The network of `test_tailed` with a body that begins with numbers, as one would write it by hand."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.tail = nn.Linear(6, 5)
        self.head = nn.Linear(5, classes)
        self.constants = dict(CONSTANT)

    def features(self, x: Tensor) -> Tensor:
        c = {name: tensor.to(x.dtype) for name, tensor in self.constants.items()}
        z = nn.functional.linear(x.flatten(1), c["inner.weight"], c["inner.bias"])
        norm = c["norm.running_mean"], c["norm.running_var"], c["norm.weight"], c["norm.bias"]
        return torch.relu(self.tail(torch.relu(nn.functional.batch_norm(z, *norm))))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x))
        return out


@MODELS.register("test_constant_body")
def constant_body(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A model of a tail and a head behind constants."""
    return _ConstantBody(classes)


@pytest.mark.parametrize("executor", ["sequential", "cohort"])
def test_it_is_the_network_whose_body_is_written_by_hand(executor: str) -> None:
    frozen = toy("ditto", executor=executor, **BODY)
    CONSTANT.clear()
    CONSTANT.update(held(frozen.server.initial_model()))
    by_hand = toy("ditto", executor=executor, model="test_constant_body")
    start = frozen.server.initial_model().weights
    by_hand.server.state["model"] = by_hand.server.state["model"].with_weights(start)
    for i in by_hand.clients.ids:
        client = by_hand.clients[i]
        client.state["personal"] = client.state["personal"].with_weights(start)
    a, b = run(frozen, 3), run(by_hand, 3)
    for i, weights in personal(frozen).items():
        torch.testing.assert_close(weights, personal(by_hand)[i], rtol=1e-12, atol=1e-12)
    assert a.metrics == b.metrics
    assert frozen.ledger == by_hand.ledger


@pytest.mark.parametrize("executor", [pytest.param("sequential", marks=pytest.mark.long), "cohort"])
@pytest.mark.parametrize("method", ["fedavg", pytest.param("fedrep", marks=pytest.mark.long)])
def test_recorded_steps_compute_the_same_bytes(method: str, executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen tensors are constants of a recording; those of another cell make another recording."""
    states = []
    for after in (2, 10**9):
        monkeypatch.setattr(backends, "_RECORD_AFTER", after)
        federation = toy(method, executor=executor, **BODY)
        run(federation, 4)
        assert not federation.engine.failed
        assert (federation.engine.calls["torchscript"] > 0) == (after == 2)
        states.append(everything(federation))
    assert_same(*states, tolerance=0)


def test_a_layer_alone_may_be_frozen_and_the_rest_trains() -> None:
    """BatchNorm's statistics move where they are not frozen, and its batches have no padding."""
    for frozen, batch_statistics in ((("inner",), True), (("norm",), False), (("norm.weight", "norm.bias"), True)):
        federation = toy("fedavg", model="test_norm", frozen=frozen)
        start = federation.server.initial_model()
        assert has_batch_statistics(start.spec) == batch_statistics
        run(federation, 2)
        model = federation.server.state["model"]
        assert not torch.equal(model.weights, start.weights)
        assert (start.spec.b > 0) == batch_statistics
        assert torch.equal(model.buffers, start.buffers) == (not batch_statistics)
        for name, tensor in held(model).items():
            assert torch.equal(tensor, held(start)[name])


def test_fedbn_keeps_no_frozen_layer_with_its_clients() -> None:
    federation = toy("fedbn", model="test_norm", frozen=("norm",))
    assert federation.server.initial_model().spec.of_type(*NORMALISATION) == ()
    run(federation, 2)
    assert federation.clients[0].state["norm"].spec.entries == ()


def test_batches_of_one_train_where_batchnorm_is_frozen() -> None:
    federation = toy("fedavg", model="test_norm", frozen=("norm",), batch_size=1)
    federation.advance()
    with pytest.raises(UserError, match="batch_size: 1: BatchNorm in model 'test_norm'"):
        toy("fedavg", model="test_norm", frozen=("norm.weight",), batch_size=1)


def test_further_draws_and_other_classes_share_the_frozen_values() -> None:
    """Each tensor is there once, but for a frozen layer of another shape."""
    server = toy("fedavg", **BODY).server
    first, second, other = server.initial_model(), server.initial_model(draw=1), server.initial_model(classes=5)
    assert first.spec == second.spec
    assert not torch.equal(first.weights, second.weights)
    assert {t.data_ptr() for t in held(first).values()} == {t.data_ptr() for t in held(other).values()}
    server = toy("fedavg", model="test_norm", frozen=("inner", "head")).server
    first, other = server.initial_model(), server.initial_model(classes=5)
    assert held(other)["inner.weight"].data_ptr() == held(first)["inner.weight"].data_ptr()
    assert held(other)["head.bias"].shape == (5,)


def test_equal_values_are_one_object_and_go_with_the_last_cell() -> None:
    """Also where a model is composed; seeds that no other test has, as equal values are one object."""
    cells = [toy("fedem", seed=77, **BODY) for _ in range(2)]
    run(cells[0], 1)
    one, two = (federation.server.initial_model().spec.held for federation in cells)
    assert one is two
    spec = cells[0].server.initial_model().spec
    again = pickle.loads(cloudpickle.dumps(spec.part(("head",))))
    assert again == spec.part(("head",))
    assert again.held is one
    other = toy("fedavg", seed=78, **BODY).server.initial_model().spec
    assert other.held is not one
    assert other != spec
    gone = weakref.ref(one)
    del cells, one, two, spec, again
    gc.collect()
    assert gone() is None


def scaled(model: Any, values: dict[str, Any], x: Tensor) -> Tensor:
    out: Tensor = values["factor"] * model.head(values["top"], model.features(values["base"], x))
    return out


def test_a_composed_model_has_parts_that_are_frozen() -> None:
    """One of them wholly; a checkpoint gives it back."""
    server = toy("fedavg", **BODY).server
    w = server.initial_model()
    whole = compose(
        scaled, base=w.part("inner", "norm", "tail"), top=w.part("head"), factor=torch.full((1,), 2.0).double()
    )
    x = torch.from_numpy(toy_data().x).double()
    assert torch.equal(Forward()(whole, x), 2 * Forward()(w, x))
    assert torch.equal(whole.part("base").tensors()["base.inner.bias"], w.tensors()["inner.bias"])
    packer = Packer()
    plain = packer.pack(whole)
    assert sum(t.numel() for t in packer.tensors.values()) == w.spec.d + 1
    back = unpack(plain, packer.tensors, server.specs)
    assert back.spec == whole.spec
    assert torch.equal(Forward()(back, x), Forward()(whole, x))


def test_saved_values_of_another_frozen_body_are_refused() -> None:
    packer = Packer()
    plain = packer.pack(toy("fedavg", **BODY).server.initial_model())
    with pytest.raises(UserError, match="the file that `pretrained` names, or the model's code, has changed"):
        unpack(plain, packer.tensors, toy("fedavg", seed=4, **BODY).server.specs)
