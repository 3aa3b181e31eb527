"""FedAH against plain numpy."""

import numpy as np

from tests.engine.problems import generic, personal, run, toy
from tests.methods.reference import LR, PLAIN, Array, gradient, initial, local_batches, near

SIZES = [9, 5]


def mixed(own: Array, received: Array, mix: Array) -> Array:
    """The received body under the mixed head."""
    return np.concatenate([received[:12], own + (received[12:] - own) * mix])


def learned(mix: Array, own: Array, received: Array, t: int, i: int, eta: float) -> Array:
    """Two passes, entry by entry of the chain rule."""
    for x, y in local_batches(SIZES, t, i, epochs=2, stream=1):
        slope = gradient(mixed(own, received, mix), x, y)[12:] * (received[12:] - own)
        mix = np.clip(mix - eta * slope, 0, 1)
    return mix


def test_follows_the_algorithm() -> None:
    """Two clients, three rounds; the rate is large enough for some weights to leave 1, and to stop at 0."""
    eta = 60.0
    federation = toy("fedah", sizes=SIZES, hp={"eta": eta, "head_epochs": 2}, **PLAIN)
    run(federation, 3)
    model = initial(federation)
    heads, mixes = [model[12:]] * 2, [np.ones(9)] * 2
    for t in range(3):
        sent = []
        for i in range(2):
            mixes[i] = learned(mixes[i], heads[i], model, t, i, eta)
            w = mixed(heads[i], model, mixes[i])
            for x, y in local_batches(SIZES, t, i, epochs=2):
                w = w - LR * np.concatenate([np.zeros(12), gradient(w, x, y)[12:]])
            heads[i] = w[12:]
            for x, y in local_batches(SIZES, t, i):
                w = w - LR * np.concatenate([gradient(w, x, y)[:12], np.zeros(9)])
            sent.append(w)
        model = (9 * sent[0] + 5 * sent[1]) / 14
    near(generic(federation), model)
    for i in range(2):
        near(federation.clients[i].state["mix"], mixes[i])
        assert ((mixes[i] > 0) & (mixes[i] < 1)).any()
        assert (mixes[i] == 0).any()
    for i, w in personal(federation).items():
        now = learned(mixes[i], heads[i], model, 3, i, eta)
        near(w, mixed(heads[i], model, now))
