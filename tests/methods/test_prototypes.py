"""FedProto against its formula in plain torch, and heads made of prototypes."""

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.method import Message
from bench.model_call import Forward
from methods.fedproto import means_loss
from methods.prototypes import merged, nearest, pull_loss
from tests.engine.problems import assert_same_personal, personal, run, toy, toy_data
from tests.methods.by_autograd import Objective, descend_on, features, plain
from tests.methods.reference import PLAIN, Array, initial, local_batches, local_data, near

SIZES = [9, 5]
LAM = 0.7


def class_means(rows: Array, target: Array) -> tuple[Array, Array]:
    """Sample by sample."""
    total, count = np.zeros((3, 3)), np.zeros(3)
    for row, one_hot in zip(rows, target, strict=True):
        total[one_hot.argmax()] += row
        count[one_hot.argmax()] += 1
    return total / np.maximum(count, 1)[:, None], count


@pytest.mark.parametrize("average", ["samples", "clients"])
@pytest.mark.parametrize("distance", ["means", "samples"])
def test_fedproto_follows_the_formula(distance: str, average: str) -> None:
    """Two clients, three rounds, eq. 7 with the distances of eq. 8 or those of the authors' code, sample by sample.

    Prototypes are means over all samples of the clients, or of the clients' means.
    """

    def pull(rows: list[Tensor], prototype: Array) -> Tensor:
        center = torch.tensor(prototype)
        if distance == "means":
            return (torch.stack(rows).mean(0) - center).square().mean()
        return torch.stack([(row - center).square().mean() for row in rows]).sum()

    def objective(prototypes: Array, known: Array) -> Objective:
        def loss(v: Tensor, x: Tensor, y: Tensor) -> Tensor:
            total = plain(v, x, y)
            for c in range(3):
                rows = [features(v, row[None])[0] for row, one_hot in zip(x, y, strict=True) if one_hot[c]]
                if rows and known[c]:
                    total = total + LAM * pull(rows, prototypes[c]) / (1 if distance == "means" else len(x))
            return total

        return loss

    hp = {"lam": LAM, "predict": "head", "distance": distance, "average": average}
    federation = toy("fedproto", sizes=SIZES, hp=hp, **PLAIN)
    run(federation, 3)
    own = [initial(federation)] * 2
    prototypes, known = np.zeros((3, 3)), np.zeros(3, bool)
    data = [local_data(SIZES, i) for i in range(2)]
    for t in range(3):
        own = [descend_on(own[i], local_batches(SIZES, t, i), objective(prototypes, known)) for i in range(2)]
        z = [features(torch.tensor(w), torch.tensor(x)).numpy() for w, (x, _) in zip(own, data, strict=True)]
        pooled, count = class_means(np.concatenate(z), np.concatenate([y for _, y in data]))
        if average == "clients":
            each = [class_means(rows, y) for rows, (_, y) in zip(z, data, strict=True)]
            holders = sum((n > 0).astype(float) for _, n in each)
            pooled = sum(mean for mean, _ in each) / np.maximum(holders, 1)[:, None]
        prototypes, known = np.where(count[:, None] > 0, pooled, prototypes), known | (count > 0)
    for i, w in personal(federation).items():
        near(w, own[i])
    near(federation.server.state["prototypes"], prototypes)


def test_merged_by_hand() -> None:
    """Class 0 of both clients, 1 of one, 2 of none: that stays."""
    first = {"means": torch.tensor([[1.0, 0], [4, 4], [0, 0]]), "count": torch.tensor([3.0, 2, 0])}
    second = {"means": torch.tensor([[5.0, 8], [0, 0], [0, 0]]), "count": torch.tensor([1.0, 0, 0])}
    messages = [Message(i, values, 1.0, 0) for i, values in enumerate((first, second))]
    old, known = torch.full((3, 2), 9.0), torch.zeros(3)
    by_count, now = merged(old, known, messages)
    assert by_count.tolist() == [[2, 2], [4, 4], [9, 9]]
    assert now.tolist() == [1, 1, 0]
    assert merged(old, known, messages, equal=True)[0].tolist() == [[3, 4], [4, 4], [9, 9]]


def test_a_head_of_prototypes_finds_the_nearest_known_one() -> None:
    """Against distances computed one by one; class 1 has none, and never wins, where zeros would at times."""
    federation = toy("fedproto", hp={"predict": "prototype"}, model="test_norm")
    w = federation.server.initial_model()
    known = torch.tensor([1.0, 0, 1]).double()
    x = torch.from_numpy(toy_data().x).double()
    z = Forward().features(w, x, stats="frozen")
    prototypes = 2.5 * z[:3]
    prototypes[1] = 0
    assert 1 in Forward()(nearest(w, prototypes, torch.ones_like(known)), x, stats="frozen").argmax(1)
    found = Forward()(nearest(w, prototypes, known), x, stats="frozen")
    expected = [min((0, 2), key=lambda c: float((row - prototypes[c]).norm())) for row in z]
    assert found.argmax(1).tolist() == expected
    assert set(expected) == {0, 2}
    assert bool(found.isfinite().all())
    squared = (z.unsqueeze(1) - prototypes[[0, 2]]).square().sum(2)
    torch.testing.assert_close(found[:, [0, 2]], z.square().sum(1, keepdim=True) - squared)


def test_fedproto_is_tested_by_its_prototypes() -> None:
    """The bodies are those of the same run tested by heads."""
    by_head, by_prototype = (toy("fedproto", hp={"predict": p}, model="test_norm") for p in ("head", "prototype"))
    run(by_head, 2)
    run(by_prototype, 2)
    assert_same_personal(by_head, by_prototype)
    state = by_prototype.server.state
    for i, w in by_prototype.evaluator.personal(2).items():
        torch.testing.assert_close(w.tensors()["head.weight"], 2 * state["prototypes"])
        own = by_prototype.clients[i].state["personal"]
        assert torch.equal(w.without("head").weights, own.without("head").weights)


def test_what_prototypes_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match=r"one linear layer with a bias, which test_linear.* has not"):
        toy("fedproto", hp={"predict": "prototype"}).advance()
    with pytest.raises(ValueError, match=r"features of one width: test_norm.* has 6, the cell's 3"):
        toy("fedproto", sizes=SIZES, client_models=["test_linear", "test_norm"]).advance()


@pytest.mark.parametrize(("method", "loss"), [("fedproto", means_loss), ("fedtgp", pull_loss)])
def test_new_clients_train_like_the_others(method: str, loss: object) -> None:
    """From their initial model, pulled to the received prototypes, by which they are tested."""
    federation = toy(
        method, hp={"predict": "prototype"}, model="test_norm", new_clients=1, new_client_epochs=(0, 2), rounds=2
    )
    scores = run(federation, 2)
    assert {row["metric"] for row in scores.metrics} >= {"new0", "new2"}
    newcomer = federation.clients.copy(federation.new[0])
    down = federation.method.broadcast(federation.server, newcomer)
    assert down["known"].any()
    program = federation.method.adapt(federation.server, newcomer, down, 2)
    request = next(program)
    assert torch.equal(request.values["w"].weights, newcomer.state["personal"].weights)
    assert (request.loss, request.epochs, request.context) == (loss, 2, down)
    with pytest.raises(StopIteration) as end:
        program.send(request.values)
    assert torch.equal(end.value.value.weights, nearest(request.values["w"], down["prototypes"], down["known"]).weights)
