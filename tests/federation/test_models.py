"""Networks in the whole engine: clients side by side and one after another get the same weights."""

from typing import Any

import pytest
import torch

from bench.federation.federation import Federation
from bench.settings import Settings

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
def test_executors_agree(model: str, options: dict[str, Any], data: dict[str, Any]) -> None:
    cell = Settings(
        method="fedavg",
        model=model,
        model_options=options,
        partition="natural" if data is TEXT else "dirichlet",
        alpha=None if data is TEXT else 100,
        clients=4,
        participation=0.5,
        rounds=1,
        steps=2,
        dtype="float64",
        **data,
    )
    found = []
    for executor in ("sequential", "cohort"):
        federation = Federation.of(cell, executor=executor)  # type: ignore[arg-type]
        before = federation.server.state["model"].weights.clone()
        federation.advance()
        assert not federation.engine.fallbacks
        found.append(federation.state()[0])
        assert not torch.equal(federation.server.state["model"].weights, before)
    for key, value in found[0].items():
        torch.testing.assert_close(value, found[1][key], rtol=1e-9, atol=1e-9)
