"""SuPerFed against plain torch for both kinds of mixing."""

import math

import pytest
import torch

from bench.engine.batches import DrawAddress, draw_values
from bench.method import Normal
from tests.engine.problems import generic, personal, run, toy
from tests.methods.by_autograd import plain
from tests.methods.reference import BATCH, LR, PLAIN, SEED, initial, local_batches, near

SIZES = [9, 5, 7]
NU, MU, LAM = 0.7, 0.3, 0.4


@pytest.mark.parametrize("mixing", ["model", "layer"])
def test_follows_the_algorithm(mixing: str) -> None:
    """Three clients, four rounds; own models take part from the second one on."""
    hp = {"mixing": mixing, "start": 1, "nu": NU, "mu": MU, "lam": LAM}
    federation = toy("superfed", sizes=SIZES, hp=hp, **PLAIN)
    run(federation, 4)
    theta = torch.tensor(initial(federation))
    own = [torch.tensor(initial(federation, draw=i + 1)) for i in range(3)]
    cuts = [(0, 12), (12, 21)] if mixing == "layer" else [(0, 21)]
    for t in range(4):
        sent = []
        for i in range(3):
            data, w, v = list(local_batches(SIZES, t, i)), theta, own[i]
            drawn = draw_values(Normal((len(cuts),)), "point", BATCH, len(data), DrawAddress(SEED, t, i), 0)[:, 0]
            for (x, y), z in zip(data, drawn, strict=True):
                a, b = w.clone().requires_grad_(), v.clone().requires_grad_()
                lam = [0.5 * (1 + math.erf(float(one) / math.sqrt(2))) for one in z]
                mixed = torch.cat([(1 - s) * a[p:q] + s * b[p:q] for s, (p, q) in zip(lam, cuts, strict=True)])
                loss = plain(mixed if t else a, torch.tensor(x), torch.tensor(y)) + MU / 2 * ((a - theta) ** 2).sum()
                if t:
                    loss = loss + NU * torch.cosine_similarity(a, b, dim=0) ** 2
                g, h = torch.autograd.grad(loss, (a, b), allow_unused=True)
                w = w - LR * g
                v = v - LR * h if h is not None else v
            sent.append(w)
            own[i] = v
        theta = torch.stack([n * w for n, w in zip(SIZES, sent, strict=True)]).sum(0) / sum(SIZES)
    near(generic(federation), theta.numpy())
    for i, found in personal(federation).items():
        near(found, ((1 - LAM) * theta + LAM * own[i]).numpy())
