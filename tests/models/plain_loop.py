"""FedAvg and Ditto as a plain loop of torch, whose networks draw from the streams of the federation's steps."""

import json
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from bench.data import Dataset
from bench.engine.batches import DrawAddress, draw_batches, network_keys, steps_per_epoch
from bench.federation.federation import Federation
from bench.models.factory import _constructed
from bench.network_draws import NetworkDraws
from bench.requests import Feed
from tests.engine.problems import assert_same, everything, run

Named = dict[str, Tensor]


def check_draws(make: Callable[[str], Federation], data: Dataset, sizes: list[int], tolerance: float = 1e-9) -> None:
    """Check that two rounds are the same in a cohort, alone, after a resume (to the byte), and in a plain loop.

    Args:
        make: a fresh federation with an executor, of `fedavg` or `ditto`.
        data: its data set, of which each client has the next `sizes[i]` training samples.
        tolerance: of numbers that are added up in another order.
    """
    cohort, other = make("cohort"), make("sequential")
    run(cohort, 2), run(other, 2)
    assert cohort.warnings == other.warnings == []
    state = everything(cohort)
    assert_same(everything(other), state, tolerance)
    other = make("cohort")  # the memory holds two federations at a time: networks may be large
    run(other, 1)
    tensors, plain = other.state()
    other = make("cohort")
    other.restore(tensors, json.loads(json.dumps(plain)))
    run(other, 1)
    assert_same(everything(other), state, 0)
    models = {0: cohort.evaluator.generic(2, {})}
    if cohort.settings.method == "ditto":
        models |= {1 + i: model for i, model in cohort.evaluator.personal(2).items()}
    del tensors, state, other
    expected = by_hand(make("cohort"), data, sizes)
    for i, model in models.items():
        assert model is not None
        assert_same(model.tensors(), expected[i], tolerance)


def by_hand(start: Federation, data: Dataset, sizes: list[int]) -> list[Named]:
    """Two rounds: the generic model, and the clients' own, which differ from it for Ditto."""
    generic = start.server.initial_model().tensors()
    personal = [generic] * len(sizes)
    for round in range(2):
        trained = []
        for i in range(len(sizes)):
            x, y = (torch.from_numpy(a[sum(sizes[:i]) : sum(sizes[: i + 1])]) for a in (data.x, data.y))
            address = DrawAddress(seed=start.settings.seed, round=round, owner=i, training=1)
            trained.append(train(start, x, y, generic, address, generic, 0.0))
            personal[i] = train(start, x, y, personal[i], address._replace(training=2), generic, 1.0)
        shares = [n / sum(sizes) for n in sizes]
        pairs = list(zip(shares, trained, strict=True))
        generic = {name: torch.stack([share * t[name] for share, t in pairs]).sum(0) for name in generic}
    return [generic, *personal]


def train(
    cell: Federation, x: Tensor, y: Tensor, begin: Named, address: DrawAddress, center: Named, lam: float
) -> Named:
    """Train a network for an epoch, pulled towards a centre."""
    settings = cell.settings
    net = _constructed(settings.model, tuple(x.shape[1:]), 3, settings.model_options, ("plain",)).train()
    net.to(dtype := getattr(torch, settings.dtype)).load_state_dict(begin, strict=False)
    normed = any(isinstance(layer, _BatchNorm) for layer in net.modules())
    optimizer = torch.optim.SGD(net.parameters(), settings.lr, momentum=settings.momentum)
    steps = settings.epochs * steps_per_epoch(len(x), settings.batch_size, batch_statistics=normed)
    batches = draw_batches(Feed(), len(x), settings.batch_size, steps, address, batch_statistics=normed)
    keys = torch.from_numpy(network_keys(address, steps))
    for places, size, key in zip(batches.positions, batches.sizes, keys, strict=True):
        at = torch.from_numpy(places[:size])
        optimizer.zero_grad()
        with NetworkDraws(key):
            loss = functional.cross_entropy(net(x[at].to(dtype)), y[at])
        for name, p in net.named_parameters():
            loss = loss + lam / 2 * (p - center[name]).square().sum() if lam else loss
        loss.backward()
        optimizer.step()
    state = net.state_dict()
    return {name: state[name].detach().clone() for name in begin}
