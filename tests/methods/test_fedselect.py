"""FedSelect against its algorithm in numpy, FedAvg without growth, Local with full masks, and how masks grow."""

import numpy as np
import torch

from methods.fedselect import grown
from tests.engine.problems import personal, run, toy
from tests.methods.reference import LR, PLAIN, Array, gradient, initial, local_batches, near

SIZES = [9, 5, 7]


def trained(w: Array, moves: Array, t: int, i: int) -> Array:
    """An epoch of SGD on some of the weights."""
    for x, y in local_batches(SIZES, t, i):
        w = w - LR * moves * gradient(w, x, y)
    return w


def test_follows_the_algorithm() -> None:
    """Three clients, six rounds; masks grow after the third and the fifth, by half of what is left."""
    federation = toy("fedselect", sizes=SIZES, hp={"rate": 0.5, "every": 2, "limit": 0.6}, **PLAIN)
    run(federation, 6)
    shared = initial(federation)
    own, before = [shared] * 3, [shared] * 3
    masks, kept = [np.zeros(21)] * 3, [np.zeros(21)] * 3
    for t in range(6):
        used = list(masks)
        for i in range(3):
            w = np.where(kept[i] == 1, own[i], shared)
            w = trained(w, masks[i], t, i)
            own[i] = trained(w, 1 - masks[i], t, i)
            kept[i] = masks[i]
            if t > 0 and t % 2 == 0:
                mask, moved = masks[i].copy(), np.abs(own[i] - before[i])
                for part in (slice(0, 12), slice(12, 21)):
                    free = [k for k in range(part.start, part.stop) if mask[k] == 0]
                    if mask[part].mean() <= 0.6:
                        most = sorted(free, key=lambda k: -moved[k])
                        mask[most[: len(free) - round(0.5 * len(free))]] = 1
                masks[i], before[i] = mask, own[i]
        count = sum(1 - m for m in used)
        total = sum((1 - m) * w for m, w in zip(used, own, strict=True))
        shared = np.where(count > 0, total / np.maximum(count, 1), shared)
    for i, w in personal(federation).items():
        near(w, own[i])
        assert np.array_equal(federation.clients[i].state["mask"].numpy(), masks[i])
        assert 0 < masks[i].sum() < 21


def test_full_masks_are_local() -> None:
    """Bit for bit, with BatchNorm."""
    federation = toy("fedselect", hp={"rate": 0.0}, model="test_norm", sizes=SIZES)
    local = toy("local", model="test_norm", sizes=SIZES)
    for i in federation.clients.ids:
        state = federation.clients[i].state
        state["mask"] = state["kept"] = torch.ones_like(state["mask"])
    run(federation, 3)
    run(local, 3)
    for i, w in personal(federation).items():
        assert torch.equal(w, personal(local)[i])


def test_what_the_mean_of_equal_numbers_rounds_to_is_no_move() -> None:
    """Weights of pixels that are always zero: the first of them become own, whichever sums were rounded."""
    w = toy("fedavg", sizes=[5, 4], dtype="float32").server.initial_model()
    rounded = w.weights.abs() * torch.finfo(torch.float32).eps
    masks = []
    for odd in (0, 1):
        moved = rounded * (torch.arange(21) % 2 == odd)
        moved[2] = 0.1
        masks.append(grown(torch.zeros(21, dtype=torch.uint8), w, moved, rate=0.25, limit=0.8).tolist())
    assert masks[0] == masks[1]
    assert masks[0][:12] == [1, 1, 1] + [0] * 9


def test_a_mask_grows_by_what_moved_most_up_to_its_limit() -> None:
    """In tensors of weights only; own parameters stay own."""
    w = toy("fedavg", sizes=[5, 4], model="test_norm").server.initial_model()
    moved = torch.arange(63, dtype=torch.float64)
    mask = torch.zeros(63, dtype=torch.uint8)
    mask[0] = 1
    new = grown(mask, w, moved, 0.25, 0.8)
    parts = torch.split(new, [entry.size for entry in w.spec.params])
    assert [int(part.sum()) for part in parts] == [1 + 6, 0, 2, 0, 4, 0]  # weight and bias of inner, norm and head
    assert new[0] == 1
    assert new[18:24].all()  # the last of inner.weight
    assert torch.equal(grown(new, w, moved, 0.25, 0.2)[:24], new[:24])  # beyond the limit
