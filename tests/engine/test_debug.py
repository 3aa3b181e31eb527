"""The executor `debug` computes the bytes of `sequential`, recorded or not."""

from typing import Any

import pytest
import torch

from bench.engine.backends import backends
from tests.engine.problems import ONE_OF_A_KIND, everything, run, toy

CORNERS: dict[str, dict[str, Any]] = {
    "plain": {"participation": 0.5},
    "batch statistics": {"model": "test_norm"},
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "corner"),
    [(method, "plain") for method in sorted(ONE_OF_A_KIND)] + [("fedbuff", "batch statistics")],
)
def test_debug_has_the_bytes_of_sequential(method: str, corner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_RECORD_AFTER", 1)
    plain, debug = (toy(method, executor=executor, **CORNERS[corner]) for executor in ("sequential", "debug"))
    assert run(debug, 3).metrics == run(plain, 3).metrics
    assert all(torch.equal(t, everything(plain)[name]) for name, t in everything(debug).items())
    assert debug.warnings == plain.warnings
    assert not debug.engine._trainer.steps.used
    assert (debug.engine.backend, debug.engine.steps_are, debug.path["executor"]) == ("eager", "as planned", "debug")
