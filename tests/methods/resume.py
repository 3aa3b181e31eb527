"""A run that is stopped in the middle and goes on elsewhere."""

from typing import Any

from tests.engine.problems import everything, run, toy


def assert_resumes(method: str, settings: dict[str, Any], at: int, total: int) -> None:
    """Stopped after `at` versions and restored into a fresh federation, it ends with the bytes of a run in one go."""
    straight, first, second = (toy(method, **settings) for _ in range(3))
    run(straight, total)
    run(first, at)
    second.restore(*first.state())
    scores = run(second, total - at)
    assert scores.metrics == straight.evaluate().metrics
    assert second.ledger == straight.ledger
    expected, found = everything(straight), everything(second)
    assert len(expected) == len(found)
    for a, b in zip(expected.values(), found.values(), strict=True):
        assert a.numpy().tobytes() == b.numpy().tobytes()
