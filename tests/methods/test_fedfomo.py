"""FedFomo against its formulas, and what must not matter."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.data import Partition
from bench.federation.federation import Federation
from bench.method import Client, Evaluate, Feed, Params
from bench.rng import generator
from methods.fedfomo import FedFomo, Hyper
from tests.engine.problems import generic, personal, run, toy
from tests.methods import reference
from tests.methods.reference import PLAIN, SEED, Array, descend, initial, local_data, near

SIZES = [13, 12, 15]  # 2, 2 and 3 samples are held out; the others make three batches
GREEDY = {"explore": 0.0}
FAST = 1.0  # a learning rate at which some trainings do harm on the hold-out split


def divide(sizes: list[int], client: int) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """(inputs, one-hot labels) of a client's remainder and of its hold-out split."""
    n, (x, y) = sizes[client], local_data(sizes, client)
    held = np.zeros(n, np.bool_)
    held[generator("holdout", SEED, client).permutation(n)[: n // 5]] = True
    return (x[~held], y[~held]), (x[held], y[held])


def train(w: Array, sizes: list[int], round: int, client: int) -> Array:
    """An epoch of local SGD on the remainder."""
    (x, y), _ = divide(sizes, client)
    drawn = reference.batches(Feed(), len(x), max(sizes), -(-len(x) // reference.BATCH), round, client)
    return descend(w, ((x[at], y[at]) for at in drawn), lr=FAST)


@pytest.mark.parametrize("settings", [{"hp": {"models": 1}}, {"hp": {"models": 5}}, {"participation": 0.67}])
def test_follows_the_formulas(settings: dict[str, Any]) -> None:
    """Three clients, four rounds; one model received or all that there are, and two clients in a round."""
    hyper = {**GREEDY, **settings.get("hp", {"models": 1})}
    federation = toy("fedfomo", sizes=SIZES, **{**PLAIN, **settings, "lr": FAST, "hp": hyper})
    befores: list[Array] = [initial(federation)] * 3
    thetas: list[Array] = [initial(federation)] * 3
    affinity, uploads = np.eye(3), dict[int, Array]()
    signs, ranks = set[float](), set[tuple[int, ...]]()
    for t in range(4):
        federation.advance()
        sent: dict[int, Array] = {}
        added = np.zeros((3, 3))
        for i in federation.server.selected:
            others = [n for n in sorted(uploads) if n != i]
            best = sorted(others, key=lambda n: -affinity[i, n])[: hyper["models"]]
            ranks.add(tuple(others.index(n) for n in best))
            _, held = divide(SIZES, i)
            before = befores[i]
            loss = reference.cross_entropy(before, *held)
            candidates = [thetas[i], *(uploads[n] for n in best)]
            distances = [np.sqrt(((theta - before) ** 2).sum()) for theta in candidates]
            gains = [loss - reference.cross_entropy(theta, *held) for theta in candidates]
            weights = np.array([g / d if d else 0.0 for g, d in zip(gains, distances, strict=True)])
            added[i, best] = weights[1:]
            signs |= set(np.sign(weights).tolist())
            clipped = np.maximum(weights, 0)
            w = before if gains[0] < 0 else thetas[i]
            if clipped.sum() > 0:
                share = clipped / clipped.sum()
                w = before + sum(s * (theta - before) for s, theta in zip(share, candidates, strict=True))
            befores[i], sent[i] = w, train(w, SIZES, t, i)
        affinity += added
        uploads = sent
        thetas = [sent.get(i, thetas[i]) for i in range(3)]
        near(federation.server.state["affinity"], affinity)
        for i, w in personal(federation).items():
            near(w, thetas[i])
    assert signs == {-1.0, 0.0, 1.0}  # some weights help, some are clipped, and the first round has nothing to weigh
    assert len(ranks) > 1 + ("participation" not in settings)  # not always the first others
    near(generic(federation), np.average(thetas, axis=0, weights=SIZES))
    near(federation.method.relations(federation.server)["affinity"], affinity)


def combination(models: list[Params], losses: list[float]) -> tuple[Params, Tensor]:
    """What a client makes of the models: that before its last training, that after it, and those it has received."""
    client = Client(0, 10, torch.zeros(3), {"before": models[0], "personal": models[1]})
    program = FedFomo(Hyper()).combination(client, {"models": dict(enumerate(models[2:], start=1))})
    request = next(program)
    assert isinstance(request, Evaluate)
    assert (list(request.models), request.samples) == (models, "holdout")
    with pytest.raises(StopIteration) as stop:
        program.send((torch.tensor(losses, dtype=torch.float64), torch.zeros(len(losses))))
    found: tuple[Params, Tensor] = stop.value.value
    return found


def normed() -> Params:
    """A model value with running statistics."""
    return toy("fedfomo", model="test_norm").server.initial_model()


def test_running_statistics_move_by_the_weights_of_the_model() -> None:
    """Gains of 0.6 (by the own training), -0.3 and 0.2 at distances 2, 1 and 1: shares 3/5, 0 and 2/5."""
    start = normed()
    unit = torch.zeros_like(start.weights)
    unit[3] = 1
    buffers = [start.buffers + k for k in (1, 2, 4)]
    models = [Params(start.weights + k * unit, b, start.spec) for k, b in zip((2, 1, -1), buffers, strict=True)]
    found, weights = combination([start, *models], [1.0, 0.4, 1.3, 0.8])
    torch.testing.assert_close(weights, torch.tensor([-0.3, 0.2], dtype=torch.float64))
    torch.testing.assert_close(found.weights, start.weights + 0.8 * unit)
    torch.testing.assert_close(found.buffers, 0.6 * buffers[0] + 0.4 * buffers[2])


def test_a_model_at_no_distance_has_no_weight() -> None:
    """Whatever its loss (its running statistics may differ); the others keep theirs."""
    start = normed()
    twin = start.with_buffers(start.buffers + 1)
    found, weights = combination([start, start, start, twin], [1.0, 1.0, 1.0, 0.5])
    assert weights.tolist() == [0.0, 0.0]
    assert found is start
    better = start.with_weights(start.weights + 1)
    found, weights = combination([start, start, twin, better], [1.0, 1.0, 0.5, 0.5])
    assert weights[0] == 0
    assert weights[1] > 0
    torch.testing.assert_close(found.weights, better.weights)


@pytest.mark.parametrize(("own", "kept"), [(0.5, 1), (1.5, 0), (1.0, 1)])
def test_the_own_model_is_always_a_candidate(own: float, kept: int) -> None:
    """Beside a harmful one it is kept if it helped, and taken back if it did harm; if nothing tells, it stays."""
    start = normed()
    models = [start, start.with_weights(start.weights + 1), start.with_weights(start.weights - 1)]
    found, weights = combination(models, [1.0, own, 2.0])
    assert weights[0] < 0
    torch.testing.assert_close(found.weights, models[kept].weights)


def test_a_small_client_is_judged_by_its_validation_samples() -> None:
    """Fewer than five samples leave no fifth to hold out; without validation samples either, it trains alone."""
    federation = toy("fedfomo", sizes=[4, 9, 12], hp=GREEDY)
    data = federation.engine.device_data
    assert list(data.positions(0, "holdout")) == []
    data.partition = Partition(
        data.partition.train, (np.array([2, 3]), *data.partition.validation[1:]), data.partition.test, np.zeros(0, int)
    )
    assert list(data.positions(0, "holdout")) == [2, 3]
    assert len(data.positions(1, "holdout")) == 1


def test_a_client_with_nothing_to_judge_by_trains_alone() -> None:
    """It has neither a hold-out split nor validation samples: no model is better than its own."""
    settings: dict[str, Any] = {"sizes": [4, 12, 15], **PLAIN, "lr": FAST}
    federation, alone = (toy("fedfomo", hp={"models": models, **GREEDY}, **settings) for models in (5, 0))
    run(federation, 3)
    run(alone, 3)
    affinity = federation.server.state["affinity"]
    assert affinity[0].tolist() == [1.0, 0.0, 0.0]
    assert (affinity[1:] != 0).any(1).all()
    assert torch.equal(personal(federation)[0], personal(alone)[0])
    assert not torch.equal(personal(federation)[1], personal(alone)[1])


def choices(federation: Federation) -> dict[int, list[int]]:
    """Whose models each client would receive now."""
    return {i: list(federation.clients.down(i)["models"]) for i in federation.clients.ids}


def best(federation: Federation, models: int) -> dict[int, list[int]]:
    """Of largest affinity, each client's others."""
    ids, affinity = federation.clients.ids, federation.server.state["affinity"].tolist()
    rows = {i: dict(zip(ids, row, strict=True)) for i, row in zip(ids, affinity, strict=True)}
    return {i: sorted((n for n in ids if n != i), key=lambda n: -row[n])[:models] for i, row in rows.items()}


def test_exploration_has_an_address_and_dies_down() -> None:
    """By 0.5 a round from 1: the third round is greedy. A second run and a second look say the same."""
    hp = {"models": 2, "explore": 1.0, "explore_decay": 0.5}
    fading, again, still = (toy("fedfomo", hp=hp | more) for more in ({}, {}, {"explore_decay": 0.0}))
    for round in (1, 2):
        for federation in (fading, again, still):
            federation.advance()
            federation.server.round = round
        found = choices(fading)
        assert choices(fading) == choices(again) == found
        assert all(len(set(models) - {i}) == 2 for i, models in found.items())
        assert (found == best(fading, 2)) == (round == 2)
        assert choices(still) != best(still, 2)


def test_new_clients_combine_and_then_train() -> None:
    """They start from the common initial model; what they receive does not depend on the round."""
    federation = toy("fedfomo", hp={"models": 2}, new_clients=2, new_client_epochs=(0, 2), rounds=3)
    run(federation, 3)
    newcomer = federation.new[0]
    down = federation.clients.down(newcomer)
    models = list(down["models"].values())
    assert list(down["models"]) == federation.clients.ids[:2]
    program = federation.method.adapt(federation.server, federation.clients.copy(newcomer), down, 2)
    next(program)
    request = program.send((torch.tensor([1.0, 1.0, 0.5, 2.0]), torch.zeros(4)))
    assert (request.epochs, request.feed.samples) == (2, "remainder")
    torch.testing.assert_close(request.values["w"].weights, models[0].weights)
    program.close()
