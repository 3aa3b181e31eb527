"""FedL2G against plain torch, which differentiates through the pseudo-training; warm-up; classes that clients have."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.federation.federation import Federation
from bench.method import Feed, Message
from bench.rng import generator
from tests.engine.problems import personal, run, toy
from tests.methods.by_autograd import features, logits, plain
from tests.methods.reference import LR, PLAIN, SEED, Array, batches, initial, local_data, near

SIZES, QUIZ = [9, 7], 0.4
HP = {"quiz": QUIZ, "warmup": 1, "server_lr": 2.0}


def positions(client: int) -> dict[str, Array]:
    """A client's study set and quiz set."""
    n = SIZES[client]
    held = np.zeros(n, bool)
    held[generator("holdout", SEED, client).permutation(n)[: int(QUIZ * n)]] = True
    return {"remainder": np.flatnonzero(~held), "holdout": np.flatnonzero(held)}


def read(feed: Feed, client: int, steps: int, round: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(inputs, one-hot labels) of batches."""
    x, y = local_data(SIZES, client)
    of = positions(client)[feed.samples]
    widest = max(len(positions(i)[feed.samples]) for i in range(len(SIZES)))
    for at in batches(feed, len(of), widest, steps, round, client):
        yield torch.tensor(x[of[at]]), torch.tensor(y[of[at]])


def guided(w: Tensor, v: Tensor, guide: str, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    out = logits(w, x) if guide == "logits" else features(w, x)
    return plain(w, x, y) + (out - y @ v).square().mean()


def reported(w: Array, vectors: Array, guide: str, client: int, round: int) -> Array:
    """The gradient of the quiz loss with respect to the vectors, through the step on the guided loss."""
    v, start = torch.tensor(vectors, requires_grad=True), torch.tensor(w, requires_grad=True)
    (study,) = read(Feed("remainder", stream=2), client, 1, round)
    (quiz,) = read(Feed("holdout", stream=1), client, 1, round)
    (slope,) = torch.autograd.grad(guided(start, v, guide, study), start, create_graph=True)
    (found,) = torch.autograd.grad(plain(start - LR * slope, *quiz), v)
    return np.asarray(found.numpy())


@pytest.mark.parametrize("guide", ["logits", "features"])
@pytest.mark.parametrize("clip", [100.0, 0.001])
def test_follows_the_algorithm(guide: str, clip: float) -> None:
    """Two clients, three rounds, the first of them for the vectors alone; the small norm is reached."""
    federation = toy("fedl2g", sizes=SIZES, hp=HP | {"guide": guide, "clip": clip}, **PLAIN)
    vectors = federation.server.state["vectors"].numpy()
    own = [initial(federation)] * 2
    run(federation, 3)
    for t in range(3):
        sent = []
        for i in range(2):
            steps = -(-len(positions(i)["remainder"]) // 4)
            for batch in read(Feed("remainder"), i, steps if t else 0, t):
                w = torch.tensor(own[i], requires_grad=True)
                (slope,) = torch.autograd.grad(guided(w, torch.tensor(vectors), guide, batch), w)
                own[i] = own[i] - LR * slope.numpy()
            sent.append(reported(own[i], vectors, guide, i, t))
        mean = np.zeros_like(vectors)
        for c in range(3):
            there = [slopes[c] for slopes in sent if slopes[c].any()]
            mean[c] = np.mean(there, axis=0) if there else 0.0
        norm = float(np.linalg.norm(mean))
        assert (norm > clip) == (clip < 1)
        vectors = vectors - 2.0 * mean * min(1.0, clip / (norm + 1e-6))
    near(federation.server.state["vectors"], vectors)
    for i, w in personal(federation).items():
        near(w, own[i])


def quiz_loss_after_study(federation: Federation, vectors: Array) -> float:
    """Mean over clients of the first round's quiz loss, after the pseudo-training of the initial model."""
    w, losses = torch.tensor(initial(federation), requires_grad=True), []
    for i in range(2):
        (study,) = read(Feed("remainder", stream=2), i, 1, 0)
        (quiz,) = read(Feed("holdout", stream=1), i, 1, 0)
        (slope,) = torch.autograd.grad(guided(w, torch.tensor(vectors), "logits", study), w)
        losses.append(plain(w - LR * slope, *quiz).item())
    return float(np.mean(losses))


def test_vectors_learn_to_guide() -> None:
    """What they are trained for becomes less, by as much as a step down its slope takes from it."""
    federation = toy("fedl2g", sizes=SIZES, hp=HP | {"server_lr": 0.01}, **PLAIN)
    before = federation.server.state["vectors"].numpy()
    run(federation, 1)
    moved = federation.server.state["vectors"].numpy() - before
    gain = quiz_loss_after_study(federation, before) - quiz_loss_after_study(federation, before + moved)
    assert gain > 0
    backwards = quiz_loss_after_study(federation, before - moved) - quiz_loss_after_study(federation, before)
    assert gain == pytest.approx(backwards, rel=1e-2)


def test_models_wait_for_the_vectors() -> None:
    federation = toy("fedl2g", sizes=SIZES, hp=HP | {"warmup": 2}, **PLAIN)
    vectors = federation.server.state["vectors"]
    run(federation, 2)
    assert not torch.equal(federation.server.state["vectors"], vectors)
    for w in personal(federation).values():
        near(w, initial(federation))
    run(federation, 1)
    assert not torch.equal(personal(federation)[0], torch.tensor(initial(federation)))


def test_a_vector_moves_by_the_clients_that_have_its_class() -> None:
    """The mean over those whose gradient is not 0; a vector that nobody looked at stays."""
    federation = toy("fedl2g", sizes=SIZES, hp=HP)
    before = federation.server.state["vectors"]
    rows = ([[1.0, 0, 0], [3, 3, 0], [0, 0, 0]], [[0.0, 0, 0], [1, 1, 2], [0, 0, 0]])
    messages = [Message(i, {"slopes": torch.tensor(r, dtype=torch.float64)}, 1.0, 0) for i, r in enumerate(rows)]
    federation.method.aggregate(federation.server, messages)
    expected = torch.tensor([[1.0, 0, 0], [2, 2, 1], [0, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(before - federation.server.state["vectors"], 2 * expected, rtol=1e-14, atol=1e-14)


def test_logits_of_any_architecture_and_features_of_one_width() -> None:
    mixed = {"client_models": ["test_norm", "test_linear"]}
    federation = toy("fedl2g", sizes=SIZES, hp=HP, **mixed)
    run(federation, 2)
    assert len({w.spec.arch for w in federation.evaluator.personal(2).values()}) == 2
    with pytest.raises(ValueError, match="needs features of one width"):
        run(toy("fedl2g", sizes=SIZES, hp=HP | {"guide": "features"}, **mixed), 1)
