"""Comparing the results of two codes, on values that are made up."""

from typing import Any

import numpy as np
import pytest

from bench.peer.compare import PeerRun, compare

SPEC = "no model"  # a trained part that is no model value


def run(outputs: list[float], steps: list[float]) -> PeerRun:
    """One client, whose outputs after each round and trained value after each step of the first are these numbers."""
    values: list[Any] = [[(np.array([step]), SPEC)] for step in steps]
    return PeerRun({(k, 0): {"gm": np.array([[x]])} for k, x in enumerate(outputs)}, {(0, 0): values}, [[0]])


def other(outputs: list[float], steps: list[float]) -> PeerRun:
    """The same by PFLlib's code."""
    tested = {(k, 0): {"output 0": np.array([[x]])} for k, x in enumerate(outputs)}
    return PeerRun(tested, {(0, 0): [np.array([step]) for step in steps]})


def test_rounding_is_no_difference() -> None:
    likeness = compare(run([1, 2], [0.5, 0.25]), other([1, 2 + 1e-9], [0.5, 0.25]))
    assert likeness.equal
    assert likeness.models == ("gm",)
    assert likeness.differences[0] == 0


@pytest.mark.parametrize(
    ("here", "there", "place"),
    [
        (
            run([1, 2], [0.5, 0.25, 0.125]),
            other([1, 2.5], [0.5, 0.2, 0.1]),
            "round 1, client 0, local step 2 of 3 here (3 there)",
        ),
        (run([1, 2], [0.5, 0.25]), other([1, 2.5], [0.5, 0.25]), "round 1, after local training"),
        (run([1, 2], [0.5]), other([1, 2.5], [0.5, 0.25]), "there are 1 here and 2 there"),
        (run([1, 2], [0.5]), other([1.5, 2], [0.5]), "before the first round"),
    ],
    ids=["another step", "equal steps", "further steps", "before any step"],
)
def test_the_first_place_at_which_codes_differ_is_named(here: PeerRun, there: PeerRun, place: str) -> None:
    assert place in compare(here, there).place


def test_nearest_prototypes_are_compared_in_any_unit_of_distance() -> None:
    """|z - p_c|^2 / d there and the linear head 2 p_c^T z - |p_c|^2 here prefer the same class by the same margins."""
    rng = np.random.default_rng(0)
    z, prototypes = rng.normal(size=(5, 7)), rng.normal(size=(4, 7))
    distances = np.square(z[:, None] - prototypes).mean(2)
    head = 2 * z @ prototypes.T - np.square(prototypes).sum(1)
    distances[:, 3], head[:, 3] = np.inf, -1e150  # a class without prototype

    def equal(logits: Any) -> bool:
        here, there = PeerRun(selected=[[0]]), PeerRun()
        for round in (1, 2):  # there is no test before the first round
            here.outputs[round, 0], there.outputs[round, 0] = {"pm": logits}, {"distance 0": distances}
        return compare(here, there).equal

    assert equal(head)
    assert not equal(head * [1.01, 1, 1, 1])
    assert not equal(np.where(head < -1e100, 0.0, head))


def test_a_test_that_is_made_in_one_round_only_is_compared_in_that_round() -> None:
    here, there = run([1, 2], [0.5, 0.25]), other([1, 2], [0.5, 0.25])
    there.outputs[1, 0]["output 1"] = np.array([[2.0]])
    assert compare(here, there).equal
    there.outputs[1, 0]["output 1"] = np.array([[2.5]])
    assert compare(here, there).differences == (0.0, 0.5)


@pytest.mark.parametrize("client", [0, 1])
def test_what_is_not_a_number_is_never_equal_and_equal_infinities_are(client: int) -> None:
    """A client that diverged must not be hidden behind one that did not."""
    here, there = PeerRun(selected=[[0, 1]]), PeerRun()
    for i in range(2):
        here.outputs[0, i], there.outputs[0, i] = (
            {"pm": np.array([[-np.inf, 1.0]])},
            {"output 0": np.array([[-np.inf, 1.0]])},
        )
    assert compare(here, there).differences == (0.0,)
    there.outputs[0, client]["output 0"] = np.array([[-np.inf, np.nan]])
    assert compare(here, there).differences == (np.inf,)
    here.outputs[0, client]["pm"] = np.array([[-np.inf, np.nan]])
    assert not compare(here, there).equal
