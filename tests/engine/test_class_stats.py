"""The answers to `ClassStats`, compared with sums by hand, and its cost, which is that of a look."""

from typing import Any

import numpy as np
import pytest
import torch

from bench.engine.anomalies import Diverged
from bench.engine.device_data import SERVER
from bench.engine.programs import ProgramRun, Work
from bench.federation.federation import Federation
from bench.method import ClassStats, Params, Program, Train, cross_entropy
from bench.model_call import Forward
from tests.engine.problems import asked, toy_data


def ask(request: Any, **settings: Any) -> tuple[dict[int, ProgramRun], Federation, Params]:
    """Have every client's program ask for one thing. One client has no samples."""

    def program(w: Params) -> Program:
        return (yield request(w))

    return asked(program, **{"owners": range(6), **settings})


@pytest.mark.parametrize("executor", ["sequential", "cohort"])
@pytest.mark.parametrize("of", ["features", "directions", "logits", "probabilities"])
def test_sums_by_class_are_those_of_a_loop_over_samples(of: Any, executor: Any) -> None:
    """For unequal clients, one of which has a single sample and one none."""
    running, federation, w = ask(lambda w: ClassStats(w, of=of, moments=2), executor=executor)
    data = toy_data()
    inner, head = (w.tensors()[n].numpy() for n in ("inner.weight", "head.weight"))
    sizes = set()
    for i, p in running.items():
        at = federation.device_data.partition.train[i]
        count, total, outer = np.zeros(3), np.zeros((3, 3)), np.zeros((3, 3, 3))
        for x, y in zip(data.x[at].astype(float), data.y[at], strict=True):
            z = inner @ x
            if of == "directions":
                z = z / np.linalg.norm(z)
            elif of != "features":
                z = head @ z
            if of == "probabilities":
                z = np.exp(z) / np.exp(z).sum()
            count[y] += 1
            total[y] += z
            outer[y] += np.outer(z, z)
        found = p.result
        np.testing.assert_array_equal(found.count.numpy(), count)
        np.testing.assert_allclose(found.sum.numpy(), total, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(found.outer.numpy(), outer, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(found.mean.numpy(), total / np.maximum(count, 1)[:, None], rtol=1e-10, atol=1e-12)
        assert p.events == [Work(0, len(at))]
        sizes.add(len(at))
    assert {0, 1, 13} <= sizes


@pytest.mark.parametrize("moments", [1, 2])
def test_statistics_that_overflow_are_a_divergence(moments: Any) -> None:
    """The weights are finite, and at 1e25 the features are finite in float32 as well, but their squares are not."""
    scale = {1: 1e38, 2: 1e25}[moments]
    with pytest.raises(Diverged, match=r"the class statistics of client \d are not finite"):
        ask(lambda w: ClassStats(w.with_weights(w.weights * scale), moments=moments), dtype="float32")


def test_the_running_statistics_are_frozen_and_stay_as_they_are() -> None:
    running, federation, w = ask(ClassStats, model="test_norm")
    before = w.buffers.clone()
    at = federation.device_data.partition.train[0]
    z = Forward().features(w, torch.from_numpy(toy_data().x[at]).double(), stats="frozen")
    torch.testing.assert_close(running[0].result.sum.sum(0), z.sum(0))
    assert running[0].result.outer is None
    assert torch.equal(w.buffers, before)


@pytest.mark.parametrize("request_", [ClassStats, lambda w: Train({"w": w}, loss=cross_entropy)])
def test_the_server_has_no_samples_of_clients(request_: Any) -> None:
    with pytest.raises(ValueError, match="the server has no 'train' samples"):
        ask(request_, owners=[SERVER])
