"""A run that is stopped in the middle and goes on elsewhere."""

import json
from typing import Any

from bench.federation.federation import Federation
from tests.engine.problems import everything, run, toy


def assert_resumes(method: str, settings: dict[str, Any], at: int, total: int) -> Federation:
    """Stopped after `at` versions and restored into a fresh federation, it ends with the bytes of a run in one go.

    What is restored comes from the host's memory and through JSON, as from a file. Returns the federation that went on.
    """
    straight, first, second = (toy(method, **settings) for _ in range(3))
    run(straight, total)
    run(first, at)
    tensors, plain = first.state()
    second.restore({name: tensor.cpu() for name, tensor in tensors.items()}, json.loads(json.dumps(plain)))
    scores, straight_scores = run(second, total - at), straight.evaluate()
    assert (scores.metrics, scores.clients) == (straight_scores.metrics, straight_scores.clients)
    assert second.ledger == straight.ledger
    assert second.privacy() == straight.privacy()
    assert second.state()[1] == straight.state()[1]
    expected, found = everything(straight), everything(second)
    assert len(expected) == len(found)
    for a, b in zip(expected.values(), found.values(), strict=True):
        assert a.cpu().numpy().tobytes() == b.cpu().numpy().tobytes()
    return second
