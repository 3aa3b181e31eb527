"""FedDyn against the paper's form where some clients are absent, and what each evaluated model is."""

import numpy as np
import torch

from tests.engine.problems import generic, run, toy
from tests.methods.reference import LR, PLAIN, gradient, initial, local_batches, near

SIZES, ALPHA = [9, 5, 7], 0.4


def test_follows_algorithm_1() -> None:
    """Two of three clients in each of three rounds, in the paper's form with g_i and h; h is the mean of all g_i."""
    federation = toy("feddyn", sizes=SIZES, hp={"alpha": ALPHA}, participation=0.67, **PLAIN)
    theta, h, g = initial(federation), np.zeros(21), [np.zeros(21)] * 3
    for t in range(3):
        run(federation, 1)
        sent = []
        for i in federation.server.selected:
            local = theta
            for x, y in local_batches(SIZES, t, i):
                local = local - LR * (gradient(local, x, y) - g[i] + ALPHA * (local - theta))
            g[i] = g[i] - ALPHA * (local - theta)
            sent.append(local)
        h = h - ALPHA * sum(one - theta for one in sent) / 3
        theta = np.mean(sent, axis=0) - h / ALPHA
        np.testing.assert_allclose(h, np.mean(g, axis=0), atol=1e-12)
    assert len(sent) == 2
    near(generic(federation), theta)


def test_evaluated_models() -> None:
    """The broadcast model, the mean of the selected clients' models, or that of all clients' last ones."""
    found = {}
    for name in ("cloud", "avg_selected", "avg_all"):
        found[name] = toy("feddyn", hp={"eval_model": name}, participation=0.4)
        last = dict.fromkeys(found[name].clients.ids, found[name].server.initial_model().weights)
        for _ in range(3):
            run(found[name], 1)
            selected = found[name].server.selected
            last |= {i: found[name].local_models[i].weights for i in selected}
    assert len({one.server.state["model"].weights.numpy().tobytes() for one in found.values()}) == 1
    torch.testing.assert_close(generic(found["cloud"]), found["cloud"].server.state["model"].weights)
    torch.testing.assert_close(generic(found["avg_selected"]), torch.stack([last[i] for i in selected]).mean(0))
    torch.testing.assert_close(generic(found["avg_all"]), torch.stack(list(last.values())).mean(0))


def test_running_statistics_have_no_drift() -> None:
    """They are the plain mean over the selected clients, so that a variance stays positive."""
    federation = toy("feddyn", model="test_norm")
    run(federation, 2)
    sent = torch.stack([w.buffers for w in federation.local_models.values()])
    torch.testing.assert_close(federation.server.state["model"].buffers, sent.mean(0))
