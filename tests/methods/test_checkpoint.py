"""Every method goes on from a checkpoint in the middle of a run and ends with the bytes of an undisturbed run."""

import json
from typing import Any

import pytest

from tests.engine.problems import METHOD_NAMES, ONE_OF_A_KIND, everything, run, toy, toy_data

SETTINGS: dict[str, Any] = {"model": "test_norm", "batchnorm": "local", "participation": 0.6, "dtype": "float32"}
QUICK = {"fedbuff", "scd"}
MARKS = {name: [pytest.mark.long if name in ONE_OF_A_KIND else pytest.mark.slow] for name in METHOD_NAMES}
CASES = [pytest.param(name, {}, marks=[] if name in QUICK else MARKS[name]) for name in METHOD_NAMES]
CASES += [
    pytest.param("fedrod", {"head": "hyper"}, marks=pytest.mark.long),
    pytest.param("feddyn", {"eval_model": "avg_all"}, marks=pytest.mark.long),
]
"""The last two keep further state; without statistics of batches, the conformance suite resumes every method."""


@pytest.mark.parametrize(("method", "hp"), CASES)
def test_goes_on_with_the_same_bytes(method: str, hp: dict[str, Any]) -> None:
    """Two versions, a checkpoint through JSON into a fresh federation, two more; scores and ledger too."""
    public = toy_data(samples=12, seed=9)
    whole, first, second = (toy(method, hp=hp, public=public, **SETTINGS) for _ in range(3))
    run(first, 2)
    tensors, plain = first.state()
    second.restore(tensors, json.loads(json.dumps(plain)))
    expected, found = run(whole, 4), run(second, 2)
    a, b = everything(whole), everything(second)
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].numpy().tobytes() == b[name].numpy().tobytes(), name
    assert whole.state()[1] == second.state()[1]
    assert (found.metrics, found.clients) == (expected.metrics, expected.clients)
    assert whole.ledger == second.ledger
