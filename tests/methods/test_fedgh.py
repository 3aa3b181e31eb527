"""FedGH against its algorithm in plain torch."""

import numpy as np
import pytest
import torch

from tests.engine.problems import personal, run, toy
from tests.methods.by_autograd import descend_on, features, plain
from tests.methods.reference import LR, PLAIN, initial, local_batches, local_data, near, softmax

SIZES = [9, 5]


@pytest.mark.parametrize("server_lr", [None, 0.3])
def test_follows_the_algorithm(server_lr: float | None) -> None:
    """Two clients, three rounds; the server goes through the class means one by one, in the order of clients."""
    federation = toy("fedgh", sizes=SIZES, hp={"server_lr": server_lr}, **PLAIN)
    run(federation, 3)
    start = initial(federation)
    bodies, head = [start[:12]] * 2, start[12:].reshape(3, 3)
    for t in range(3):
        sent = []
        for i in range(2):
            w = descend_on(np.concatenate([bodies[i], head.ravel()]), local_batches(SIZES, t, i), plain)
            bodies[i] = w[:12]
            x, y = local_data(SIZES, i)
            z = features(torch.tensor(w), torch.tensor(x)).numpy()
            sent += [(z[y[:, c] == 1].mean(0), c) for c in range(3) if y[:, c].any()]
        for z, c in sent:
            error = softmax((head @ z)[None])[0] - np.eye(3)[c]
            head = head - (server_lr or LR) * np.outer(error, z)
    near(federation.server.state["head"].weights, head.ravel())
    for i, w in personal(federation).items():
        near(w, np.concatenate([bodies[i], head.ravel()]))
