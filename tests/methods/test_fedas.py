"""FedAS against its formulas in plain torch, and FedPer without its two parts."""

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.engine.batches import steps_per_epoch
from bench.method import Feed
from bench.model_call import Forward
from tests.engine.problems import personal, run, toy, toy_data
from tests.methods.by_autograd import descend_on, features, plain
from tests.methods.reference import BATCH, PLAIN, Array, batches, gradient, initial, local_batches, local_data, near

SIZES = [9, 5]


def class_means(w: Array, x: Array, y: Array) -> dict[int, Array]:
    z = features(torch.tensor(w), torch.tensor(x)).numpy()
    return {int(c): z[y.argmax(1) == c].mean(0) for c in set(y.argmax(1))}


def test_follows_the_formulas() -> None:
    """Two clients, three rounds; the trace over batches in stored order."""
    federation = toy("fedas", sizes=SIZES, hp={"align_epochs": 2, "align_lr": 0.05}, **PLAIN)
    run(federation, 3)
    w0 = initial(federation)
    body, own, in_head = w0[:12], [w0, w0], np.arange(21) >= 12
    for t in range(3):
        sent, traces = [], []
        for i in range(2):
            x, y = local_data(SIZES, i)
            prototypes = class_means(own[i], x, y)

            def distance(v: Tensor, bx: Tensor, by: Tensor, known: dict[int, Array] = prototypes) -> Tensor:
                labels, total = by.argmax(1), torch.zeros(())
                for c in set(labels.tolist()):
                    total = total + ((features(v, bx[labels == c]) - torch.tensor(known[c])) ** 2).mean()
                return total

            w = np.concatenate([body, own[i][12:]])
            for batch in local_batches(SIZES, t, i, epochs=2, stream=1):
                w = np.where(in_head, w, descend_on(w, iter([batch]), distance, lr=0.05))
            own[i] = w = descend_on(w, local_batches(SIZES, t, i), plain)
            steps = steps_per_epoch(len(x), BATCH, batch_statistics=False)
            at = batches(Feed(order="cyclic"), len(x), max(SIZES), steps, t, i)
            traces.append(sum((gradient(w, x[k], y[k]) ** 2).sum() for k in at))
            sent.append(w[:12])
        body = np.average(sent, axis=0, weights=traces)
    for i, found in personal(federation).items():
        near(found, own[i])
    near(federation.server.state["body"].weights, body)


def test_the_trace_counts_a_last_batch_of_one_sample_with_batchnorm() -> None:
    """Nine samples in batches of four: the last one's gradient is part of the sum, with frozen running statistics."""
    federation = toy("fedas", sizes=[9], hp={"align_epochs": 0}, model="test_norm", batch_size=4)
    sent = []
    aggregate = federation.method.aggregate
    federation.method.aggregate = lambda server, messages: [sent.extend(messages), aggregate(server, messages)][1]  # type: ignore[method-assign]
    federation.advance()
    w, data = federation.clients[0].state["personal"], toy_data()
    trace = 0.0
    for at in (range(4), range(4, 8), range(8, 9)):
        x, y = torch.from_numpy(data.x[list(at)]).double(), torch.from_numpy(data.y[list(at)])

        def mean_loss(weights: Tensor, x: Tensor = x, y: Tensor = y) -> Tensor:
            return torch.nn.functional.cross_entropy(Forward()(w.with_weights(weights), x, stats="frozen"), y)

        trace += float(torch.func.grad(mean_loss)(w.weights).square().sum())
    assert sent[0].weight == pytest.approx(trace, rel=1e-9)


@pytest.mark.parametrize(("epochs", "fisher", "same"), [(0, False, True), (1, False, False), (0, True, False)])
def test_without_its_parts_it_is_fedper(epochs: int, fisher: bool, same: bool) -> None:
    """Its common body, with BatchNorm, up to rounding; with either part it is not."""
    fedper = toy("fedper", model="test_norm")
    run(fedper, 3)
    federation = toy("fedas", hp={"align_epochs": epochs, "align_lr": 0.1, "fisher": fisher}, model="test_norm")
    run(federation, 3)
    for i, w in fedper.evaluator.personal(3).items():
        body = federation.server.state["body"]
        assert torch.allclose(body.weights, w.without("head").weights, rtol=1e-10, atol=1e-12) == same
        head = federation.clients[i].state["personal"].part("head").weights
        if same:
            torch.testing.assert_close(head, w.part("head").weights, rtol=1e-10, atol=1e-12)
