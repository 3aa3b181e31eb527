"""Where only the head trains, no gradient leads through the body: neither alone nor in lanes, nor in a joined value."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.engine.step import Slices
from bench.method import Params, Program, Train, Values, cross_entropy, join
from bench.params import Spec
from bench.plugin import MODELS
from bench.settings import Executor
from tests.engine.problems import asked, assert_same, linear, numbered_model, run, toy


class _NoWayBack(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor) -> Tensor:
        return z * 1

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise AssertionError("a gradient leads through the body")


class _OneWay(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _NoWayBack.apply(super().forward(x))
        return out


@MODELS.register("test_one_way")
def one_way(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The linear model with a body that cannot be differentiated."""
    net = linear(shape, classes)
    net.inner = _OneWay(4, 3)
    return net


def by_only(w: Params) -> Program:
    trained = yield Train({"w": w}, loss=cross_entropy, only={"w": ("head",)})
    return trained["w"]


def by_joining(w: Params) -> Program:
    trained = yield Train({"head": w.part("head")}, loss=joined_loss, context={"body": w.without("head")})
    return join(w.without("head"), trained["head"])


def joined_loss(model: Any, values: Values, batch: Any, ctx: Any) -> Tensor:
    loss: Tensor = cross_entropy(model, {"w": join(ctx.body, values["head"])}, batch, ctx)
    return loss


@pytest.mark.parametrize("executor", ["sequential", "cohort"])
def test_no_gradient_leads_through_a_body_that_does_not_train(executor: Executor) -> None:
    """The joined head trains as the head by `only`, to the bit."""
    found = []
    for program in (by_only, by_joining):
        running, federation, start = asked(program, executor=executor, model="test_one_way", epochs=4)
        assert not federation.engine.fallbacks
        models = {str(i): p.result for i, p in running.items()}
        for w in models.values():
            assert torch.equal(w.part("inner").weights, start.part("inner").weights)
            assert not torch.equal(w.part("head").weights, start.part("head").weights)
        found.append({i: w.weights for i, w in models.items()})
    assert_same(found[0], found[1], tolerance=0)
    with pytest.raises(AssertionError, match="a gradient leads through the body"):
        run(toy("fedavg", executor="sequential", model="test_one_way"), 1)


@pytest.mark.parametrize("prefixes", [("head",), ("norm",), ("inner.bias", "head.weight"), ("inner", "norm", "head")])
def test_a_value_in_pieces_is_the_value(prefixes: tuple[str, ...]) -> None:
    w = numbered_model()
    slices = Slices(tuple((run.start, run.stop) for run in w.spec.slices(prefixes)), w.spec.d)
    seen = w.with_pieces(slices.pieces(w.weights, slices.take(w.weights)))
    for value in (seen, seen.with_buffers(w.buffers), join(seen.part("norm"), seen.without("norm")), join(seen)):
        assert value.spec == w.spec
        assert all(torch.equal(tensor, w.tensors()[name]) for name, tensor in value.tensors().items())
        assert torch.equal(value.weights, w.weights)
    part = seen.without("norm").part("head.weight", "inner")
    assert torch.equal(part.weights, w.without("norm").part("head.weight", "inner").weights)
    assert torch.equal(seen.with_weights(w.weights + 1).weights, w.weights + 1)


def test_a_tensor_without_numbers_at_the_end_is_not_lost() -> None:
    module = nn.Module()
    for name, size in (("a", 2), ("b", 3), ("c", 0)):
        module.register_parameter(name, nn.Parameter(torch.zeros(size)))
    w = Params(torch.arange(5.0), torch.zeros(0), Spec.of("three", module))
    assert {n: t.tolist() for n, t in w.with_pieces([w.weights[:2], w.weights[2:]]).tensors().items()} == {
        "a": [0, 1], "b": [2, 3, 4], "c": [],
    }  # fmt: skip
