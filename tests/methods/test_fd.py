"""FD against Algorithm 1 of its paper in plain torch, sample by sample, with clients that lack classes or stay away."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from bench.data import Dataset, Partition
from bench.federation.federation import Federation
from bench.method import Feed, Message
from bench.settings import Settings
from tests.engine.problems import personal, run, toy
from tests.methods.by_autograd import logits
from tests.methods.reference import BATCH, LR, SEED, Array, batches, initial, near

LAM, EPOCHS, CLIENTS, ROUNDS = 0.7, 2, 4, 5
HELD = ((0, 0, 0, 0, 1, 1), (0, 0, 1, 2, 2), (1, 1, 0, 1), (0, 1, 0))
"""Labels by client: only the second has class 2, and the last two lack it."""


CUTS = np.cumsum([0, *map(len, HELD)])
TRAIN = tuple(np.arange(a, b) for a, b in itertools.pairwise(CUTS))


def samples() -> Dataset:
    """Noisy points around one centre per class; the last four are the test part."""
    y = np.array([c for held in HELD for c in held] + [0, 1, 2, 0])
    rng = np.random.default_rng(4)
    x = (rng.normal(size=(3, 4))[y] + 0.5 * rng.normal(size=(len(y), 4))).astype(np.float32)
    return Dataset("labels", x, y, len(y) - 4, 3, (0.0,) * 4, (1.0,) * 4, "labels")


DATA = samples()


def federation(hp: dict[str, Any], participation: float) -> Federation:
    """Four clients with the labels of `HELD`."""
    none, test = np.zeros(0, np.int64), np.arange(CUTS[-1], len(DATA.y))
    partition = Partition(TRAIN, (none,) * CLIENTS, tuple(np.array_split(test, CLIENTS)), test)
    settings = Settings(
        method="fd", hp=hp, model="test_linear", dtype="float64", clients=CLIENTS, rounds=ROUNDS, seed=SEED,
        epochs=EPOCHS, batch_size=BATCH, lr=LR, momentum=0.0, participation=participation,
    )  # fmt: skip
    return Federation(settings, dataset=DATA, partition=partition, public=None)


Means = dict[int, tuple[int, Array]]
"""Of one class: the round in which a client last sent its mean output, and the mean."""


def target(sent: Means, client: int, teachers: str) -> Array | None:
    """The mean over the teachers among the clients of the last round in which a client had the class."""
    newest = max((t for t, _ in sent.values()), default=-1)
    means = [mean for i, (t, mean) in sent.items() if t == newest and (teachers == "all" or i != client)]
    return sum(means) / len(means) if means else None  # type: ignore[return-value]


def local_round(w: Array, client: int, t: int, targets: list[Array | None], outputs: str) -> tuple[Array, Any]:
    """The client's weights after SGD, and by class the outputs of its samples, each before the step of its batch."""
    place, seen = TRAIN[client], ([], [], [])  # type: ignore[var-annotated]
    for at in batches(Feed(), len(place), max(map(len, HELD)), EPOCHS * -(-len(place) // BATCH), t, client):
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


@pytest.mark.parametrize("participation", [pytest.param(1.0, marks=pytest.mark.long), 0.5])
@pytest.mark.parametrize("teachers", ["others", "all"])
@pytest.mark.parametrize("outputs", ["probabilities", "logits"])
def test_follows_algorithm_1(outputs: str, teachers: str, participation: float) -> None:
    ours = federation({"lam": LAM, "outputs": outputs, "teachers": teachers}, participation)
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
    assert bool(absent) == (participation < 1)
    for i, tested in personal(ours).items():
        near(tested, weights[i])
    for i in range(CLIENTS):
        down = ours.method.broadcast(ours.server, ours.clients.copy(i))
        for c in range(3):
            q = target(sent[c], i, teachers)
            assert float(down["known"][c]) == (q is not None)
            near(down["target"][c], np.zeros(3) if q is None else q)


def answered(client: int, means: list[list[float]], seen: list[float]) -> Message:
    return Message(client, {"means": torch.tensor(means).double(), "seen": torch.tensor(seen).double()}, 1.0, 0)


def downloads(ours: Federation, client: int) -> tuple[list[list[float]], list[float]]:
    down = ours.method.broadcast(ours.server, ours.clients.copy(client))
    return down["target"].tolist(), down["known"].tolist()


def test_targets_by_hand() -> None:
    """The means are (sum - own) / (M - 1); the one client that has a class gets no target for it, the others its mean.

    A client that was not in the last round did not add to the sum, so that nothing of its own is left out.
    """
    ours = federation({}, 1.0)
    zero = [0.0, 0.0, 0.0]
    assert downloads(ours, 0) == ([zero] * 3, zero)
    ours.method.aggregate(
        ours.server,
        [
            answered(0, [[1.0, 0, 0], [0.5, 0.5, 0], zero], [1, 1, 0]),
            answered(1, [[0.5, 0.5, 0], zero, [0.0, 0, 1]], [1, 0, 1]),
            answered(2, [[0.0, 0, 1], zero, zero], [1, 0, 0]),
        ],
    )
    assert downloads(ours, 0) == ([[0.25, 0.25, 0.5], zero, [0, 0, 1]], [1, 0, 1])
    assert downloads(ours, 1) == ([[0.5, 0, 0.5], [0.5, 0.5, 0], zero], [1, 1, 0])
    assert downloads(ours, 3) == ([[0.5, 1 / 6, 1 / 3], [0.5, 0.5, 0], [0, 0, 1]], [1, 1, 1])
    ours.method.aggregate(ours.server, [answered(3, [[0.0, 1, 0], [0.25, 0.75, 0], zero], [1, 1, 0])])
    assert downloads(ours, 0) == ([[0, 1, 0], [0.25, 0.75, 0], [0, 0, 1]], [1, 1, 1])
    assert downloads(ours, 3) == ([zero, zero, [0, 0, 1]], [0, 0, 1])


def test_an_only_client_is_local() -> None:
    """It has no teacher."""
    alone, local = (toy(name, sizes=[9], batch_size=9) for name in ("fd", "local"))
    run(alone, 3)
    run(local, 3)
    torch.testing.assert_close(personal(alone)[0], personal(local)[0], rtol=1e-10, atol=1e-12)
    assert not alone.method.broadcast(alone.server, alone.clients.copy(0))["known"].any()


def test_mixes_architectures() -> None:
    ours = toy("fd", sizes=[9, 5], client_models=["test_norm", "test_linear"])
    run(ours, 2)
    assert len({w.spec.arch for w in ours.evaluator.personal(2).values()}) == 2
