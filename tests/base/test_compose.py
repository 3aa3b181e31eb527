"""Composed model values: what they compute in both executors, training, checkpoints, and what is refused."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.federation.snapshot import Packer, unpack
from bench.method import METHODS, Client, Method, Params, Program, Server, State, Train, Upload, compose, cross_entropy
from bench.model_call import Forward
from bench.params import NORMALISATION
from tests.engine.problems import everything, run, toy, toy_data
from tests.methods.resume import assert_resumes


def mixed(model: Any, parts: dict[str, Any], x: Tensor) -> Tensor:
    """A weighted sum of twice the logits of the first model and of the second's head on the first's features."""
    z = model.features(parts["one"], x)
    alpha = parts["alpha"]
    out: Tensor = parts["times"] * alpha[0] * model.head(parts["one"], z) + alpha[1] * model.head(parts["two"], z)
    return out


def parts_of(architecture: str = "test_norm") -> tuple[Any, dict[str, Any]]:
    server = toy("fedavg", model=architecture).server
    one, two = server.initial_model(), server.initial_model(draw=1)
    buffers = torch.rand(one.spec.b, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5
    alpha = torch.tensor([0.3, 0.7], dtype=torch.float64)
    return server, {"one": one.with_buffers(buffers), "two": two.part("head"), "alpha": alpha, "times": 2}


def by_hand(parts: dict[str, Any], x: Tensor) -> Tensor:
    model, one, two = Forward(), parts["one"], parts["two"]
    z = model.features(one, x, stats="frozen")
    return 0.6 * model.head(one, z) + 0.7 * (z @ two.tensors()["head.weight"].T + two.tensors()["head.bias"])


def identity_body(model: Any, parts: dict[str, Any], x: Tensor) -> Tensor:
    """A linear classifier on the output of the body."""
    return model.features(parts["body"], x) @ parts["weight"].T


def test_a_body_may_be_empty() -> None:
    """For example the body of a model that consists of a head only."""
    body = toy("fedavg", model="logistic").server.initial_model().without("head")
    weight, x = torch.eye(3, 4).double(), torch.from_numpy(toy_data().x).double()
    assert torch.equal(Forward()(compose(identity_body, body=body, weight=weight), x), x[:, :3])


def test_it_computes_the_function_of_its_parts() -> None:
    _, parts = parts_of()
    w = compose(mixed, **parts)
    x = torch.from_numpy(toy_data().x).double()
    torch.testing.assert_close(Forward()(w, x, stats="frozen"), by_hand(parts, x), rtol=1e-12, atol=1e-12)
    assert torch.equal(w.part("one").weights, parts["one"].weights)
    assert torch.equal(w.part("one").buffers, parts["one"].buffers)
    assert torch.equal(w.tensors()["two.head.bias"], parts["two"].tensors()["head.bias"])
    assert w.spec.of_type(*NORMALISATION) == ("one.norm",)
    assert w.spec.d == parts["one"].spec.d + parts["two"].spec.d + 2


def test_values_of_other_parts_or_numbers_are_of_another_kind() -> None:
    server, parts = parts_of()
    w = compose(mixed, **parts)
    of_two = compose(mixed, **{**parts, "two": server.initial_model(draw=1)})  # whole, of the same architecture
    assert compose(mixed, **parts).spec == w.spec
    assert w.spec not in (of_two.spec, compose(mixed, **{**parts, "times": 3}).spec)
    x = torch.from_numpy(toy_data().x).double()
    torch.testing.assert_close(Forward()(of_two, x, stats="frozen"), by_hand(parts, x), rtol=1e-12, atol=1e-12)


def inside(model: Any, parts: dict[str, Any], x: Tensor) -> Tensor:
    out: Tensor = parts["beta"][1] * model(parts["inner"], x)
    return out


def test_a_checkpoint_gives_back_a_composed_value_inside_another_and_a_part_of_one() -> None:
    server, parts = parts_of()
    w = compose(mixed, **parts)
    outer = compose(inside, inner=w, beta=parts["alpha"])
    packer = Packer()
    plain = json.loads(json.dumps(packer.pack({"outer": outer, "part": w.part("two")})))
    back = unpack(plain, packer.tensors, server.specs)
    x = torch.from_numpy(toy_data().x).double()
    assert (back["outer"].spec, back["part"].spec) == (outer.spec, w.part("two").spec)
    assert torch.equal(Forward()(back["outer"], x, stats="frozen"), Forward()(outer, x, stats="frozen"))


def local_function() -> Any:
    return lambda model, parts, x: x


@pytest.mark.parametrize(
    ("function", "changes", "message"),
    [
        (local_function(), {}, "no function of a module's top level"),
        (mixed, {"one": None, "two": None}, "no network among its parts"),
        (mixed, {"alpha": torch.ones(2)}, "'alpha' has type torch.float32, the weights torch.float64"),
    ],
)
def test_what_cannot_be_composed_is_said(function: Any, changes: dict[str, Any], message: str) -> None:
    _, parts = parts_of()
    chosen = {name: part for name, part in {**parts, **changes}.items() if part is not None}
    with pytest.raises(ValueError, match=message):
        compose(function, **chosen)


@METHODS.register("odd_composed")
class Composite(Method):
    """Clients train the composed value by which they are evaluated; only its body is shared."""

    trains = "pm"
    mean_of = ("body",)

    def init(self, server: Server) -> None:
        server.state["body"] = server.initial_model().without("head")

    def init_client(self, server: Server, client: Client) -> None:
        one, two = server.initial_model(), server.initial_model(draw=1)
        alpha = one.weights.new_tensor([0.5, 0.5])
        client.state["own"] = compose(mixed, one=one, two=two.part("head"), alpha=alpha, times=2)

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": client.state["own"]}, loss=cross_entropy)
        client.state["own"] = trained["w"]
        yield Upload({"body": down["body"]})
        return trained["w"]

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return client.state["own"]


def test_it_is_trained_as_its_parts_are() -> None:
    """Compared with the same loss on separate parts, in both executors; running statistics agree, too."""
    for executor in ("sequential", "cohort"):
        federation = toy("odd_composed", model="test_norm", executor=executor)
        run(federation, 3)
        assert not federation.engine.fallbacks
        apart = toy("odd_apart", model="test_norm", executor=executor)
        run(apart, 3)
        for i in federation.clients.ids:
            own, parts = federation.clients[i].state["own"], apart.clients[i].state
            torch.testing.assert_close(own.part("one").weights, parts["one"].weights, rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(own.buffers, parts["one"].buffers, rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(own.tensors()["alpha"], parts["alpha"], rtol=1e-10, atol=1e-12)
        moved = federation.clients[0].state["own"].buffers  # the client with one sample does not move them
        assert not torch.equal(moved, federation.server.initial_model().buffers)


def loss_of_parts(model: Any, values: Any, batch: Any, ctx: Any) -> Tensor:
    logits = mixed(model, {**values, "times": 2}, batch.x)
    found: Tensor = -batch.mean(logits.log_softmax(1).gather(1, batch.y.unsqueeze(1)).squeeze(1))
    return found


@METHODS.register("odd_apart")
class Apart(Method):
    """The same method on separate parts, without a composed value."""

    trains = "pm"

    def init_client(self, server: Server, client: Client) -> None:
        one, two = server.initial_model(), server.initial_model(draw=1)
        client.state |= {"one": one, "two": two.part("head"), "alpha": one.weights.new_tensor([0.5, 0.5])}

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({**client.state}, loss=loss_of_parts)
        client.state.update(trained.values)
        return trained["one"]

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return client.state["one"]


def test_it_resumes_and_means_and_is_counted() -> None:
    """As a client's state and as the local model; the mean of the personalized models is composed in the same way."""
    federation = assert_resumes("odd_composed", {"model": "test_norm"}, 2, 4)
    own = federation.clients[0].state["own"]
    assert any(torch.equal(t, own.weights) for t in everything(federation).values())
    mean = federation.evaluator.generic(4, federation.evaluator.personal(4))
    assert mean is not None
    assert mean.spec == own.spec
    assert federation.ledger[-1]["up"] == 5 * 8 * federation.server.state["body"].spec.d
