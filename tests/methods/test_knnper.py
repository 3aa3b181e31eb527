"""kNN-Per: votes against scikit-learn's neighbours, and how much the vote counts."""

import numpy as np
import pytest
import torch

from bench.federation.federation import Federation
from bench.model_call import Forward
from bench.settings import Settings
from tests.engine.problems import generic, run, toy, toy_partition
from tests.later import Later
from tests.methods.reference import DATA, PLAIN, Array, logits, softmax

neighbors = Later("sklearn.neighbors")

SIZES = [13, 12, 9]
LEAST = np.exp(0.9 * np.log(np.finfo(float).tiny))  # of a probability whose logarithm is taken


def expected(w: Array, train: Array, x: Array, share: float, k: int, scale: float) -> Array:
    """Probabilities `[samples, classes]` at positions of the toy data."""
    keys, z = (DATA.x[at].astype(float) @ w[:12].reshape(3, 4).T for at in (train, x))
    distances, places = neighbors.NearestNeighbors(n_neighbors=min(k, len(train))).fit(keys).kneighbors(z)
    vote = np.zeros((len(x), 3))
    for i, (far, at) in enumerate(zip(distances, places, strict=True)):
        weights = np.exp(-(far**2) / (3 * scale))
        for weight, j in zip(weights / weights.sum(), at, strict=True):
            vote[i, DATA.y[train[j]]] += weight
    return share * vote + (1 - share) * softmax(logits(w, DATA.x[x].astype(float)))


@pytest.mark.parametrize(("share", "k"), [(1.0, 3), (0.3, 3), (0.6, 100), (0.0, 3)])
def test_the_nearest_vote(share: float, k: int) -> None:
    """A client may have fewer samples than k; without a vote the probabilities are FedAvg's."""
    federation = toy("knnper", sizes=SIZES, hp={"share": share, "k": k, "scale": 0.2}, **PLAIN)
    run(federation, 2)
    w = generic(federation).numpy()
    partition = federation.device_data.partition
    for i, model in federation.evaluator.personal(2).items():
        x = torch.from_numpy(DATA.x[partition.test[i]]).double()
        found = Forward()(model, x, stats="frozen").exp().numpy()
        p = expected(w, partition.train[i], partition.test[i], share, k, 0.2)
        np.testing.assert_allclose(found, p, rtol=1e-8, atol=1e-12)
        assert (p == 0).any() == (share == 1)


def test_the_share_is_chosen_by_validation() -> None:
    """Of a grid, the most accurate; of equals, that with the smallest loss. No test sample is looked at."""
    part = toy_partition(DATA, SIZES, validation=4)
    settings = Settings(
        method="knnper", hp={"k": 3}, model="test_linear", dtype="float64", lr=0.1, batch_size=4, epochs=1,
        clients=3, seed=3,
    )  # fmt: skip
    federation = Federation(settings, dataset=DATA, partition=part, public=None)
    run(federation, 2)
    w = generic(federation).numpy()
    chosen = []
    for i, model in federation.evaluator.personal(2).items():
        at = part.validation[i]
        scores = []
        for j in range(11):
            p = expected(w, part.train[i], at, j / 10, 3, 1.0)
            right = p[np.arange(len(at)), DATA.y[at]]
            scores.append(((p.argmax(1) == DATA.y[at]).mean(), np.log(np.maximum(right, LEAST)).mean()))
        chosen.append(float(model.tensors()["share"]))
        assert chosen[-1] == max(range(11), key=lambda j: scores[j]) / 10
    assert len(set(chosen)) > 1


def test_without_validation_samples_half_counts() -> None:
    federation = toy("knnper", sizes=SIZES)
    run(federation, 1)
    assert {float(w.tensors()["share"]) for w in federation.evaluator.personal(1).values()} == {0.5}


def test_a_new_client_needs_its_samples_only() -> None:
    """However many epochs it may train."""
    federation = toy("knnper", sizes=SIZES, hp={"share": 1.0}, new_clients=1, new_client_epochs=[0, 3], rounds=1)
    scores = run(federation, 1)
    figures = {
        r["metric"]: r["value"]
        for r in scores.metrics
        if r["quantity"] == "loss" and r["split"] == "test" and r["mean"] == "equal"
    }
    new, partition = federation.new[0], federation.device_data.partition
    at = partition.test[new]
    p = expected(generic(federation).numpy(), partition.train[new], at, 1.0, 10, 1.0)
    loss = -np.log(np.maximum(p[np.arange(len(at)), DATA.y[at]], LEAST)).mean()
    np.testing.assert_allclose([figures["new0"], figures["new3"]], [loss, loss], rtol=1e-8)
