"""Made-up consortia are what they are said to be, and decisions about them are judged by their truth."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from tools.worlds import WORLDS, judge, table, truth


def test_tables_are_what_they_are_said_to_be() -> None:
    for name, world in WORLDS.items():
        frame = table(name, 1)
        assert tuple(frame.groupby("site", sort=False).size()) == world.sizes, name
        assert abs((frame["outcome"] == "ill").mean() - world.share) < max(0.01, 0.2 * world.share), name
    leak, repeated = table("leak", 0), table("repeated", 0)
    assert 0.95 < ((leak["code"] == "K70") == (leak["outcome"] == "ill")).mean() < 0.99
    visits = repeated.groupby(repeated.index // 5)
    assert (visits["outcome"].nunique() == 1).all()
    assert visits["x0"].std().max() < 0.1 < 0.9 < repeated["x0"].std()


@pytest.mark.parametrize(
    ("name", "least", "most"),  # of the gains that a common model brings over all sites
    [("equal", 4, 15), ("unrelated", -60, -10), ("clusters", -60, -15), ("unequal", 3, 20)],
)
def test_the_truth_of_a_world_is_as_it_is_named(name: str, least: float, most: float) -> None:
    gains = truth(name, 0, repeats=1)
    assert least < gains["common"].mean() < most
    assert (gains["best"] >= gains["common"]).all()
    if name == "unequal":
        assert abs(gains.loc["S0", "common"]) < 2


def decision(method: str, *advice: str, single: bool = False, **sites: str) -> dict[str, Any]:
    """A decision with advice for two sites, or for each of them."""
    names = [{"name": name, "answer": sites.get(name, "undecided")} for name in ("S0", "S1")]
    numbers = [[0, 1]] if len(advice) == 1 else [[0], [1]]
    groups = [{"sites": at, "advice": said} for at, said in zip(numbers, advice, strict=True)]
    return {"verdict": {"method": method, "single": single, "sites": names, "groups": groups}}


@pytest.mark.parametrize(
    ("found", "of_both", "of_first", "of_second"),
    [
        (decision("local", "alone"), "wrong", "wrong", "right"),
        (decision("local", "alone", S0="gains"), "right", "right", "right"),  # the first is named apart
        (decision("fedavg", "together", single=True), "wrong", "right", "wrong"),
        (decision("fedavg", "together", single=True, S1="loses"), "right", "right", "right"),
        (decision("ditto", "together"), "right", "right", "undecided"),
        (decision("", "together"), "undecided", "undecided", "undecided"),
        (decision("", "undecided"), "undecided", "undecided", "undecided"),
        (decision("ditto", "together", "alone"), "right", "right", "right"),
        (decision("ditto", "alone", "together"), "wrong", "wrong", "wrong"),
        (decision("", "undecided", S1="gains"), "wrong", "undecided", "wrong"),
        (decision("ditto", "together", S0="no difference"), "wrong", "wrong", "undecided"),
        (decision("ditto", "together", S0="loses"), "wrong", "wrong", "wrong"),
    ],
)
def test_decisions_are_judged_by_the_truth(found: Any, of_both: str, of_first: str, of_second: str) -> None:
    """Of two sites, of which a common model gains 8 points at the first and costs 30 at the second."""
    gains, world = pd.DataFrame({"common": [8.0, -30.0], "best": [8.0, 0.0]}, index=["S0", "S1"]), WORLDS["meanings"]
    for asked, result in ((gains, of_both), (gains.iloc[:1], of_first), (gains.iloc[1:], of_second)):
        assert judge(world, gains, asked, found, "", 3) == result
    assert judge(world, gains, gains, None, "too little time", 3) == "undecided"


def test_a_world_to_be_refused_is_right_only_if_the_refusal_names_what_is_wrong() -> None:
    none = pd.DataFrame({"common": np.zeros(1), "best": np.zeros(1)})
    for found, said, result in [
        (None, "... or --accept code", "right"),
        (None, "out of memory", "undecided"),
        (decision("local", "alone"), "", "wrong"),
        (decision("", "undecided"), "", "undecided"),
    ]:
        assert judge(WORLDS["leak"], none, none, found, said, 3) == result
