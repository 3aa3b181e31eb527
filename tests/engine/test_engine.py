"""What the engine promises to programs: answers, fall-backs, errors on divergence, and equal bytes."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.engine import predict as outputs
from bench.engine import sizes
from bench.engine.backends import backends
from bench.engine.batches import DrawAddress
from bench.engine.programs import ProgramRun
from bench.federation.federation import Diverged, Federation
from bench.method import (
    METHODS,
    SGD,
    Client,
    Evaluate,
    Exchange,
    Feed,
    Gradient,
    Method,
    Params,
    Predict,
    Program,
    State,
    Train,
    Trained,
    Upload,
    Values,
    cross_entropy,
)  # fmt: skip
from bench.model_call import Forward
from bench.settings import Executor
from tests.engine.problems import EVERY_METHOD, METHOD_NAMES, ONE_OF_A_KIND, everything, run, toy, toy_data


class Probe(Method):
    """FedAvg with a program that a test supplies."""

    mean_of = ("model",)
    program: Any = None
    seen: dict[int, Any]

    def client_round(self, client: Client, down: State) -> Program:
        w = down["model"]
        self.seen = getattr(self, "seen", {})
        self.seen[client.id] = yield from self.program(client, w)
        yield Upload({"model": w})


@pytest.fixture(autouse=True, scope="module")
def _registered() -> None:
    """Not registered at import, because other test files parametrize over all registered methods."""
    METHODS.register("test_probe")(Probe)


def ask(program: Any, **settings: Any) -> tuple[dict[int, Any], Federation]:
    federation = toy("test_probe", **settings)
    assert isinstance(federation.method, Probe)
    federation.method.program = program
    federation.advance()
    return federation.method.seen, federation


def logits(federation: Federation, w: Params, x: np.ndarray) -> np.ndarray:
    inner, head = (w.tensors()[n].numpy() for n in ("inner.weight", "head.weight"))
    return x @ inner.T @ head.T


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@pytest.mark.parametrize("executor", ["sequential", "cohort"])
def test_a_full_gradient_is_the_mean_over_all_samples(executor: str) -> None:
    def program(client: Client, w: Params) -> Program:
        return (yield Gradient({"w": w}, loss=cross_entropy))

    seen, federation = ask(program, executor=executor)
    data, w = toy_data(), federation.server.initial_model()
    for i, (gradients, loss) in seen.items():
        at = federation.device_data.partition.train[i]
        x, y = data.x[at].astype(float), data.y[at]
        p = softmax(logits(federation, w, x))
        assert float(loss) == pytest.approx(-np.log(p[np.arange(len(y)), y]).mean(), rel=1e-9)
        p[np.arange(len(y)), y] -= 1
        inner, head = (w.tensors()[n].numpy() for n in ("inner.weight", "head.weight"))
        expected = np.concatenate([((p @ head).T @ x).ravel(), (p.T @ (x @ inner.T)).ravel()]) / len(y)
        np.testing.assert_allclose(gradients["w"].numpy(), expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("executor", ["sequential", "cohort"])
def test_a_gradient_counts_a_last_batch_of_one_sample_with_batchnorm(executor: str) -> None:
    """Of 13, 9 and 5 samples in batches of four the last batch has one: a full pass in one batch is the reference."""

    def program(client: Client, w: Params) -> Program:
        moved = w.with_buffers(w.buffers + 0.5)  # means and variances that no batch has
        return (yield Gradient({"w": moved}, loss=cross_entropy)), (yield Evaluate([moved])), moved

    seen, federation = ask(program, executor=executor, model="test_norm", batch_size=4)
    data = toy_data()
    for i, ((gradients, loss), (losses, _), w) in seen.items():
        at = federation.device_data.partition.train[i]
        x, y = torch.from_numpy(data.x[at]).double(), torch.from_numpy(data.y[at])

        def mean_loss(weights: Tensor, w: Params = w, x: Tensor = x, y: Tensor = y) -> Tensor:
            return torch.nn.functional.cross_entropy(Forward()(w.with_weights(weights), x, stats="frozen"), y)

        expected, value = torch.func.grad_and_value(mean_loss)(w.weights)
        torch.testing.assert_close(gradients["w"], expected, rtol=1e-9, atol=1e-12)
        assert float(loss) == pytest.approx(float(value), rel=1e-9)
        assert float(losses[0]) == pytest.approx(float(value), rel=1e-9)
    assert {13, 9, 5} < {len(part) for part in federation.device_data.partition.train}


@pytest.mark.parametrize("executor", ["sequential", "cohort"])
def test_predict_and_evaluate(executor: str) -> None:
    def program(client: Client, w: Params) -> Program:
        outputs = yield Predict(w, "public")
        scores = yield Evaluate([w, w.with_weights(-w.weights)])
        return outputs, scores

    public = toy_data(seed=9)
    seen, federation = ask(program, executor=executor, public=public)
    w = federation.server.initial_model()
    expected = softmax(logits(federation, w, public.x.astype(float)))
    for i, (given, (losses, accuracies)) in seen.items():
        np.testing.assert_allclose(given.numpy(), expected, rtol=1e-9)
        at = federation.device_data.partition.train[i]
        p = softmax(logits(federation, w, toy_data().x[at].astype(float)))
        y = toy_data().y[at]
        assert float(losses[0]) == pytest.approx(-np.log(p[np.arange(len(y)), y]).mean())
        assert float(accuracies[0]) == pytest.approx((p.argmax(1) == y).mean())
        assert losses.shape == accuracies.shape == (2,)


def test_a_limit_ends_trainings_and_leaves_gradients_whole() -> None:
    def program(w: Params) -> Program:
        gradients, _ = yield Gradient({"w": w}, cross_entropy)
        first = yield Train({"w": w}, loss=cross_entropy, steps=2)
        second = yield Train({"w": w}, loss=cross_entropy, epochs=4)
        return gradients["w"], first.steps, second.steps

    federation = toy("fedavg", sizes=[9, 9], batch_size=2)
    w = federation.server.initial_model()
    running = [ProgramRun(i, program(w), DrawAddress(0, 0, 0), limit=limit) for i, limit in enumerate((None, 3))]
    federation.engine.run(running)
    (whole, *steps), (limited, *cut) = (p.result for p in running)
    assert torch.equal(whole, limited)
    assert (steps, cut) == ([2, 20], [2, 1])


@pytest.mark.parametrize("executor", ["sequential", "cohort"])
def test_a_subset_is_the_same_for_all_and_fresh_in_every_round(executor: str) -> None:
    """The scores identify the samples: predictions and batches use the same subset, in the same order."""
    public = toy_data(samples=12, seed=9)

    def program(client: Client, w: Params) -> Program:
        scores = yield Predict(w, output="logits", subset=5)
        values = {"w": w, "seen": torch.zeros(5, 3, dtype=torch.float64)}
        kept = yield Train(values, step=_look_at_scores, feed=Feed("public", 4, subset=5), epochs=1)
        return scores, kept["seen"]

    seen, federation = ask(program, executor=executor, public=public)
    rounds = [dict(seen)]
    for _ in range(3):
        federation.advance()
        rounds.append(dict(seen))
    whole = logits(federation, federation.server.initial_model(), public.x.astype(float))
    chosen = []
    for found in rounds:
        for scores, trained_on in found.values():
            near = np.abs(scores.numpy()[:, None] - whole).max(2) < 1e-9
            assert near.sum() == 5
            chosen.append(tuple(near.argmax(1)))
            torch.testing.assert_close(trained_on, scores)
    assert all(list(one) == sorted(one) for one in chosen)
    assert len(set(chosen)) == len(rounds)


def _look_at_scores(do: Any, values: Values, batch: Any, ctx: Any) -> Values:
    """Add the scores of a batch's samples in the rows of their indices."""
    at = (batch.index[:, None] == torch.arange(5)) * batch.weight[:, None]
    return {**values, "seen": values["seen"] + at.to(torch.float64).T @ Forward()(values["w"], batch.x, "frozen")}


def test_clients_whose_subsets_differ_train_in_one_cohort() -> None:
    """A step does not depend on the size of what its batches are drawn from."""

    def program(client: Client, w: Params) -> Program:
        return (
            yield Train({"w": w}, loss=cross_entropy, feed=Feed(batch_size=2, subset=3 + client.id, stream=client.id))
        )

    found = {}
    for executor in ("sequential", "cohort"):
        seen, federation = ask(program, executor=executor, sizes=[8, 8, 8])
        assert len(federation.engine._trainer.steps.used) == 1
        found[executor] = {i: trained["w"].weights for i, trained in seen.items()}
    for i, weights in found["cohort"].items():
        torch.testing.assert_close(weights, found["sequential"][i], rtol=0, atol=1e-12)
    assert len({tuple(weights.tolist()) for weights in found["cohort"].values()}) == 3


def test_the_holdout_is_the_clients_own_and_fixed() -> None:
    def program(client: Client, w: Params) -> Program:
        kept = yield Predict(w, "remainder", "logits")
        held = yield Predict(w, "holdout", "logits")
        return len(kept), len(held)

    Probe.holdout = 0.4
    try:
        seen, federation = ask(program)
    finally:
        Probe.holdout = 0.0
    sizes = {i: len(federation.device_data.partition.train[i]) for i in seen}
    assert seen == {i: (n - int(0.4 * n), int(0.4 * n)) for i, n in sizes.items()}
    for i in seen:
        both = [set(federation.device_data.positions(i, kind)) for kind in ("remainder", "holdout")]
        assert not both[0] & both[1]
        assert both[0] | both[1] == set(federation.device_data.positions(i, "train"))


def test_an_optimizer_goes_on_where_it_stopped() -> None:
    """Two requests, the second with the optimizer state of the first, equal one request of both lengths on the same
    batches."""
    feed = Feed(order="cyclic", batch_size=100)

    def whole(client: Client, w: Params) -> Program:
        return (yield Train({"w": w}, loss=cross_entropy, steps=4, feed=feed))

    def halves(client: Client, w: Params) -> Program:
        first: Trained = yield Train({"w": w}, loss=cross_entropy, steps=2, feed=feed)
        return (
            yield Train(
                {"w": first["w"]}, loss=cross_entropy, steps=2, feed=feed, optimizer_state=first.optimizer_state
            )
        )

    a, _ = ask(whole, momentum=0.9)
    b, _ = ask(halves, momentum=0.9)
    for i in a:
        torch.testing.assert_close(a[i]["w"].weights, b[i]["w"].weights, rtol=1e-12, atol=1e-12)


def test_frozen_slices_and_parts_do_not_move() -> None:
    """Not even through weight decay and momentum."""

    def program(client: Client, w: Params) -> Program:
        head = yield Train({"w": w}, loss=cross_entropy, only={"w": ("head",)})
        fixed = yield Train({"w": w, "v": w}, loss=cross_entropy, optimizer={"v": SGD()})
        return w, head["w"], fixed

    seen, _ = ask(program, weight_decay=0.1, momentum=0.9)
    for w, head, fixed in seen.values():
        assert torch.equal(head.without("head").weights, w.without("head").weights)
        assert not torch.equal(head.part("head").weights, w.part("head").weights)
        assert torch.equal(fixed["w"].weights, w.weights)
        assert not torch.equal(fixed["v"].weights, w.weights)


def branching(model: Any, values: Values, batch: Any, ctx: Any) -> Tensor:
    """A loss that branches on its value, which vmap refuses."""
    loss = cross_entropy(model, values, batch, ctx)
    return loss if loss > 0 else -loss


def test_a_loss_that_cannot_be_mapped_runs_one_by_one_and_says_so() -> None:
    def program(client: Client, w: Params) -> Program:
        return (yield Train({"w": w}, loss=branching))

    def plain(client: Client, w: Params) -> Program:
        return (yield Train({"w": w}, loss=cross_entropy))

    a, federation = ask(program)
    (notice,) = federation.warnings
    assert notice.startswith("branching cannot be mapped over clients and runs one by one: it reads a number in Python")
    assert federation.engine.fallbacks == ["branching"]
    assert federation.engine.steps_are == "fallen back"
    b, _ = ask(plain, executor="sequential")
    assert all(torch.equal(a[i]["w"].weights, b[i]["w"].weights) for i in a)


def wrong(model: Any, values: Values, batch: Any, ctx: Any) -> Tensor:
    """A loss with a bug."""
    return batch.mean(model(values["w"], batch.x))[7]  # type: ignore[no-any-return]


def test_a_wrong_loss_is_an_error_not_a_fall_back() -> None:
    def program(client: Client, w: Params) -> Program:
        return (yield Train({"w": w}, loss=wrong))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises((IndexError, RuntimeError)):
            ask(program)


def test_divergence_names_round_and_client() -> None:
    federation = toy("fedavg", lr=1e200)
    with pytest.raises(Diverged, match="of client 0 is not finite") as caught:
        run(federation, 5)
    assert caught.value.round == federation.version


def test_an_exchange_waits_for_everybody() -> None:
    def program(client: Client, w: Params) -> Program:
        return (yield Exchange({"n": torch.tensor(float(client.n_train))}))

    def reply(self: Any, server: Any, messages: list[Any]) -> dict[int, Any]:
        total = sum(m["n"] for m in messages)
        return {m.client: {"total": total} for m in messages}

    Probe.reply = reply  # type: ignore[method-assign]
    try:
        seen, federation = ask(program)
    finally:
        del Probe.reply
    assert {float(v["total"]) for v in seen.values()} == {35.0}
    n = len(seen)
    assert federation.ledger[0]["up"] - n * 8 * federation.server.initial_model().spec.d == n * 4


STEPS_OF_A_KIND = ONE_OF_A_KIND | {"apfl", "feddyn", "fedmd", "fedrod", "ktpfl", "perfedavg", "pfedme", "scaffold"}
OTHER_STEPS = [("sequential", model, method) for model in ("test_linear", "test_norm") for method in ("pfedme", "scd")]


@pytest.mark.long
@pytest.mark.parametrize(
    ("executor", "model", "method"),
    [
        *OTHER_STEPS,
        *(("cohort", "test_linear", method) for method in sorted(STEPS_OF_A_KIND)),
        *(pytest.param("cohort", "test_norm", method, marks=pytest.mark.slow) for method in METHOD_NAMES),
    ],
)
def test_a_recorded_step_gives_the_same_bytes(
    executor: Executor, model: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = []
    for after in (10**9, 2):
        monkeypatch.setattr(backends, "_RECORD_AFTER", after)
        federation = toy(method, executor=executor, dtype="float32", model=model)
        run(federation, 3)
        recorded.append(sum(len(step._recorded) for step in federation.engine._trainer.steps.by_recipe.values()))
        if after == 2:
            now = everything(federation)
        else:
            before = everything(federation)
    assert recorded[0] == 0 < recorded[1]
    assert all(before[n].numpy().tobytes() == now[n].numpy().tobytes() for n in before)


@pytest.mark.long
@pytest.mark.parametrize("executor", ["sequential", "cohort"])
@pytest.mark.parametrize("method", ["ditto", "scd", "fedrod"])
def test_threads_change_nothing(method: str, executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one and with three clients or cohorts at a time, before and after steps are recorded."""
    monkeypatch.setattr(backends, "_RECORD_AFTER", 3)
    monkeypatch.setattr(sizes, "_MOST", 3)
    monkeypatch.setattr(outputs, "_THREADS_PAY", 0)
    found = []
    for threads in (1, 3):
        federation = toy(method, executor=executor, dtype="float32")
        federation.engine.threads, federation.engine.lanes = threads, 2
        run(federation, 3)
        found.append(everything(federation))
    assert all(torch.equal(found[0][n], found[1][n]) for n in found[0])


def test_clients_of_two_architectures_train_side_by_side() -> None:
    def program(client: Client, w: Params) -> Program:
        own = client.state["own"]
        return (yield Train({"w": own}, loss=cross_entropy))

    def init_client(self: Any, server: Any, client: Client) -> None:
        client.state["own"] = server.initial_model(client.id)

    Probe.init_client = init_client  # type: ignore[method-assign]
    try:
        found = [
            ask(program, executor=e, client_models=("test_linear", "test_norm"))[0] for e in ("cohort", "sequential")
        ]
    finally:
        del Probe.init_client
    assert {v["w"].spec.arch for v in found[0].values()} == {"test_linear(4->3)", "test_norm(4->3)"}
    for i in found[0]:
        torch.testing.assert_close(found[0][i]["w"].weights, found[1][i]["w"].weights, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("executor", ["sequential", "cohort"])
@pytest.mark.parametrize("method", EVERY_METHOD)
def test_clients_whose_samples_have_one_class_train_and_stay_finite(method: str, executor: str) -> None:
    """Beside them one client has a single sample, and one has none."""
    data = toy_data()
    order = np.argsort(data.y[: data.n_train], kind="stable")
    order = np.concatenate([order, np.arange(data.n_train, len(data.y))])
    data = replace(data, x=data.x[order], y=data.y[order])
    first, *others = np.bincount(data.y[: data.n_train]).tolist()
    federation = toy(method, data=data, sizes=[first - 1, 1, 0, *others], model="test_norm", executor=executor)
    assert all(len({*data.y[own]}) <= 1 for own in federation.engine.device_data.partition.train)
    values = [row["value"] for row in run(federation, 2).metrics]
    assert values
    assert np.isfinite(values).all()
    assert all(t.isfinite().all() for t in everything(federation).values() if t.is_floating_point())
