"""The optimizer of a cell: on one client's batches it equals torch's own; and which requests use it."""

from typing import Any

import pytest
import torch

from bench.config.identity import cell_id
from bench.optim import SGD
from bench.params import NORMALISATION, Params, Spec
from bench.settings import Settings
from tests.engine.problems import generic, normed, personal, run, toy
from tests.methods.reference import PLAIN, initial, local_batches

SIZES = [9]


def by_torch(kind: Any, start: Any, rounds: int, **settings: Any) -> torch.Tensor:
    """The linear model trained by an optimizer of torch, which starts anew in every round."""
    w = torch.nn.Parameter(torch.tensor(start))
    for t in range(rounds):
        optimizer = kind([w], **settings)
        for x, target in local_batches(SIZES, t, 0):
            logits = torch.tensor(x) @ w[:12].view(3, 4).T @ w[12:].view(3, 3).T
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(logits, torch.tensor(target)).backward()
            optimizer.step()
    return w.detach()


@pytest.mark.parametrize(("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
@pytest.mark.parametrize("executor", ["cohort", "sequential"])
def test_it_is_torchs(name: str, kind: Any, executor: str) -> None:
    """With the cell's learning rate and weight decay."""
    optimizer = {"name": name, "betas": [0.7, 0.9], "eps": 1e-5}
    federation = toy("fedavg", sizes=SIZES, optimizer=optimizer, executor=executor, weight_decay=0.3, **PLAIN)
    run(federation, 2)
    expected = by_torch(kind, initial(federation), 2, lr=0.1, betas=(0.7, 0.9), eps=1e-5, weight_decay=0.3)
    torch.testing.assert_close(generic(federation), expected, rtol=1e-9, atol=1e-12)


def test_adam_and_adamw_differ_by_weight_decay_only() -> None:
    def after(name: str, decay: float) -> torch.Tensor:
        federation = toy("fedavg", optimizer=name, weight_decay=decay, momentum=0.0)
        run(federation, 2)
        return generic(federation)

    assert torch.equal(after("adam", 0.0), after("adamw", 0.0))
    assert not torch.allclose(after("adam", 0.3), after("adamw", 0.3))


def test_a_method_that_only_sets_the_rate_takes_it_too() -> None:
    """Ditto trains personalized models with `SGD(lr=...)`, which takes the cell's optimizer; SCAFFOLD's step asks
    for plain SGD."""
    settings: dict[str, Any] = {"optimizer": "adam", "momentum": 0.0}
    ditto, local = toy("ditto", hp={"lam": 0.0, "personal_lr": 0.1}, **settings), toy("local", **settings)
    run(ditto, 2)
    run(local, 2)
    for i, w in personal(local).items():
        assert torch.equal(personal(ditto)[i], w)
    plain, adam = toy("scaffold", momentum=0.0), toy("scaffold", **settings)
    run(plain, 2)
    run(adam, 2)
    assert torch.equal(generic(plain), generic(adam))
    assert SGD(lr=3.0).open
    assert not SGD(momentum=0.0).open


def test_sgd_spelt_out_is_the_same_cell() -> None:
    """Cells keep the ids that they had before optimizers could be chosen; another optimizer is another cell."""
    ids = [
        cell_id(Settings(method="fedavg", **given), "data")
        for given in ({}, {"optimizer": "sgd"}, {"optimizer": {"name": "sgd"}})
    ]
    assert len(set(ids)) == 1
    adam = [{"optimizer": "adam"}, {"optimizer": {"name": "adam", "eps": 1e-8}}]
    found = {cell_id(Settings(method="fedavg", **given), "data") for given in adam}
    assert len(found) == 1
    others = [{"optimizer": "adamw"}, {"optimizer": {"name": "adam", "eps": 1e-7}}]
    found |= {cell_id(Settings(method="fedavg", **given), "data") for given in others}
    assert len(found | set(ids)) == 4


def test_layers_are_found_by_type() -> None:
    """At any place and with any name; layers without tensors are not found."""
    with torch.device("meta"):
        net = torch.nn.Sequential()
        net.add_module("stem", torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2)))
        net.add_module("bn", torch.nn.Linear(2, 2))  # the name is of BatchNorm, the layer is not
        net.add_module("rest", torch.nn.Sequential(torch.nn.GroupNorm(1, 2), torch.nn.InstanceNorm2d(2)))
        net.add_module("last", torch.nn.LayerNorm(2))
    spec = Spec.of("odd", net)
    assert spec.of_type(*NORMALISATION) == ("stem.1", "rest.0", "last")
    assert spec.of_type(torch.nn.BatchNorm1d) == ()
    assert spec.part(("bn",)).of_type(torch.nn.LayerNorm) == ("last",)


def test_layers_by_type_make_up_the_model() -> None:
    with torch.device("meta"):
        spec = Spec.of("normed", normed((4,), 3))
    w = Params(torch.arange(float(spec.d)), torch.arange(float(spec.b)), spec)
    norm = spec.of_type(*NORMALISATION)
    assert {name.split(".")[0] for name in w.part(*norm).tensors()} == {"norm"}
    assert {name.split(".")[0] for name in w.without(*norm).tensors()} == {"inner", "head"}
    assert w.without(*norm).buffers.numel() == 0
