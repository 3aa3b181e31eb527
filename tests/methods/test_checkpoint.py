"""Every method goes on from a checkpoint in the middle of a run and ends with the bytes of an undisturbed run."""

from typing import Any

import pytest

from tests.engine.problems import METHOD_NAMES, ONE_OF_A_KIND, toy_data
from tests.methods.resume import assert_resumes

QUICK = {"fedbuff", "scd"}
MARKS = {name: [pytest.mark.long if name in ONE_OF_A_KIND else pytest.mark.slow] for name in METHOD_NAMES}
CASES = [pytest.param(name, {}, marks=[] if name in QUICK else MARKS[name]) for name in METHOD_NAMES]
OTHER_STATE = [("fedrod", {"head": "hyper"}), ("feddyn", {"eval_model": "avg_all"}), ("spfl", {"gamma": 2}),
               ("fedkd", {"start": 0.5})]  # fmt: skip
"""Settings with which a method keeps further state; without statistics of batches, the conformance suite resumes every
method, after every round."""
CASES += [pytest.param(*case, marks=pytest.mark.long) for case in OTHER_STATE]


@pytest.mark.parametrize(("method", "hp"), CASES)
def test_goes_on_with_the_same_bytes(method: str, hp: dict[str, Any]) -> None:
    """With statistics of batches that stay with their clients, and rounds in which some are not selected."""
    settings: dict[str, Any] = {"model": "test_norm", "batchnorm": "local", "participation": 0.6, "dtype": "float32"}
    assert_resumes(method, {"hp": hp, "public": toy_data(samples=12, seed=9), **settings}, at=2, total=4)
