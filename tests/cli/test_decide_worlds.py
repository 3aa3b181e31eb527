"""Four consortia whose right decision is known: a decision there is right or undecided, and never wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from docs.examples.consortia.worlds import TINY, WORLDS, write
from tests.runs.conftest import Bench

SEEDS = 20


def wrong(world: str, decision: dict[str, Any]) -> str:
    """What a decision says that is not so; empty if it is right or undecided."""
    verdict = decision["verdict"]
    together, personal, method = verdict["together"]["answer"], verdict["personal"]["answer"], verdict["method"]
    losing = [site["name"] for site in verdict["sites"] if site["answer"] == "loses"]
    problems = {
        "equal": {"alone": together == "no", "one model is not enough": personal == "yes", "losers": bool(losing)},
        "unrelated": {"together": together == "yes", "one model for all": method == "fedavg"},
        "clusters": {"alone": together == "no", "one model for all": personal == "no"},
        "tiny": {"another gains most": verdict["most"] not in ("", TINY), "the tiny site loses": TINY in losing},
    }
    return ", ".join(name for name, said in problems[world].items() if said)


def right(world: str, decision: dict[str, Any]) -> bool:
    """Whether the main thing is not only not wrong but said."""
    verdict = decision["verdict"]
    if world == "clusters":
        return bool(verdict["personal"]["answer"] == "yes")
    if world == "tiny":
        return bool(verdict["most"] == TINY)
    return bool(verdict["method"] == {"equal": "fedavg", "unrelated": "local"}[world])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("world", WORLDS)
def test_a_decision_is_right_or_undecided(bench_here: Bench, tmp_path: Path, world: str, seed: int) -> None:
    """At a level of 0.1 % and with a margin of 3 points, in two minutes; with too little time it is undecided, too."""
    grid = write(world, seed, tmp_path / "world")
    bench_here("decide", grid, "--minutes", 2, "--margin", 3, "--confidence", 0.999, "--out", "run", "--quiet")
    if not (file := tmp_path / "run" / "decision.json").exists():
        pytest.skip("two minutes are too few on this machine")
    decision = json.loads(file.read_text(encoding="utf-8"))
    assert wrong(world, decision) == "", decision["sentences"]


@pytest.mark.parametrize("world", WORLDS)
def test_worlds_are_what_they_are_said_to_be(world: str, tmp_path: Path) -> None:
    """By logistic regression of each site alone, and of all of them together."""
    import numpy as np
    from sklearn.linear_model import LogisticRegression

    write(world, 0, tmp_path)
    data = np.load(tmp_path / "data.npz")
    x, y, x_test, y_test = (data[name] for name in ("train_images", "train_labels", "test_images", "test_labels"))
    site, site_test = np.split(data["groups"], [len(y)])
    together = LogisticRegression().fit(x, y)
    gains = {}
    for name in dict.fromkeys(site.tolist()):
        alone = LogisticRegression().fit(x[site == name], y[site == name])
        here = x_test[site_test == name], y_test[site_test == name]
        gains[name] = 100 * (together.score(*here) - alone.score(*here))
    mean = sum(gains.values()) / len(gains)
    match world:
        case "equal":
            assert mean > 8
        case "unrelated":
            assert mean < -15
        case "clusters":
            assert mean < -15
        case "tiny":
            others = [gain for name, gain in gains.items() if name != TINY]
            assert gains[TINY] > max(others) + 5
            assert sum(others) / len(others) < 5
