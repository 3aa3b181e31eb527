"""Both executors compute the same results, for every method and in every corner case."""

from typing import Any

import pytest
import torch

from bench.method import Everyone
from bench.plugin import METHODS
from tests.engine.problems import METHOD_NAMES, ONE_OF_A_KIND, everything, run, toy

CORNERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "partial participation": {"participation": 0.5},
    "batch statistics, aggregated": {"model": "test_norm"},
    "batch statistics, local": {"model": "test_norm", "batchnorm": "local", "participation": 0.5},
    "weight decay, nesterov, clip": {"weight_decay": 0.01, "nesterov": True, "grad_clip": 0.5},
    "steps": {"steps": 5},
    "unselected clients": {"participation": 0.5, "unselected": "broadcast"},
}
FOR_ALL = {"batch statistics, aggregated", "weight decay, nesterov, clip", "unselected clients"}
"""`make test-all` tries all methods in these cases, and one method of each kind in the others; `make slow` tries all.
`make test` tries FedAvg in all cases and one method of each kind in `QUICK`; the conformance suite, the plain one."""
QUICK = "batch statistics, local"


def fits(method: str, corner: str) -> bool:
    """Whether the method may have the settings: rounds that select nobody have nobody unselected."""
    kind = METHODS.get(method)
    return "unselected" not in CORNERS[corner] or isinstance(kind(kind.Hyper()).trigger, Everyone)


def marks(method: str, corner: str) -> list[pytest.MarkDecorator]:
    """Which tests are not quick."""
    if method in ONE_OF_A_KIND:
        return [] if method == "fedavg" or corner == QUICK else [pytest.mark.long]
    return [pytest.mark.long if corner in FOR_ALL else pytest.mark.slow]


@pytest.mark.parametrize(
    ("method", "corner"),
    [
        pytest.param(name, corner, marks=marks(name, corner))
        for name in METHOD_NAMES
        for corner in CORNERS
        if fits(name, corner)
    ],
)
def test_executors_agree(method: str, corner: str) -> None:
    """The results differ by at most 1e-9 in float64, and the cohort never falls back to one client at a time."""
    found = {}
    for executor in ("sequential", "cohort"):
        federation = toy(method, executor=executor, **CORNERS[corner])
        scores = run(federation, 3)
        assert not federation.engine.fallbacks
        found[executor] = everything(federation), scores
    (a, scores_a), (b, scores_b) = found["sequential"], found["cohort"]
    assert a.keys() == b.keys()
    moved = 0.0
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-9, atol=1e-9)
        moved += float(a[name].abs().sum())
    assert moved > 0
    assert [{**r, "value": round(r["value"], 7)} for r in scores_a.metrics] == [
        {**r, "value": round(r["value"], 7)} for r in scores_b.metrics
    ]
