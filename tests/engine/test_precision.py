"""`precision`: what it changes and what it does not."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from bench.engine.backends import backends
from bench.engine.predict import Output
from bench.federation.federation import Federation
from bench.model_call import Arithmetic, Forward
from bench.params import Params
from tests.engine.problems import run, toy


def after(precision: str, executor: str = "cohort", model: str = "test_norm") -> tuple[Federation, Params]:
    """A federation after a step, and its generic model."""
    options: dict[str, Any] = {"dtype": "float32", "precision": precision, "model": model, "steps": 1}
    federation = toy("fedavg", executor=executor, **options)
    run(federation, 1)
    return federation, federation.server.state["model"]


@pytest.mark.parametrize("model", ["test_linear", "test_norm"])
def test_bf16_is_near_float32_in_both_executors(model: str) -> None:
    exact = after("fp32", model=model)[1].weights
    cohort, sequential = (after("bf16", executor, model)[1].weights for executor in ("cohort", "sequential"))
    assert cohort.dtype == torch.float32
    assert 1e-5 < float((cohort - exact).abs().max()) < 0.02  # one step; bfloat16 has 8 bits
    torch.testing.assert_close(cohort, sequential, rtol=0, atol=0.02)


def test_on_a_cpu_tf32_is_float32_and_says_so() -> None:
    federation, found = after("tf32")
    assert torch.equal(found.weights, after("fp32")[1].weights)
    assert federation.path["precision"] == "tf32"
    assert any("tf32 changes nothing on a CPU" in warning for warning in federation.warnings)


def outputs(federation: Federation, w: Params) -> dict[str, Tensor]:
    """All outputs of two equal models on two samples each; they are evaluated in lanes if the executor has some."""
    tasks = [(w, np.array([40, 41])), (w, np.array([42, 43]))]
    kinds: tuple[Output, ...] = ("logits", "probabilities", "features", "directions")
    return {kind: torch.cat(federation.engine.outputs("train", tasks, kind)) for kind in kinds}


def by_hand(federation: Federation, w: Params, precision: str) -> dict[str, Tensor]:
    """The same outputs by the function that a loss calls in training."""
    model, x = Forward(arithmetic=Arithmetic(precision)), federation.engine.device_data.local.x[40:44]
    logits, features = model(w, x, stats="frozen"), model.features(w, x, stats="frozen")
    directions = functional.normalize(features, dim=1)
    return {"logits": logits, "probabilities": logits.softmax(1), "features": features, "directions": directions}


@pytest.mark.parametrize("model", ["test_linear", "test_norm"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_models_are_evaluated_in_the_precision_of_their_training(precision: str, model: str) -> None:
    federation, w = after(precision, "sequential", model)
    right, other = (
        by_hand(federation, w, one) for one in (("fp32", "bf16") if precision == "fp32" else ("bf16", "fp32"))
    )
    for kind, found in outputs(federation, w).items():
        assert found.dtype == torch.float32
        assert torch.equal(found, right[kind])
        assert not torch.equal(found, other[kind])


@pytest.mark.parametrize("model", [pytest.param("test_linear", marks=pytest.mark.long), "test_norm"])
@pytest.mark.parametrize("precision", [pytest.param("fp32", marks=pytest.mark.long), "bf16"])
def test_so_are_models_side_by_side(precision: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded or not. In lanes, numbers are rounded to bfloat16 at other places than in a model alone."""
    monkeypatch.setattr(backends, "_RECORD_AFTER", 2)
    federation, w = after(precision, "cohort", model)
    exact = by_hand(federation, w, "fp32")
    found = [outputs(federation, w) for _ in range(5)]
    for kind, rows in found[0].items():
        assert all(torch.equal(rows, later[kind]) for later in found)
        assert rows.dtype == torch.float32
        least, most = (1e-4, 0.02) if precision == "bf16" else (0, 1e-6)
        assert least <= float((rows - exact[kind]).abs().max()) <= most
    assert any(function._recorded for function in federation.engine._trainer.steps.used)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_scores_are_computed_in_float32(precision: str) -> None:
    """Of outputs in bfloat16, too: a loss in bfloat16 would have an error of up to 0.4 %."""
    federation, w = after(precision, "sequential", "test_norm")
    data = federation.engine.device_data
    test = torch.from_numpy(data.partition.global_test)
    logits = Forward(arithmetic=Arithmetic(precision))(w, data.local.x[test], stats="frozen")
    loss = float(functional.cross_entropy(logits.double(), data.local.y[test]))
    found = [row for row in federation.evaluate().metrics if (row["metric"], row["on"]) == ("gm", "global")]
    assert {row["quantity"]: row["value"] for row in found if row["split"] == "test"} == {
        "accuracy": pytest.approx(float((logits.argmax(1) == data.local.y[test]).double().mean())),
        "loss": pytest.approx(loss, rel=1e-6),
    }
