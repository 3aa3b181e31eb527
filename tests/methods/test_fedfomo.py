"""FedFomo against its formulas, and what must not matter."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.data import Partition
from bench.federation.federation import Federation
from bench.method import METHODS, Client, Evaluate, Feed, Method, Params, Program, Server, State, Train, cross_entropy
from bench.rng import generator
from methods.fedfomo import FedFomo, Hyper
from tests.engine.problems import everything, generic, personal, run, toy
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


class Alone(Method):
    """Local on the remainder."""

    trains = "pm"
    holdout = 0.2

    def init_client(self, server: Server, client: Client) -> None:
        client.state["personal"] = server.initial_model()

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": client.state["personal"]}, loss=cross_entropy, feed=Feed(samples="remainder"))
        client.state["personal"] = trained["w"]

    def personal(self, server: Server, client: Client, down: State) -> Params:
        w: Params = client.state["personal"]
        return w


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name under which `Alone` is known to this test."""
    monkeypatch.setattr(METHODS, "_items", {**METHODS._items, "alone": Alone})
    return "alone"


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, marks=pytest.mark.long),
        {"model": "test_norm"},
        pytest.param({"participation": 0.5}, marks=pytest.mark.long),
    ],
)
def test_without_models_it_is_local_where_training_helps(alone: str, settings: dict[str, Any]) -> None:
    """On the remainder, at a learning rate at which every epoch helps on the hold-out split; with models it is not."""
    settings = {"lr": 0.01, "momentum": 0.0, **settings}
    federation, other = toy("fedfomo", hp={"models": 0}, **settings), toy(alone, **settings)
    run(federation, 6)
    run(other, 6)
    helped = [i for i in federation.clients.ids if went_on(federation, i)]
    assert helped
    for i in helped:
        torch.testing.assert_close(personal(federation)[i], personal(other)[i])
    with_models = toy("fedfomo", **settings)
    run(with_models, 6)
    assert not torch.equal(generic(with_models), generic(federation))


def went_on(federation: Federation, client: int) -> bool:
    """Whether the client's last training began with another model than the common initial one."""
    before: Params = federation.clients[client].state["before"]
    return not torch.equal(before.weights, federation.server.initial_model().weights)


@pytest.mark.long
def test_worse_models_move_nothing_but_the_affinity(alone: str) -> None:
    """Their weights are negative: clipped for the model, not for the affinity."""
    federation, other = toy("fedfomo", hp=GREEDY, epochs=30), toy(alone, epochs=30)
    run(federation, 1)
    state = federation.server.state
    opposite = torch.tensor([1.0] * 12 + [-60.0] * 9, dtype=torch.float64)  # the head's scores of all classes reversed
    state["models"] = {n: w.with_weights(opposite * w.weights) for n, w in state["models"].items()}
    run(federation, 1)
    run(other, 2)
    helped = [i for i in federation.clients.ids if went_on(federation, i)]
    assert helped
    for i in helped:
        torch.testing.assert_close(personal(federation)[i], personal(other)[i])
    affinity = federation.server.state["affinity"]
    assert (affinity.diagonal() == 1).all()
    with_samples = [federation.clients.ids.index(i) for i in (0, 1, 4, 5)]
    for row in affinity[with_samples]:
        assert (row < 0).sum() == len(row) - 1


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


def test_a_client_with_nothing_to_judge_by_trains_alone(alone: str) -> None:
    """It has neither a hold-out split nor validation samples: no model is better than its own."""
    sizes = [4, 9, 12]
    federation, other = toy("fedfomo", sizes=sizes, hp=GREEDY), toy(alone, sizes=sizes)
    run(federation, 3)
    run(other, 3)
    affinity = federation.server.state["affinity"]
    assert affinity[0].tolist() == [1.0, 0.0, 0.0]
    assert (affinity[1:] != 0).any(1).all()
    found, expected = personal(federation), personal(other)
    assert torch.equal(found[0], expected[0])
    assert not torch.equal(found[1], expected[1])


def choices(federation: Federation, rounds: int) -> list[dict[int, list[int]]]:
    """After each round, whose models each client would receive."""
    found = []
    for _ in range(rounds):
        federation.advance()
        found.append({i: list(federation.clients.down(i)["models"]) for i in federation.clients.ids})
    return found


def test_exploration_has_an_address() -> None:
    """Others are sent than by affinity alone, the same in a second run, and looking changes nothing."""
    hp = {"models": 2, "explore": 0.7, "explore_decay": 0.0}
    first, second = toy("fedfomo", hp=hp), toy("fedfomo", hp=hp)
    found = choices(first, 4)
    before = {name: tensor.clone() for name, tensor in everything(first).items()}
    assert choices(second, 4) == found
    again = {i: list(first.clients.down(i)["models"]) for i in first.clients.ids}
    assert again == found[-1]
    assert all(torch.equal(tensor, before[name]) for name, tensor in everything(first).items())
    for sent in found:
        assert all(len(set(models) - {i}) == 2 for i, models in sent.items())
    assert len({str(sent) for sent in found}) == 4
    assert found[0] != choices(toy("fedfomo", hp={"models": 2, **GREEDY}), 1)[0]


def test_exploration_dies_down() -> None:
    """By 0.5 in every round from 1: from the third round on none is left."""
    explore = {"models": 2, "explore": 1.0}
    fading, still = (toy("fedfomo", hp={**explore, "explore_decay": decay}) for decay in (0.5, 0.0))
    for round, greedy in ((1, False), (2, True)):
        for federation in (fading, still):
            federation.advance()
            federation.server.round = round
        server, best = fading.server, {}
        ids = fading.clients.ids
        for row, i in enumerate(ids):
            others = [n for n in ids if n != i]
            best[i] = sorted(others, key=lambda n: -float(server.state["affinity"][row, ids.index(n)]))[:2]
        assert ({i: list(fading.clients.down(i)["models"]) for i in ids} == best) == greedy
        assert {i: list(still.clients.down(i)["models"]) for i in ids} != best


def test_traffic() -> None:
    """Nothing down in the first round, then M models of that round, each counted once or per receiver. Up: the model
    and M weights."""
    federation = toy("fedfomo", hp={"models": 2, **GREEDY}, participation=0.8)  # four of five clients
    run(federation, 1)
    uploads = sorted(federation.server.state["models"])
    assert uploads == federation.server.selected
    run(federation, 1)
    sent = {n for i in federation.server.selected for n in [n for n in uploads if n != i][:2]}
    size = 8 * len(next(iter(personal(federation).values())))
    first, second = federation.ledger
    assert (first["up"], first["down_distinct"], first["down_receivers"]) == (4 * size, 0, 0)
    assert (second["up"], second["down_receivers"]) == (4 * (size + 2 * 8), 4 * 2 * size)
    assert second["down_distinct"] == len(sent) * size


def test_new_clients_combine_and_then_train() -> None:
    """They start from the common initial model; what they receive does not depend on the round."""
    federation = toy("fedfomo", hp={"models": 2}, new_clients=2, new_client_epochs=(0, 2), rounds=3)
    scores = run(federation, 3)
    assert {row["metric"] for row in scores.metrics} >= {"new0", "new2"}
    newcomer = federation.new[0]
    assert newcomer not in federation.server.sizes
    down = federation.clients.down(newcomer)
    models = list(down["models"].values())
    assert list(down["models"]) == federation.clients.ids[:2]
    program = federation.method.adapt(federation.server, federation.clients.copy(newcomer), down, 2)
    next(program)
    request = program.send((torch.tensor([1.0, 1.0, 0.5, 2.0]), torch.zeros(4)))
    assert (request.epochs, request.feed.samples) == (2, "remainder")
    torch.testing.assert_close(request.values["w"].weights, models[0].weights)
    program.close()


def test_no_models_is_announced() -> None:
    """Some are not."""
    assert "Local" in Hyper(models=0).degenerate()[0]
    assert Hyper().degenerate() == []
