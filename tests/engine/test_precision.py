"""`precision`: what it changes and what it does not."""

from typing import Any

import pytest
import torch
from torch import Tensor

from bench.federation.federation import Federation
from tests.engine.problems import generic, run, toy


def after(precision: str, executor: str = "cohort", model: str = "test_norm") -> tuple[Federation, Tensor]:
    options: dict[str, Any] = {"dtype": "float32", "precision": precision, "model": model, "steps": 1}
    federation = toy("fedavg", executor=executor, **options)
    run(federation, 1)
    return federation, generic(federation)


@pytest.mark.parametrize("model", ["test_linear", "test_norm"])
def test_bf16_is_near_float32_in_both_executors(model: str) -> None:
    exact = after("fp32", model=model)[1]
    cohort, sequential = (after("bf16", executor, model)[1] for executor in ("cohort", "sequential"))
    assert cohort.dtype == torch.float32
    assert 1e-5 < float((cohort - exact).abs().max()) < 0.02  # one step; bfloat16 has 8 bits
    torch.testing.assert_close(cohort, sequential, rtol=0, atol=0.02)


def test_on_a_cpu_tf32_is_float32_and_says_so() -> None:
    federation, found = after("tf32")
    assert torch.equal(found, after("fp32")[1])
    assert federation.path["precision"] == "tf32"
    assert any("tf32 changes nothing on a CPU" in warning for warning in federation.warnings)
