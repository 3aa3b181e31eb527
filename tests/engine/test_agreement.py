"""Executors compute the same results: every method with statistics of batches, some of each kind in other cases.

The conformance suite compares all three executors for every method without such statistics.
"""

from typing import Any

import pytest
import torch

from bench.federation.federation import Federation
from bench.settings import Executor, Settings
from tests.engine.problems import METHOD_NAMES, ONE_OF_A_KIND, assert_same, everything, run, toy

EXECUTORS: tuple[Executor, ...] = ("sequential", "cohort")
STATISTICS = "batch statistics, local"
CORNERS: dict[str, dict[str, Any]] = {
    "plain": {},
    STATISTICS: {"model": "test_norm", "batchnorm": "local", "participation": 0.5},
    "batch statistics, aggregated": {"model": "test_norm"},
    "weight decay, nesterov, clip": {"weight_decay": 0.01, "nesterov": True, "grad_clip": 0.5},
    "steps": {"steps": 5},
    "unselected clients": {"participation": 0.5, "unselected": "broadcast"},
}
NOBODY_UNSELECTED = ("fedbuff", "unselected clients")


def marks(method: str, corner: str) -> list[pytest.MarkDecorator]:
    """FedAvg is quick in all cases, and one method of each kind with statistics."""
    quick = method == "fedavg" or (method in ONE_OF_A_KIND and corner == STATISTICS)
    return [] if quick else [pytest.mark.long]


@pytest.mark.parametrize(
    ("method", "corner"),
    [
        pytest.param(name, corner, marks=marks(name, corner))
        for name in METHOD_NAMES
        for corner in (CORNERS if name in ONE_OF_A_KIND else [STATISTICS])
        if (name, corner) != NOBODY_UNSELECTED
    ],
)
def test_executors_agree(method: str, corner: str) -> None:
    """The results differ by at most 1e-9 in float64, and the cohort never falls back to one client at a time."""
    sequential, cohort = (toy(method, executor=executor, **CORNERS[corner]) for executor in EXECUTORS)
    scores = [run(federation, 3).metrics for federation in (sequential, cohort)]
    assert cohort.engine.fallbacks == []
    assert_same(everything(sequential), everything(cohort))
    assert any(tensor.any() for tensor in everything(cohort).values())
    for one, other in zip(*scores, strict=True):
        assert one == {**other, "value": pytest.approx(one["value"], abs=1e-7)}


def test_debug_has_the_bytes_of_sequential_with_batch_statistics() -> None:
    plain, debug = (toy("fedbuff", executor=executor, model="test_norm") for executor in ("sequential", "debug"))
    assert run(debug, 3).metrics == run(plain, 3).metrics
    assert_same(everything(debug), everything(plain), tolerance=0)
    assert (debug.engine.backend, debug.engine.steps_are, debug.path["executor"]) == ("eager", "as planned", "debug")


TEXT = {"dataset": "markov", "dataset_options": {"speakers": 4, "samples": 24, "length": 6, "letters": 5}}


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "options", "data"),
    [
        ("transformer", {"width": 8, "heads": 2}, TEXT),
        ("vit_tiny", {"width": 8, "heads": 2, "layers": 2}, {"dataset": "digits"}),
        ("resnet18_gn", {"groups": 2}, {"dataset": "digits"}),
        ("mobilenet_v3_small", {}, {"dataset": "digits"}),
    ],
)
def test_executors_agree_on_networks(model: str, options: dict[str, Any], data: dict[str, Any]) -> None:
    split: dict[str, Any] = {"partition": "natural"} if data is TEXT else {"partition": "dirichlet", "alpha": 100}
    common: dict[str, Any] = {"clients": 4, "participation": 0.5, "rounds": 1, "steps": 2, "dtype": "float64"}
    cell = Settings(method="fedavg", model=model, model_options=options, **common, **split, **data)
    both = [Federation.of(cell, executor=executor) for executor in EXECUTORS]
    for federation in both:
        before = federation.server.state["model"].weights.clone()
        federation.advance()
        assert not federation.engine.fallbacks
        assert not torch.equal(federation.server.state["model"].weights, before)
    assert_same(*map(everything, both))
