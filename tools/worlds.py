"""Eight made-up consortia whose truth is known, and whether `bench decide` tells it.

    python -m tools.worlds /tmp/worlds --minutes 2 --jobs 2     # the same command goes on; also counts what is there
    python -m tools.worlds /tmp/worlds --only unequal --seeds 2 --margin 3

Each world and seed is a table and a decision in a folder of its own. What is right is not assumed: models of every
kind are fitted to fresh draws of as many training rows, and tested on 5,000 further rows of each site. A command's
further options, such as `--margin`, go to `bench decide`. `worlds.csv` has a line for each group of sites.
"""

import argparse
import functools
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

Floats = npt.NDArray[np.float64]
SEEDS, REPEATS, TESTS = 10, 10, 5_000
"""Of a world; draws of training rows for its truth; rows of a site that these are tested on."""
TRAINED = 0.75  # part of a site's rows that `bench decide` does not hold out


@dataclass(frozen=True)
class World:
    """A consortium.

    Attributes:
        sizes: rows of each site.
        width: number of inputs.
        kin: whose function a site has: equal numbers are equal functions, and a negative one is the opposite.
        scale: of the logit; a larger one is less noise.
        share: of ill rows, about.
        stop: what `bench decide` should refuse to decide over; empty where it should answer.
        visits: near-equal rows of each patient, whose labels are equal.
        groups: sites of which something else is true than of all.
        score: what the outcome needs, `accuracy` or `auroc`.
    """

    sizes: tuple[int, ...]
    width: int
    kin: tuple[int, ...]
    scale: float = 6.0
    share: float = 0.5
    stop: str = ""
    visits: int = 1
    groups: tuple[tuple[str, tuple[int, ...]], ...] = ()
    score: str = "accuracy"


WORLDS = {
    "equal": World((80,) * 10, 20, (1,) * 10),
    "unrelated": World((300,) * 6, 6, (1, 2, 3, 4, 5, 6)),
    "clusters": World((60,) * 10, 10, (1, -1) * 5),
    "unequal": World((2400, *(40,) * 5), 10, (1,) * 6, groups=(("small", (1, 2, 3, 4, 5)), ("large", (0,)))),
    "rare": World((250,) * 8, 6, (1,) * 8, scale=2.5, share=0.03, score="auroc"),
    "leak": World((150,) * 6, 10, (1,) * 6, stop="code"),
    "repeated": World((200,) * 6, 10, (1,) * 6, scale=0.5, stop="repeats", visits=5),
    "meanings": World(
        (60,) * 9, 10, (1, 1, 1, -1, 1, 1, 1, 1, 1), groups=(("other", (3,)), ("rest", (0, 1, 2, 4, 5, 6, 7, 8)))
    ),
}


def draw(world: World, seed: int, site: int, rows: int, rng: np.random.Generator) -> tuple[Floats, npt.NDArray[Any]]:
    """Draw rows of a site: inputs `[rows, width]` and whether they are ill `[rows]`."""
    kin = world.kin[site]
    function = np.random.default_rng([seed, abs(kin)]).normal(size=world.width)
    patients = -(-rows // world.visits)
    x = rng.normal(size=(patients, world.width))
    margin = world.scale * (x @ function) / np.linalg.norm(function)
    chance = 1 / (1 + np.exp(-margin - _intercept(world.scale, world.share)))
    ill = (rng.random(patients) < chance) != (kin < 0)
    x, ill = (np.repeat(values, world.visits, axis=0)[:rows] for values in (x, ill))
    return x + (0.03 * rng.normal(size=x.shape) if world.visits > 1 else 0.0), ill


@functools.cache
def _intercept(scale: float, share: float) -> float:
    """The logit's constant with which so many are ill."""
    z = scale * np.random.default_rng(0).normal(size=100_000)
    low, high = -30.0, 30.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if np.mean(1 / (1 + np.exp(-z - middle))) < share else (low, middle)
    return high


def table(name: str, seed: int) -> pd.DataFrame:
    """Make the table of a world: a row's site, its inputs and its outcome."""
    world, rng = WORLDS[name], np.random.default_rng([seed, list(WORLDS).index(name)])
    parts = []
    for site, size in enumerate(world.sizes):
        x, ill = draw(world, seed, site, size, rng)
        columns = {f"x{number}": x[:, number].round(3) for number in range(world.width)}
        if world.stop == "code":
            columns["code"] = np.where((rng.random(size) < 0.97) == ill, "K70", "Z00")
        parts.append(pd.DataFrame({"site": f"S{site}", **columns, "outcome": np.where(ill, "ill", "well")}))
    return pd.concat(parts, ignore_index=True)


def truth(name: str, seed: int, repeats: int = REPEATS) -> pd.DataFrame:
    """What logistic regression gains at each site, in points over training there alone, with rows of the sizes given.

    Returns:
        By site: `common`, of a single model for all; `best`, of that or a model for all sites with the same function.
    """
    world, rng = WORLDS[name], np.random.default_rng([seed, 99])
    tests = [draw(world, seed, site, TESTS, rng) for site in range(len(world.sizes))]
    gains = np.zeros((repeats, len(world.sizes), 2))
    for repeat in range(repeats):
        trained = [draw(world, seed, site, int(TRAINED * size), rng) for site, size in enumerate(world.sizes)]
        everybody = _scores(world, trained, tests)
        for site, kin in enumerate(world.kin):
            alone = _scores(world, trained[site : site + 1], tests[site : site + 1])[0]
            kindred = [rows for rows, other in zip(trained, world.kin, strict=True) if other == kin]
            ours = _scores(world, kindred, tests[site : site + 1])[0]
            gains[repeat, site] = everybody[site] - alone, max(everybody[site], ours) - alone
    names = [f"S{site}" for site in range(len(world.sizes))]
    return pd.DataFrame(gains.mean(axis=0), columns=["common", "best"], index=names)


def _scores(world: World, trained: Sequence[tuple[Floats, Any]], tests: Sequence[tuple[Floats, Any]]) -> Floats:
    """Scores in percent, on each test, of a model of the training rows."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    x, y = (np.concatenate(parts) for parts in zip(*trained, strict=True))
    model = LogisticRegression().fit(x, y) if len(set(y.tolist())) > 1 else None
    scores = []
    for x_test, y_test in tests:
        margins = np.full(len(y_test), 2.0 * y[0] - 1) if model is None else model.decision_function(x_test)
        accuracy = np.mean((margins > 0) == y_test)
        scores.append(100 * (roc_auc_score(y_test, margins) if world.score == "auroc" else accuracy))
    return np.array(scores)


def judge(
    world: World, truths: pd.DataFrame, gains: pd.DataFrame, decision: dict[str, Any] | None, said: str, margin: float
) -> str:
    """Whether what a decision says of some sites is `right`, `undecided` or `wrong`.

    Args:
        world: what it is about.
        truths: of all sites, from `truth`.
        gains: of the sites that are asked about.
        decision: the content of `decision.json`; None if it was refused.
        said: what the command printed.
        margin: points that count as none.
    """
    if world.stop:
        verdict = (decision or {}).get("verdict", {})
        refused = decision is None and f"--accept {world.stop}" in said
        return "right" if refused else ("wrong" if verdict.get("method") else "undecided")
    if decision is None:
        return "undecided"
    verdict, names = decision["verdict"], decision["verdict"]["sites"]
    judged = decision.get("methods", {}).get(verdict.get("judged"), {"personal": not verdict["single"]})
    apart = {"alone": "gains", "together": "loses", "undecided": ""}
    told = []
    for group in verdict["groups"]:
        sites = [names[number] for number in group["sites"]]
        rest = [site["name"] for site in sites if site["answer"] != apart[group["advice"]]]  # others are named apart
        if asked := [name for name in rest if name in gains.index]:
            told.append(_advised(group["advice"], verdict, gains.loc[asked], truths.loc[rest], margin))
    for site in (site for site in names if site["name"] in gains.index):
        gain = gains.loc[site["name"], "best" if judged["personal"] else "common"]
        if {"gains": gain <= 0, "no difference": abs(gain) > margin, "loses": gain > margin}.get(site["answer"]):
            told.append("wrong")
        elif site["answer"] in ("gains", "loses"):
            told.append("right")
    return "wrong" if "wrong" in told else ("right" if set(told) == {"right"} else "undecided")


def _advised(advice: str, verdict: dict[str, Any], asked: pd.DataFrame, group: pd.DataFrame, margin: float) -> str:
    """Whether advice to a group of sites is right for those of it that are asked about."""
    common, best = asked[["common", "best"]].mean()
    if advice == "alone":
        return "wrong" if best > margin else "right"
    if advice == "undecided" or not verdict["method"]:
        return "undecided"
    if group["best"].mean() <= 0 or (verdict["single"] and (common < -margin or best - common > margin)):
        return "wrong"
    return "right" if (common if verdict["single"] else best) > 0 else "undecided"


def rows_of(name: str, seed: int, folder: Path) -> list[dict[str, Any]]:
    """Judge a decision that is there: a row for all sites, and one for each group of them."""
    world, gains = WORLDS[name], truth(name, seed)
    record = json.loads((folder / "record.json").read_text())
    file = folder / "run" / "decision.json"
    decision = json.loads(file.read_text()) if file.exists() else None
    rows = []
    for group, sites in (("all", range(len(world.sizes))), *world.groups):
        of = gains.iloc[list(sites)]
        rows.append(
            {
                "world": name, "seed": seed, "group": group, "score": world.score,
                "result": judge(world, gains, of, decision, record["said"], record["margin"]),
                "common": round(of["common"].mean(), 2), "best": round(of["best"].mean(), 2),
                "seconds": record["seconds"],
                "headline": decision["headline"] if decision else record["said"].strip()[-160:],
            }
        )  # fmt: skip
    return rows


def decide(name: str, seed: int, folder: Path, minutes: float, margin: float, more: Sequence[str]) -> None:
    """Make the table and the decision of a world in a process of its own, unless they are there."""
    if (folder / "record.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    table(name, seed).to_csv(folder / "data.csv", index=False)
    command = [sys.executable, "-m", "bench.cli", "decide", folder / "data.csv", "--label", "outcome", "--site", "site"]
    options = ["--minutes", minutes, "--margin", margin, "--out", folder / "run", "--quiet", *more]
    begin = time.monotonic()
    done = subprocess.run([str(part) for part in [*command, *options]], capture_output=True, text=True)
    seconds = round(time.monotonic() - begin, 1)
    record = {"seconds": seconds, "margin": margin, "status": done.returncode, "said": done.stdout + done.stderr}
    (folder / "record.json").write_text(json.dumps(record, indent=2))
    print(f"{name} {seed}: {seconds:.0f} s, exit {done.returncode}", flush=True)


def main() -> None:
    """Run what is missing, and write `worlds.csv`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", choices=WORLDS, default=list(WORLDS))
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of each world")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--margin", type=float, default=3.0)
    parser.add_argument("--jobs", type=int, default=1, help="decisions side by side")
    options, more = parser.parse_known_args()
    cells = [(name, seed, options.out / f"{name}-{seed}") for name in options.only for seed in range(options.seeds)]
    with ThreadPoolExecutor(options.jobs) as pool:
        for done in [pool.submit(decide, *cell, options.minutes, options.margin, more) for cell in cells]:
            done.result()
    frame = pd.DataFrame([row for cell in cells for row in rows_of(*cell)])
    frame.to_csv(options.out / "worlds.csv", index=False)
    counted = frame.groupby(["world", "group"], sort=False)["result"].value_counts().unstack(fill_value=0)
    print(counted.reindex(columns=["right", "undecided", "wrong"], fill_value=0))


if __name__ == "__main__":
    main()
