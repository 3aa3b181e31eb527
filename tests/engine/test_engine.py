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
from bench.method import SGD, Evaluate, Feed, Gradient, Params, Program, Train, Trained, Values, cross_entropy
from bench.model_call import Forward
from bench.settings import Executor
from tests.engine.problems import (
    EVERY_METHOD,
    METHOD_NAMES,
    ONE_OF_A_KIND,
    asked,
    assert_same,
    everything,
    run,
    toy,
    toy_data,
)  # fmt: skip


@pytest.mark.parametrize("executor", ["sequential", "cohort"])
@pytest.mark.parametrize("model", ["test_linear", "test_norm"])
def test_a_full_gradient_is_the_mean_over_all_samples(model: str, executor: str) -> None:
    """A full pass in one batch, by autograd, is the reference. Of 13, 9 and 5 samples in batches of four the last batch
    has one sample, which counts with BatchNorm, too."""

    def program(w: Params) -> Program:
        moved = w.with_buffers(w.buffers + 0.5)  # means and variances that no batch has
        return (yield Gradient({"w": moved}, loss=cross_entropy)), (yield Evaluate([moved])), moved

    running, federation, _ = asked(program, executor=executor, model=model, batch_size=4)
    data = toy_data()
    for i, ((gradients, loss), (losses, _), w) in ((i, p.result) for i, p in running.items()):
        at = federation.device_data.partition.train[i]
        x, y = torch.from_numpy(data.x[at]).double(), torch.from_numpy(data.y[at])
        leaf = w.weights.clone().requires_grad_()
        value = torch.nn.functional.cross_entropy(Forward()(w.with_weights(leaf), x, stats="frozen"), y)
        (expected,) = torch.autograd.grad(value, [leaf])
        right = pytest.approx(float(value.detach()), rel=1e-9)
        torch.testing.assert_close(gradients["w"], expected, rtol=1e-9, atol=1e-12)
        assert (float(loss), float(losses[0])) == (right, right)
    assert {13, 9, 5} < {len(part) for part in federation.device_data.partition.train}


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


def test_an_optimizer_goes_on_where_it_stopped() -> None:
    """Two requests, the second with the optimizer state of the first, equal one request of both lengths on the same
    batches."""

    def trained(w: Params, *lengths: int) -> Program:
        state = None
        for steps in lengths:
            feed = Feed(order="cyclic", batch_size=100)
            answer: Trained = yield Train({"w": w}, loss=cross_entropy, steps=steps, feed=feed, optimizer_state=state)
            w, state = answer["w"], answer.optimizer_state
        return w.weights

    whole, halves = (asked(lambda w, n=n: trained(w, *n), momentum=0.9)[0] for n in ((4,), (2, 2)))
    for i in whole:
        torch.testing.assert_close(whole[i].result, halves[i].result, rtol=1e-12, atol=1e-12)


def test_clients_whose_subsets_differ_share_a_step() -> None:
    """A step does not depend on the size of what its batches are drawn from."""
    subsets = iter((3, 4, 5))

    def program(w: Params) -> Program:
        yield Train({"w": w}, loss=cross_entropy, feed=Feed(batch_size=2, subset=next(subsets)))

    _, federation, _ = asked(program, owners=range(3), sizes=[8, 8, 8])
    assert len(federation.engine._trainer.steps.used) == 1


def test_frozen_slices_and_parts_do_not_move() -> None:
    """Not even through weight decay and momentum."""

    def program(w: Params) -> Program:
        head = yield Train({"w": w}, loss=cross_entropy, only={"w": ("head",)})
        fixed = yield Train({"w": w, "v": w}, loss=cross_entropy, optimizer={"v": SGD()})
        return head["w"], fixed

    running, _, w = asked(program, weight_decay=0.1, momentum=0.9)
    for head, fixed in (p.result for p in running.values()):
        assert torch.equal(head.without("head").weights, w.without("head").weights)
        assert not torch.equal(head.part("head").weights, w.part("head").weights)
        assert torch.equal(fixed["w"].weights, w.weights)
        assert not torch.equal(fixed["v"].weights, w.weights)


def branching(model: Any, values: Values, batch: Any, ctx: Any) -> Tensor:
    """A loss that branches on its value, which vmap refuses."""
    loss = cross_entropy(model, values, batch, ctx)
    return loss if loss > 0 else -loss


def test_a_loss_that_cannot_be_mapped_runs_one_by_one_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = toy("fedavg", executor="sequential")
    plain.advance()
    monkeypatch.setattr("methods.fedavg.cross_entropy", branching)
    federation = toy("fedavg")
    federation.advance()
    (notice,) = federation.warnings
    assert notice.startswith("branching cannot be mapped over clients and runs one by one: it reads a number in Python")
    assert federation.engine.fallbacks == ["branching"]
    assert federation.engine.steps_are == "fallen back"
    assert_same(everything(federation), everything(plain), tolerance=0)


def wrong(model: Any, values: Values, batch: Any, ctx: Any) -> Tensor:
    """A loss with a bug."""
    return batch.mean(model(values["w"], batch.x))[7]  # type: ignore[no-any-return]


def test_a_wrong_loss_is_an_error_not_a_fall_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("methods.fedavg.cross_entropy", wrong)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises((IndexError, RuntimeError)):
            toy("fedavg").advance()


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
    recorded, states, scores = [], [], []
    for after in (10**9, 2):
        monkeypatch.setattr(backends, "_RECORD_AFTER", after)
        federation = toy(method, executor=executor, dtype="float32", model=model)
        scores.append([run(federation, 1).metrics for _ in range(3)])
        recorded.append(sum(len(step._recorded) for step in federation.engine._trainer.steps.by_recipe.values()))
        states.append(everything(federation))
    assert recorded[0] == 0 < recorded[1]
    assert scores[0] == scores[1]
    assert_same(states[1], states[0], tolerance=0)


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
    both = [toy("local", executor=e, client_models=("test_linear", "test_norm")) for e in ("cohort", "sequential")]
    for federation in both:
        run(federation, 2)
        assert {c.state["personal"].spec.arch for c in map(federation.clients.__getitem__, federation.clients.ids)} == {
            "test_linear(4->3)", "test_norm(4->3)",
        }  # fmt: skip
    assert_same(*map(everything, both))


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
