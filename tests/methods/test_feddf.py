"""FedDF against Algorithm 1, where it is FedAvg, and what its teachers are."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bench.engine.device_data import SERVER
from bench.federation.federation import Federation
from bench.method import Feed, Message, Params, Predict, Train
from methods.feddf import FedDF, Hyper
from tests.engine.problems import generic, run, toy
from tests.methods.reference import (
    PLAIN,
    PUBLIC,
    PUBLIC_X,
    Array,
    batches,
    descend,
    gradient,
    initial,
    local_batches,
    logits,
    near,
    softmax,
)

SIZES = [9, 5, 7]
STEPS = 8  # two passes over twelve public samples in batches of five, and two batches of a third
HYPER = {"distil_steps": STEPS, "distil_batch": 5, "distil_lr": 0.05}


def after(method: str, rounds: int = 2, **settings: Any) -> Federation:
    federation = toy(method, public=PUBLIC, **settings)
    run(federation, rounds)
    return federation


def distilled(w: Array, target: Array, t: int) -> Array:
    """Adam with a cosine from 0.05 to 0; the gradient of the divergence is that of the cross-entropy."""
    first, second = np.zeros(21), np.zeros(21)
    for k, p in enumerate(batches(Feed("public", 5), len(PUBLIC_X), len(PUBLIC_X), STEPS, t, SERVER)):
        g = gradient(w, PUBLIC_X[p], target[p])
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
        lr = 0.05 * (1 + np.cos(np.pi * k / STEPS)) / 2
        w = w - lr * (first / (1 - 0.9 ** (k + 1))) / (np.sqrt(second / (1 - 0.999 ** (k + 1))) + 1e-8)
    return w


@pytest.mark.parametrize("participation", [1.0, 0.67])
def test_follows_algorithm_1(participation: float) -> None:
    """Three clients of unequal size, two rounds; teachers are those that took part."""
    federation = toy("feddf", sizes=SIZES, public=PUBLIC, hp=HYPER, participation=participation, **PLAIN)
    w = initial(federation)
    for t in range(2):
        run(federation, 1)
        chosen = federation.server.selected
        sent = [descend(w, local_batches(SIZES, t, i)) for i in chosen]
        start = np.average(sent, axis=0, weights=[SIZES[i] for i in chosen])
        w = distilled(start, softmax(np.mean([logits(one, PUBLIC_X) for one in sent], axis=0)), t)
        near(generic(federation), w)
        assert np.abs(w - start).max() > 0.01
    assert len(chosen) == (3 if participation == 1 else 2)


def test_one_client_is_its_own_teacher() -> None:
    """Its gradient is rounding noise, which Adam's eps silences in the first step; two clients move by the rate."""
    hp = {"distil_steps": 1, "distil_lr": 0.05}
    for sizes, moves in (([9], False), ([9, 5], True)):
        feddf, fedavg = after("feddf", 1, sizes=sizes, hp=hp), after("fedavg", 1, sizes=sizes)
        moved = float((generic(feddf) - generic(fedavg)).abs().max())
        assert moved > 0.049 if moves else moved < 1e-8


def test_one_client_keeps_its_predictions() -> None:
    """Later steps of Adam blow the noise up, but what the model says comes back as the rate falls."""
    away = {}
    for sizes in ([9], [9, 5]):
        feddf, fedavg = after("feddf", 1, sizes=sizes, hp={"distil_steps": 300}), after("fedavg", 1, sizes=sizes)
        said = [softmax(logits(generic(federation).numpy(), PUBLIC_X)) for federation in (fedavg, feddf)]
        away[len(sizes)] = np.abs(said[1] - said[0]).max()
    assert away[1] < 1e-6
    assert away[2] > 1e-2


def requests(weights: tuple[float, float], answers: list[torch.Tensor]) -> tuple[list[Predict], Train]:
    """What the server asks for when two models come in, and the outputs of these are the given ones."""
    federation = toy("feddf", public=PUBLIC)
    w = federation.server.initial_model()
    models = [w, w.with_weights(-2 * w.weights)]
    messages = [Message(i, {"model": m}, weight, 0) for i, (m, weight) in enumerate(zip(models, weights, strict=True))]
    program = FedDF(Hyper()).aggregate(federation.server, messages)
    looks = [next(program)]
    looks.append(program.send(answers[0]))
    train = program.send(answers[1])
    assert isinstance(train, Train)
    assert [look.w.weights.tolist() for look in looks] == [m.weights.tolist() for m in models]
    return looks, train


def teacher_of(train: Train) -> torch.Tensor:
    """What the server fits the student to, `[public samples, classes]`."""
    found = train.context["teacher"]
    assert isinstance(found, torch.Tensor)
    return found


def test_teacher_is_the_mean_of_logits() -> None:
    """Not of probabilities: there the sure teacher would count no more than the others."""
    answers = [torch.tensor([[8.0, 0.0, 0.0]]), torch.tensor([[0.0, 2.0, 0.0]])]
    looks, train = requests((1.0, 1.0), answers)
    assert {(look.samples, look.output) for look in looks} == {("public", "logits")}
    torch.testing.assert_close(teacher_of(train), torch.tensor([[4.0, 1.0, 0.0]]).log_softmax(1))
    of_probabilities = torch.stack(answers).softmax(2).mean(0)
    assert float(teacher_of(train).exp()[0, 0]) > 0.9
    assert float(of_probabilities[0, 0]) < 0.6


def test_sizes_count_for_the_start_only() -> None:
    answers = [torch.tensor([[8.0, 0.0, 0.0]]), torch.tensor([[0.0, 2.0, 0.0]])]
    (_, equal), (_, unequal) = requests((1.0, 1.0), answers), requests((9.0, 1.0), answers)
    assert torch.equal(teacher_of(equal), teacher_of(unequal))
    w, start = (one.values["w"] for one in (equal, unequal))
    assert isinstance(w, Params)
    assert isinstance(start, Params)
    first = toy("feddf").server.initial_model().weights  # the second model is -2 times it
    torch.testing.assert_close(w.weights, -first / 2)
    torch.testing.assert_close(start.weights, 0.7 * first)


def test_labels_of_the_public_set_do_not_matter() -> None:
    other = replace(PUBLIC, y=(PUBLIC.y + 1) % 3)
    found = []
    for public in (PUBLIC, other):
        federation = toy("feddf", public=public, hp=HYPER)
        run(federation, 2)
        found.append(generic(federation))
    assert torch.equal(*found)


def test_student_learns_its_ensemble() -> None:
    """With the paper's rate and schedule; local training is FedAvg's."""
    feddf, fedavg = after("feddf", 1, sizes=SIZES, hp={"distil_steps": 300}), after("fedavg", 1, sizes=SIZES)
    sent = [w.weights.numpy() for w in fedavg.local_models.values()]
    assert all(torch.equal(w.weights, fedavg.local_models[i].weights) for i, w in feddf.local_models.items())
    teacher = softmax(np.mean([logits(w, PUBLIC_X) for w in sent], axis=0))
    away = []
    for federation in (fedavg, feddf):
        student = softmax(logits(generic(federation).numpy(), PUBLIC_X))
        away.append(float((teacher * np.log(teacher / student)).sum(1).mean()))
    assert 0 < away[1] < 0.01 * away[0]


def test_students_running_statistics_move_with_public_data() -> None:
    """One step on all public samples, from the mean of the uploaded statistics; teachers keep theirs."""
    settings: dict[str, Any] = {"sizes": SIZES, "model": "test_norm"}
    feddf, fedavg = after("feddf", 1, hp={"distil_steps": 1}, **settings), after("fedavg", 1, **settings)
    start, found = (federation.server.state["model"].tensors() for federation in (fedavg, feddf))
    inner = torch.from_numpy(PUBLIC_X) @ start["inner.weight"].T + start["inner.bias"]
    expected = 0.9 * start["norm.running_mean"] + 0.1 * inner.mean(0)
    torch.testing.assert_close(found["norm.running_mean"], expected)
