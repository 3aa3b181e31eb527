"""A cell has one id however its settings are spelled: by axes, cases, a list or in Python, short or in full."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.config.checked import CheckedSettings
from bench.config.grid import grid_of, load_grid
from bench.config.identity import cell_id, declared_checksum
from bench.profiles import PRESETS
from bench.settings import Settings

SYNTHETIC = {"name": "synthetic", "size": 50}
SPELLINGS: dict[str, list[Any]] = {
    "server": ["fedopt", {"name": "fedopt"}, {"name": "fedopt", "kind": "adam", "eta": 0.01, "tau": 1e-3}],
    "shifts": [["rotation"], [{"name": "rotation"}], [{"name": "rotation", "groups": 4}]],
    "channel": [
        ["top_k", "quantise"],
        [{"name": "top_k"}, {"name": "quantise"}],
        [{"name": "top_k", "share": 0.01}, {"name": "quantise", "bits": 8}],
    ],
    "attack": [
        "backdoor",
        {"name": "backdoor"},
        {"name": "backdoor", "share": 0.2, "target": 0, "size": 2, "poisoned": 0.5, "boost": 1.0},
    ],
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
    "steps": [None],
    "normalise": ["pooled"],
    "frozen": [[], ()],
}
"""Of each setting, values that mean the same; the first is the shortest."""
TIMELINES = [
    [{"round": 1, "shifts": ["rotation"]}],
    [{"round": 1, "shifts": [{"name": "rotation", "groups": 4}], "add_classes": None}],
]
COMMON: dict[str, Any] = {"method": "fedprox", "dataset": "digits", "alpha": 1, "seed": 0, "clients": 4}


def of_axes(settings: dict[str, Any]) -> list[Settings]:
    return load_grid(settings).cells


def of_case(settings: dict[str, Any]) -> list[Settings]:
    common = {key: settings[key] for key in ("method", "dataset")}
    case = {key: settings[key] for key in settings if key not in common}
    return load_grid({**common, "cases": [{"name": "a case", **case}]}).cells


def of_vary(settings: dict[str, Any]) -> list[Settings]:
    names = ("method", "dataset", "alpha", "seed")
    vary = {key: [settings[key]] for key in settings if key not in names}
    return load_grid({**{key: settings[key] for key in names}, "vary": vary}).cells


def of_method(settings: dict[str, Any]) -> list[Settings]:
    names = ("method", "dataset")
    inner = {key: settings[key] for key in settings if key not in names}
    server = {"server": inner.pop("server")} if "server" in inner else {}
    return load_grid(
        {"methods": [{"name": settings["method"], **server, "set": inner}], "dataset": settings["dataset"]}
    ).cells


def of_list(settings: dict[str, Any]) -> list[Settings]:
    return load_grid({"cells": [settings]}).cells


def of_list_below_common(settings: dict[str, Any]) -> list[Settings]:
    return load_grid({**settings, "cells": [{"rounds": 30}]}).cells


def of_plain_settings(settings: dict[str, Any]) -> list[Settings]:
    return grid_of([Settings(**settings)], "g").cells


def of_checked_settings(settings: dict[str, Any]) -> list[Settings]:
    return [CheckedSettings(**settings)]


WAYS = (of_axes, of_case, of_vary, of_method, of_list, of_list_below_common, of_plain_settings, of_checked_settings)


def id_of(way: Any, settings: dict[str, Any]) -> str:
    (cell,) = way(settings)
    return cell_id(cell, declared_checksum(cell))


@pytest.mark.parametrize("key", [*SPELLINGS, "timeline"])
def test_every_way_and_spelling_gives_one_id(key: str) -> None:
    values = TIMELINES if key == "timeline" else SPELLINGS[key]
    ids = {(way.__name__, str(value)): id_of(way, {**COMMON, key: value}) for way in WAYS for value in values}
    assert len(set(ids.values())) == 1, ids


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_spellings_do_not_depend_on_each_other(data: st.DataObject) -> None:
    """Several settings at once, each spelled in its own way, against the shortest, by axes."""
    keys = data.draw(st.lists(st.sampled_from([key for key in SPELLINGS if key != "alpha"]), min_size=2, unique=True))
    if {"adapters", "frozen"} <= set(keys):
        keys.remove("frozen")
    if "normalise" in keys and "attack" in keys:
        keys.remove("attack")
    chosen = {key: data.draw(st.sampled_from(SPELLINGS[key])) for key in keys}
    shortest = {key: SPELLINGS[key][0] for key in keys}
    way = data.draw(st.sampled_from(WAYS))
    assert id_of(way, {**COMMON, **chosen}) == id_of(of_axes, {**COMMON, **shortest})


def test_a_cell_in_two_spellings_is_listed_twice() -> None:
    entries = [{**COMMON, "server": "fedopt"}, {**COMMON, "server": {"name": "fedopt"}}]
    with pytest.raises(Exception, match="the same cell stands above"):
        load_grid({"cells": entries})
