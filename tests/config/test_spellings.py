"""A cell has one id however its settings are spelled: by axes, cases, a list or in Python, short or in full."""

from typing import Any

import pytest

from bench.config.checked import CheckedSettings
from bench.config.grid import grid_of, load_grid
from bench.config.identity import cell_id, declared_checksum
from bench.profiles import PRESETS
from bench.settings import Settings

SYNTHETIC = {"name": "synthetic", "size": 50}
SPELLINGS: dict[str, list[Any]] = {
    "server": ["fedopt", {"name": "fedopt"}, {"name": "fedopt", "kind": "adam", "eta": 0.01, "tau": 1e-3}],
    "shifts": [["rotation"], [{"name": "rotation"}], [{"name": "rotation", "groups": 4}]],
    "channel": [["top_k", "quantise"], [{"name": "top_k"}, {"name": "quantise", "bits": 8}]],
    "attack": ["backdoor", {"name": "backdoor", "share": 0.2, "target": 0, "size": 2, "poisoned": 0.5, "boost": 1.0}],
    "optimizer": ["adam", {"name": "adam"}, {"name": "adam", "betas": [0.9, 0.999], "eps": 1e-8}],
    "adapters": ["lora", {"name": "lora"}, {"name": "lora", "rank": 8, "alpha": 16, "train": ["head"]}],
    "clock": ["mobile", {"preset": "mobile"}, PRESETS["mobile"]],
    "public": [{**SYNTHETIC, "model_variance": 2}, {**SYNTHETIC, "model_variance": 2.0}],
    "dp_sgd": [{}, {"norm": 1}, {"norm": 1.0, "noise": 1, "delta": 1e-5}],
    "partition_options": [{}, {"min_samples": 0, "balanced": False, "shares": None}],
    "model_options": [{}, {"hidden": 200}],
    "stragglers": [{"1": 2}, {1: 2}, {"1": [2]}, {1: [2, 2]}],
    "wait_free": ["off", False],
    "lr": [1, 1.0],
    "alpha": [1, 1.0],
    "frozen": [[], ()],
    "timeline": [
        [{"round": 1, "shifts": ["rotation"]}],
        [{"round": 1, "shifts": [{"name": "rotation", "groups": 4}], "add_classes": None}],
    ],
}
"""Of each setting, values that mean the same."""
COMMON: dict[str, Any] = {"method": "fedprox", "dataset": "digits", "alpha": 1, "seed": 0, "clients": 4}


def ids(written: dict[str, Any]) -> dict[str, str]:
    """The ids of the one cell that settings say, by the way in which they are said."""
    names = {key: written[key] for key in ("method", "dataset")}
    others = {key: written[key] for key in written if key not in names}
    of_entry = {key: others[key] for key in others if key == "server"}
    inner = {key: others[key] for key in others if key != "server"}
    axes = {key: written[key] for key in (*names, "alpha", "seed")}
    ways = {
        "axes": load_grid(written).cells,
        "case": load_grid({**names, "cases": [{"name": "a case", **others}]}).cells,
        "vary": load_grid({**axes, "vary": {key: [written[key]] for key in written if key not in axes}}).cells,
        "method": load_grid(
            {"methods": [{"name": written["method"], **of_entry, "set": inner}], "dataset": written["dataset"]}
        ).cells,
        "list": load_grid({"cells": [written]}).cells,
        "list below common settings": load_grid({**written, "cells": [{"rounds": 30}]}).cells,
        "settings": grid_of([Settings(**written)], "g").cells,
        "checked settings": [CheckedSettings(**written)],
    }
    return {way: cell_id(cell, declared_checksum(cell)) for way, (cell,) in ways.items()}


@pytest.mark.parametrize("key", SPELLINGS)
def test_every_way_and_spelling_gives_one_id(key: str) -> None:
    """Combinations of spellings are in `test_identity.py`."""
    found = {str(value): ids({**COMMON, key: value}) for value in SPELLINGS[key]}
    assert len({one for of_value in found.values() for one in of_value.values()}) == 1, found


def test_a_cell_in_two_spellings_is_listed_twice() -> None:
    entries = [{**COMMON, "server": "fedopt"}, {**COMMON, "server": {"name": "fedopt"}}]
    with pytest.raises(Exception, match="the same cell stands above"):
        load_grid({"cells": entries})
