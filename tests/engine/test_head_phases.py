"""Where only the head trains, no gradient leads through the body: neither alone nor in lanes, nor in a joined value."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.engine.step import Slices
from bench.method import METHODS, Client, Method, Params, Program, State, Train, Upload, Values, cross_entropy, join
from bench.params import Spec
from bench.plugin import MODELS
from bench.settings import Executor
from tests.engine.problems import numbered_model, run, toy


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


class _OneWay(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 6)
        self.head = nn.Linear(6, classes)

    def features(self, x: Tensor) -> Tensor:
        z: Tensor = _NoWayBack.apply(self.inner(x.flatten(1)))
        return z

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x))
        return out


@MODELS.register("test_one_way")
def one_way(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A network whose body cannot be differentiated."""
    return _OneWay(classes)


@METHODS.register("odd_head")
class OddHead(Method):
    """Trains heads, by `only`."""

    mean_of = ("model",)

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": down["model"]}, loss=cross_entropy, only={"w": ("head",)})
        yield Upload({"model": trained["w"]})
        return trained["w"]


@METHODS.register("odd_joined")
class OddJoined(Method):
    """Trains heads that a loss joins to the body."""

    mean_of = ("model",)

    def client_round(self, client: Client, down: State) -> Program:
        w: Params = down["model"]
        trained = yield Train({"head": w.part("head")}, loss=joined_loss, context={"body": w.without("head")})
        yield Upload({"model": join(w.without("head"), trained["head"])})
        return w


def joined_loss(model: Any, values: Values, batch: Any, ctx: Any) -> Tensor:
    loss: Tensor = cross_entropy(model, {"w": join(ctx.body, values["head"])}, batch, ctx)
    return loss


@pytest.mark.parametrize("executor", ["sequential", "cohort"])
def test_no_gradient_leads_through_a_body_that_does_not_train(executor: Executor) -> None:
    """The joined head trains as the head by `only`, to the bit."""
    states = []
    for method in ("odd_head", "odd_joined"):
        federation = toy(method, executor=executor, model="test_one_way")
        start = federation.server.initial_model()
        run(federation, 3)
        assert not federation.engine.fallbacks
        model = federation.server.state["model"]
        torch.testing.assert_close(model.part("inner").weights, start.part("inner").weights, rtol=0, atol=1e-14)
        assert not torch.equal(model.part("head").weights, start.part("head").weights)
        states.append(model.weights)
    assert torch.equal(*states)
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
