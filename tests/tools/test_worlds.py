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


def decision(method: str, single: bool = False, **sites: str) -> dict[str, Any]:
    said = [{"name": name, "answer": answer} for name, answer in sites.items()]
    return {"verdict": {"method": method, "single": single, "sites": said}}


def test_decisions_are_judged_by_the_truth() -> None:
    gains = pd.DataFrame({"common": [8.0, -30.0], "best": [8.0, 0.0]}, index=["S0", "S1"])
    small, world = gains.iloc[:1], WORLDS["meanings"]
    for found, right, of in [
        (decision("local"), "wrong", small),
        (decision("local"), "wrong", gains),
        (decision("local"), "right", gains.iloc[1:]),
        (decision("fedavg", True), "right", small),
        (decision("fedavg", True), "wrong", gains),
        (decision("ditto"), "right", gains),
        (decision(""), "undecided", gains),
        (decision("", S1="gains"), "wrong", gains),
        (decision("", S1="gains"), "undecided", small),
        (decision("ditto", S0="no difference"), "wrong", gains),
        (decision("fedavg", True, S1="loses"), "wrong", gains),  # of a single model, which costs this site 30 points
        (decision("ditto", S0="loses"), "wrong", gains),
    ]:
        assert judge(world, of, found, "", 3) == right, (found, of)
    assert judge(world, gains, None, "too little time", 3) == "undecided"


def test_a_world_to_be_refused_is_right_only_if_the_refusal_names_what_is_wrong() -> None:
    none = pd.DataFrame({"common": np.zeros(1), "best": np.zeros(1)})
    for found, said, result in [
        (None, "... or --accept code", "right"),
        (None, "out of memory", "undecided"),
        (decision("local"), "", "wrong"),
        (decision(""), "", "undecided"),
    ]:
        assert judge(WORLDS["leak"], none, found, said, 3) == result
