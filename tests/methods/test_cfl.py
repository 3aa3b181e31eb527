"""CFL: where it splits and how, and where it is FedAvg."""

import itertools

import numpy as np
import torch

from methods.cfl import split
from tests.engine.problems import personal, remarks, run, toy
from tests.methods.reference import PLAIN, descend, initial, local_batches, near

SIZES = [9, 5, 7, 6]


def best_halves(updates: np.ndarray) -> set[frozenset[int]]:
    """By trying all: the two halves whose largest cosine across is smallest."""
    unit = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    everyone = frozenset(range(len(updates)))
    found = []
    for size in range(1, len(updates)):
        for half in itertools.combinations(sorted(everyone), size):
            rest = everyone - set(half)
            found.append((max(float(unit[i] @ unit[j]) for i in half for j in rest), frozenset(half), rest))
    _, half, rest = min(found, key=lambda one: one[0])
    return {half, rest}


def test_the_split_is_the_best_of_all() -> None:
    """On random updates of six clients."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        updates = rng.normal(size=(6, 3))
        halves = split(torch.from_numpy(updates), 0.0)
        found = {frozenset(i for i in range(6) if halves[i] == half) for half in (0, 1)}
        assert found == best_halves(updates)


def test_a_split_has_two_halves_where_all_are_equally_far_apart() -> None:
    """As clients are whose updates are 0."""
    for updates in (torch.zeros(2, 3), torch.zeros(5, 3), torch.eye(4)):
        assert set(split(updates, 0.0)) == {0, 1}


def test_halves_that_may_be_of_one_distribution_stay_together() -> None:
    """The best halves of 0, 10 and 70 degrees are 60 apart, where sqrt((1 - cos 60) / 2) = sin 30 = 0.5."""
    angles = torch.tensor([0.0, 10.0, 70.0]).double().deg2rad()
    updates = torch.stack([angles.cos(), angles.sin()], 1) * torch.tensor([[1.0], [5.0], [0.2]])
    assert split(updates, 0.49) == [0, 0, 1]
    assert split(updates, 0.51) == [0, 0, 0]


def test_follows_the_algorithm() -> None:
    """One forced split in the first round; then each half is a FedAvg of its own."""
    federation = toy("cfl", sizes=SIZES, hp={"eps1": 1e9, "eps2": 0.0}, **PLAIN)
    w = initial(federation)
    sent = [descend(w, local_batches(SIZES, 0, i)) for i in range(4)]
    halves = best_halves(np.stack(sent) - w)
    run(federation, 1)
    assert {frozenset(ids) for ids in federation.server.state["clusters"]} == halves
    average = np.average(sent, axis=0, weights=SIZES)
    for found in personal(federation).values():
        near(found, average)
    federation.method.hp = type(federation.method.hp)(eps1=0.0)  # no further split
    run(federation, 1)
    second = [descend(average, local_batches(SIZES, 1, i)) for i in range(4)]
    for half in halves:
        ids = sorted(half)
        expected = np.average([second[i] for i in ids], axis=0, weights=[SIZES[i] for i in ids])
        for i in ids:
            near(personal(federation)[i], expected)


def test_without_splits_it_is_fedavg() -> None:
    """Bit for bit with statistics."""
    federation, fedavg = toy("cfl", hp={"eps1": 0.0}, model="test_norm"), toy("fedavg", model="test_norm")
    run(federation, 3)
    run(fedavg, 3)
    assert all(torch.equal(w, fedavg.server.state["model"].weights) for w in personal(federation).values())
    assert remarks(federation)


def test_every_threshold_counts() -> None:
    """No split while the mean still moves, none when nobody has anything left to gain or halves are near each other."""
    for hp, clusters in (
        ({"eps1": 1e9, "eps2": 0.0}, 2),
        ({"eps1": 1e9, "eps2": 1e9}, 1),
        ({"eps1": 0.0}, 1),
        ({"eps1": 1e9, "eps2": 0.0, "gamma_max": 1.0}, 1),
    ):
        federation = toy("cfl", sizes=SIZES, hp=hp)
        run(federation, 1)
        assert len(federation.server.state["clusters"]) == clusters
