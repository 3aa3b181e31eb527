"""Settings that take other branches of a method run alike in both executors and after a checkpoint; further names."""

from typing import Any

import pytest

from bench.federation.federation import Federation
from bench.method import METHODS, Hyperparameters, Method, Server
from methods.variants import variant
from tests.engine.problems import assert_same, everything, run, toy, toy_data
from tests.methods.resume import assert_resumes

CORNERS: dict[str, dict[str, Any]] = {
    "unequal clients, partial participation": {"participation": 0.5},
    "batch statistics, aggregated": {"model": "test_norm", "participation": 0.5},
    "batch statistics, local": {"model": "test_norm", "batchnorm": "local"},
}

CASES: dict[str, dict[str, Any]] = {
    "apfl-fixed": {"method": "apfl", "hp": {"adaptive": False}},
    "dsfl-mixed": {"method": "dsfl", "client_models": ("test_norm", "test_linear")},
    "ktpfl-mixed": {"method": "ktpfl", "client_models": ("test_norm", "test_linear"), "hp": {"distil_batch": 4}},
    "fedmd-mixed": {"method": "fedmd", "client_models": ("test_norm", "test_linear"), "hp": {"subset": 7}},
    "fedmd-from-equal": {"method": "fedmd", "hp": {"pretrain_epochs": 0}},  # the first scores differ by rounding
    "perfedavg-fo": {"method": "perfedavg", "hp": {"variant": "fo"}},
    "comet-mixed": {"method": "comet", "client_models": ("test_linear", "test_norm")},
    "fedavg-fedasync": {"method": "fedavg", "server": {"name": "fedasync", "concurrency": 3}},
    "ditto-fedbuff": {"method": "ditto", "server": {"name": "fedbuff", "buffer": 2, "concurrency": 3}},
    "fedprox-fedopt": {"method": "fedprox", "server": {"name": "fedopt"}},
    "fedprox-momentum": {"method": "fedprox", "server": {"name": "momentum"}},
    "fedala-share": {"method": "fedala", "hp": {"share": 0.5}},
    "flash-epochs": {"method": "flash", "hp": {"epochs": 3}},
    "pfedfda-one-sample": {"method": "pfedfda", "sizes": [13, 1, 4]},
    **{
        f"{method}-late": {"method": method, "stragglers": {0: (1, 0), 1: 3}}
        for method in ("lga", "plga", "fedasync_mix", "perfedavg_async")
    },
}


def build(case: dict[str, Any], executor: str = "cohort") -> Federation:
    """A federation with a public set, whether the method needs one or not."""
    return toy(**{"executor": executor, "public": toy_data(samples=15, seed=9), **case})


@pytest.mark.long
@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_executors_agree(case: dict[str, Any], corner: str) -> None:
    """To 1e-9 in float64, without a fall-back to the loop."""
    sequential, cohort = (build({**CORNERS[corner], **case}, executor) for executor in ("sequential", "cohort"))
    scores = [run(federation, 3).metrics for federation in (sequential, cohort)]
    assert cohort.engine.fallbacks == []
    assert_same(everything(sequential), everything(cohort))
    for one, other in zip(*scores, strict=True):
        assert one == {**other, "value": pytest.approx(one["value"], abs=1e-9)}


@pytest.mark.long
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_checkpoint_in_the_middle(case: dict[str, Any]) -> None:
    """State put into a fresh federation ends in the same bytes as an undisturbed run, clients in flight included."""
    settings = {"model": "test_norm", "participation": 0.5, "public": toy_data(samples=15, seed=9), **case}
    assert_resumes(settings.pop("method"), settings, at=2, total=4)


def test_a_body_with_super_is_refused_when_it_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """At import, not at the first cell: a copy would look for the base of a class that it is no instance of. A body
    that names its base may have several names."""

    class WithSuper(Method):
        def init(self, server: Server) -> None:
            super().init(server)

    class WithoutSuper(Method):
        def init(self, server: Server) -> None:
            Method.init(self, server)

    monkeypatch.setattr(METHODS, "_items", dict(METHODS._items))
    with pytest.raises(TypeError, match=r"WithSuper\.init has super\(\)"):
        variant("copied", WithSuper, Hyperparameters)
    variant("copied", WithoutSuper, Hyperparameters)
    assert METHODS.get("copied")
