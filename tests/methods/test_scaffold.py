"""SCAFFOLD against Algorithm 1 as printed."""

import numpy as np
import pytest
import torch

from bench.federation.federation import Federation
from bench.method import Train, Trained, Upload
from methods.scaffold import Hyper, Scaffold
from tests.engine.problems import generic, run, toy
from tests.methods.reference import LR, PLAIN, gradient, initial, local_batches, near

SIZES = [9, 5, 7]  # 3, 2 and 2 steps an epoch


def controls(federation: Federation) -> torch.Tensor:
    """The clients' control variates, `[clients, d]`."""
    return torch.stack([federation.clients[i].state["control"] for i in federation.clients.ids])


@pytest.mark.parametrize("participation", [1.0, 0.67])
def test_follows_algorithm_1(participation: float) -> None:
    """Three clients, three rounds of a falling learning rate, with option II as printed."""
    hp = {"server_lr": 0.7}
    federation = toy("scaffold", sizes=SIZES, hp=hp, participation=participation, lr_decay=0.8, **PLAIN)
    x, c, c_i = initial(federation), np.zeros(21), [np.zeros(21)] * 3
    for t in range(3):
        run(federation, 1)
        eta, moves, changes = LR * 0.8**t, [], []
        for i in federation.server.selected:
            y, K = x, 0
            for batch in local_batches(SIZES, t, i):
                y, K = y - eta * (gradient(y, *batch) - c_i[i] + c), K + 1
            new = c_i[i] - c + (x - y) / (K * eta)
            moves.append(y - x)
            changes.append(new - c_i[i])
            c_i[i] = new
        x = x + 0.7 * np.mean(moves, axis=0)
        c = c + len(moves) / 3 * np.mean(changes, axis=0)
        near(generic(federation), x)
        near(federation.server.state["control"], c)
        near(controls(federation), np.stack(c_i))
    assert len(moves) == (3 if participation == 1 else 2)


@pytest.mark.parametrize(("decay", "clip"), [(0.3, None), (0.0, 0.2), (0.3, 0.2)])
def test_weight_decay_and_clipping_are_in_the_steps_only(decay: float, clip: float | None) -> None:
    """The corrected gradient is clipped; control variates are means of the plain gradients."""
    federation = toy("scaffold", sizes=SIZES, weight_decay=decay, grad_clip=clip, **PLAIN)
    run(federation, 2)
    x, c, c_i = initial(federation), np.zeros(21), [np.zeros(21)] * 3
    for t in range(2):
        sent, seen = [], []
        for i in range(3):
            y, gradients = x, []
            for batch in local_batches(SIZES, t, i):
                gradients.append(gradient(y, *batch))
                direction = gradients[-1] - c_i[i] + c
                if clip is not None:
                    direction = direction * min(1.0, clip / (np.linalg.norm(direction) + 1e-6))
                y = y - LR * (direction + decay * y)
            sent.append(y)
            seen.append(np.mean(gradients, axis=0))
        x, c, c_i = np.mean(sent, axis=0), np.mean(seen, axis=0), seen
    near(generic(federation), x)
    near(controls(federation), np.stack(c_i))


def test_all_selected_clients_count_the_same() -> None:
    """Whatever their numbers of samples; running statistics, too, and these know no server rate."""
    scaffold, fedavg = (
        toy(method, model="test_norm", momentum=0.0, hp=hp)
        for method, hp in (("scaffold", {"server_lr": 0.5}), ("fedavg", {}))
    )
    run(scaffold, 1)
    run(fedavg, 1)
    start, sent = scaffold.server.initial_model().weights, list(fedavg.local_models.values())
    equal = torch.stack([w.weights for w in sent]).mean(0)
    torch.testing.assert_close(generic(scaffold), (start + equal) / 2)
    buffers = torch.stack([w.buffers for w in sent]).mean(0)
    torch.testing.assert_close(scaffold.server.state["model"].buffers, buffers)
    assert not torch.allclose(buffers, fedavg.server.state["model"].buffers)


def test_a_client_without_steps_keeps_its_control() -> None:
    """And tells the server of no change."""
    federation, idle = toy("scaffold"), toy("scaffold", epochs=0)
    run(federation, 1)
    client, down = federation.clients[0], {name: federation.server.state[name] for name in ("model", "control")}
    before = client.state["control"]
    program = Scaffold(Hyper()).client_round(client, down)
    request = next(program)
    assert isinstance(request, Train)
    upload = program.send(Trained(request.values, {}, steps=0, loss=torch.zeros(())))
    assert isinstance(upload, Upload)
    assert torch.equal(client.state["control"], before)
    assert before.any()
    assert not upload.values["control_change"].any()
    run(idle, 1)
    torch.testing.assert_close(generic(idle), idle.server.initial_model().weights)
    assert not controls(idle).any()
