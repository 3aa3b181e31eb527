"""Cells of each kind: both executors end with the same state, and a stop in the middle changes no byte."""

from typing import Any

import pytest

from tests.engine.problems import assert_same, everything, run, toy
from tests.federation.test_attacks import FORGED, SIZES, attack
from tests.federation.test_channel import channel
from tests.federation.test_privacy import ADAPTIVE, noisy
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
AGREE = CHANNELS | NOISES | ATTACKS

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
    "frozen layers": {"model": "test_norm", "frozen": ("inner",)},
    "features": {"model": "test_norm", "frozen": ("inner", "norm")},
}
"""Memories of operations, counts of releases, messages and lies under way are part of a checkpoint."""


@pytest.mark.parametrize("kind", AGREE)
def test_executors_agree(kind: str) -> None:
    settings = {"method": "fedavg", **AGREE[kind]}
    sequential, cohort = (toy(**settings, executor=executor) for executor in ("sequential", "cohort"))
    run(sequential, 3)
    run(cohort, 3)
    assert_same(everything(sequential), everything(cohort))
    assert sequential.ledger == cohort.ledger
    if sequential.channel is not None and cohort.channel is not None:
        assert sequential.channel.state() == cohort.channel.state()


@pytest.mark.parametrize("kind", STOPS)
def test_a_stop_in_the_middle_changes_no_byte(kind: str) -> None:
    assert_resumes("fedavg", STOPS[kind], 2, 4)
