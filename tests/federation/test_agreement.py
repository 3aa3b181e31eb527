"""Cells of each kind: what changes nothing is the plain cell, executors agree, and a stop changes no byte."""

from typing import Any

import pytest

from tests.engine.problems import assert_same, everything, run, toy
from tests.federation.helpers import ADAPTIVE, FORGED, SIZES, attack, channel, noisy
from tests.methods.resume import assert_resumes

CHANNELS: dict[str, Any] = {
    "clip, top_k, quantise": {"channel": channel("clip", "top_k", "quantise")},
    "random_k, cast": {"channel": channel("random_k", "cast")},
    "sign": {"channel": channel("sign")},
}
NOISES: dict[str, Any] = {
    "noise on the sum": {"channel": noisy("sum")},
    "noise on each": {"channel": noisy("each")},
    "adaptive norm": {"channel": noisy("sum", clip=ADAPTIVE)},
}
ATTACKS: dict[str, Any] = {
    name: {"method": "ditto", "attack": attack(name), "sizes": SIZES} for name in [*FORGED, "label_flip"]
}
DP_SGD: dict[str, Any] = {"method": "ditto", "dp_sgd": {"norm": 0.5, "noise": 1.0}}
CLOCK = {"samples_per_second": {"median": 10, "sigma": 1.0}, "slow_rounds": {"probability": 0.3, "factor": 4}}
ARRIVALS: dict[str, Any] = {name: {"method": name, "clock": CLOCK} for name in ("fedasync", "fedbuff")}
AGREE = CHANNELS | NOISES | ATTACKS | ARRIVALS | {"noise in steps": DP_SGD}

NOTHING: dict[str, Any] = {
    "top_k": {"channel": ({"name": "top_k", "share": 1.0},)},
    "random_k": {"channel": ({"name": "random_k", "share": 1.0},)},
    "quantise": {"channel": ({"name": "quantise", "bits": 32},)},
    "clip, top_k": {"channel": ({"name": "clip", "norm": 1e9}, {"name": "top_k", "share": 1.0})},
    "no noise": {"channel": noisy("each", 0.0, {"name": "clip", "norm": 1e9})},
    "honest": {"attack": attack("honest")},
    "nobody lies": {"attack": attack("sign_flip", 0.0)},
    "nobody poisons": {"attack": attack("label_flip", 0.0)},
}
"""Channels and attacks that change nothing in float32."""

BUFFER = {"name": "fedbuff", "buffer": 2, "concurrency": 3}
STOPS: dict[str, Any] = {
    **{name: {**cell, "participation": 0.5, "model": "test_norm"} for name, cell in CHANNELS.items()},
    **{
        f"{name}, arrivals": {**cell, "participation": 0.5, "server": BUFFER, "model": "test_norm"}
        for name, cell in CHANNELS.items()
    },
    **{name: {**cell, "participation": 0.5} for name, cell in NOISES.items()},
    "lies": {"attack": attack("noise"), "sizes": SIZES, "participation": 0.8},
    "lies, arrivals": {"attack": attack("sign_flip"), "sizes": SIZES, "participation": 0.8, "server": BUFFER},
    "noise in steps": {**DP_SGD, "participation": 0.5},
    "frozen layers": {"model": "test_norm", "frozen": ("inner",)},
    "features": {"model": "test_norm", "frozen": ("inner", "norm")},
}
"""Memories of operations, counts of releases, messages and lies under way are part of a checkpoint."""


QUICK = {
    "clip, top_k, quantise", "adaptive norm", "alie", "label_flip", "fedbuff", "clip, top_k, quantise, arrivals",
    "lies, arrivals", "features", "noise in steps",
}  # fmt: skip
"""One of each kind."""


def marked(kinds: dict[str, Any]) -> list[Any]:
    return [pytest.param(kind, marks=[] if kind in QUICK else [pytest.mark.long]) for kind in kinds]


@pytest.mark.parametrize("kind", marked(AGREE))
def test_executors_agree(kind: str) -> None:
    settings = {"method": "fedavg", **AGREE[kind]}
    sequential, cohort = (toy(**settings, executor=executor) for executor in ("sequential", "cohort"))
    run(sequential, 4)
    run(cohort, 4)
    assert_same(everything(sequential), everything(cohort))
    assert sequential.ledger == cohort.ledger
    assert sequential.engine.private.state() == cohort.engine.private.state()
    if sequential.channel is not None and cohort.channel is not None:
        assert sequential.channel.state() == cohort.channel.state()


@pytest.mark.parametrize("kind", marked(STOPS))
def test_a_stop_in_the_middle_changes_no_byte(kind: str) -> None:
    settings = dict(STOPS[kind])
    assert_resumes(settings.pop("method", "fedavg"), settings, 2, 4)


@pytest.mark.parametrize(
    ("method", "nothing"),
    [("fedavg", nothing) for nothing in NOTHING]
    + [
        pytest.param(method, nothing, marks=pytest.mark.long)
        for method in ("ditto", "ccvr")
        for nothing in ("clip, top_k", "honest")
    ],
)
def test_what_changes_nothing_is_the_plain_cell(method: str, nothing: str) -> None:
    """To the byte, with its traffic and simulated seconds, but for the means over benign clients."""
    common: dict[str, Any] = {"model": "test_norm", "dtype": "float32", "participation": 0.5, "clock": "mobile"}
    cell, plain = (toy(method, sizes=SIZES, **common, **kind) for kind in (NOTHING[nothing], {}))
    scores = run(cell, 2).metrics
    assert [row for row in scores if row["mean"] != "benign"] == run(plain, 2).metrics
    assert any(row["mean"] == "benign" for row in scores) == ("attack" in NOTHING[nothing])
    assert_same(everything(cell), everything(plain), tolerance=0)
    assert cell.ledger == plain.ledger
    assert all(statement["epsilon"] is None for statement in cell.privacy())
