"""FD against Algorithm 1 of its paper in plain torch, sample by sample, with clients that lack classes or stay away."""

from typing import Any

import numpy as np
import pytest
import torch

from bench.data import Dataset
from bench.method import Feed
from tests.engine.problems import personal, toy, toy_partition
from tests.methods.by_autograd import logits
from tests.methods.reference import BATCH, LR, PLAIN, Array, batches, initial, near

LAM, EPOCHS, CLIENTS, ROUNDS = 0.7, 2, 4, 5
HELD = ((0, 0, 0, 0, 1, 1), (0, 0, 1, 2, 2), (1, 1, 0, 1), (0, 1, 0))
"""Labels by client: only the second has class 2, and the last two lack it."""
SIZES = [len(labels) for labels in HELD]


def samples() -> Dataset:
    """Noisy points around one centre per class; the last four are the test part."""
    y = np.array([c for held in HELD for c in held] + [0, 1, 2, 0])
    rng = np.random.default_rng(4)
    x = (rng.normal(size=(3, 4))[y] + 0.5 * rng.normal(size=(len(y), 4))).astype(np.float32)
    return Dataset("labels", x, y, len(y) - 4, 3, (0.0,) * 4, (1.0,) * 4, "labels")


DATA = samples()


Means = dict[int, tuple[int, Array]]
"""Of one class: the round in which a client last sent its mean output, and the mean."""


def target(sent: Means, client: int, teachers: str) -> Array | None:
    """The mean over the teachers among the clients of the last round in which a client had the class."""
    newest = max((t for t, _ in sent.values()), default=-1)
    means = [mean for i, (t, mean) in sent.items() if t == newest and (teachers == "all" or i != client)]
    return sum(means) / len(means) if means else None  # type: ignore[return-value]


def local_round(w: Array, client: int, t: int, targets: list[Array | None], outputs: str) -> tuple[Array, Any]:
    """The client's weights after SGD, and by class the outputs of its samples, each before the step of its batch."""
    place, seen = toy_partition(DATA, SIZES).train[client], ([], [], [])  # type: ignore[var-annotated]
    for at in batches(Feed(), len(place), max(SIZES), EPOCHS * -(-len(place) // BATCH), t, client):
        leaf, total = torch.tensor(w, requires_grad=True), torch.zeros(())
        for sample in place[at]:
            c, z = int(DATA.y[sample]), logits(leaf, torch.from_numpy(DATA.x[sample]).double()[None])[0]
            opinion = torch.log_softmax(z, 0)
            total = total - opinion[c] / len(at)
            if (mean := targets[c]) is not None:
                q = torch.tensor(mean)
                total = total - LAM / len(at) * ((torch.softmax(q, 0) if outputs == "logits" else q) @ opinion)
            seen[c].append((z if outputs == "logits" else torch.softmax(z, 0)).detach().numpy())
        (slope,) = torch.autograd.grad(total, leaf)
        w = w - LR * slope.numpy()
    return w, [np.mean(rows, 0) if rows else None for rows in seen]


@pytest.mark.parametrize("teachers", ["others", "all"])
@pytest.mark.parametrize("outputs", ["probabilities", "logits"])
def test_follows_algorithm_1(outputs: str, teachers: str) -> None:
    """Half of the clients take part in a round."""
    hp = {"lam": LAM, "outputs": outputs, "teachers": teachers}
    ours = toy("fd", sizes=SIZES, data=DATA, hp=hp, participation=0.5, **PLAIN | {"epochs": EPOCHS})
    weights = [initial(ours)] * CLIENTS
    sent: list[Means] = [{}, {}, {}]
    absent = set()
    for t in range(ROUNDS):
        ours.advance()
        selected = ours.server.selected
        absent |= set(range(CLIENTS)) - set(selected)
        answers = {
            i: local_round(weights[i], i, t, [target(sent[c], i, teachers) for c in range(3)], outputs)
            for i in selected
        }
        for i, (w, means) in answers.items():
            weights[i] = w
            for c in range(3):
                if means[c] is not None:
                    sent[c] = {**sent[c], i: (t, means[c])}
    assert absent
    for i, tested in personal(ours).items():
        near(tested, weights[i])
    for i in range(CLIENTS):
        down = ours.method.broadcast(ours.server, ours.clients.copy(i))
        for c in range(3):
            q = target(sent[c], i, teachers)
            assert float(down["known"][c]) == (q is not None)
            near(down["target"][c], np.zeros(3) if q is None else q)
