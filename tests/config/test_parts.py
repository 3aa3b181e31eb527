"""The settings `channel` and `attack` in grids, ids and tables, and what their pages say of them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from bench.config.grid import load_grid
from bench.config.validation import check_setting
from bench.errors import UserError
from bench.federation.attacks import make_attack
from bench.plugin import ATTACKS
from bench.rng import generator
from bench.settings import Settings
from reports.reading.names import setting_text
from tests.attacks.problems import images
from tests.conftest import ROOT
from tests.engine.problems import generic, run, toy

GRID: dict[str, Any] = {"methods": ["fedavg"], "alphas": [1]}

OWN_CHANNEL = '''
from bench.channel.operation import ChannelOperation
from bench.plugin import CHANNELS


@CHANNELS.register("test_half")
class Half(ChannelOperation):
    """Half of it."""

    def send(self, update, state, rng):
        return type(update).of(update.values / 2), state
'''
EXAMPLE = ROOT / "docs" / "examples" / "plugin" / "uploads.py"


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("channel", "top_k", 'channel = "top_k": should be a list of names, or of mappings with `name`'),
        ("channel", [{"share": 1}], 'channel[0] = {"share": 1}: should be the name of an operation or a mapping with'),
        ("channel", ["cast", "top_k"], "top_k should come before cast"),
        ("channel", ["cast", "clip"], "clip should come before cast"),
        ("channel", ["top_k", "random_k"], "top_k and random_k cannot be combined; remove one"),
        ("channel", ["quantise", "sign"], "quantise and sign cannot be combined; remove one"),
        ("channel", ["top_k", "top_k"], "'top_k' is listed twice"),
        ("channel", [{"name": "top_k", "k": 3}], "unknown hyperparameter 'k' of 'top_k'"),
        ("channel", [{"name": "cast", "to": "fp8"}], "to = \"fp8\" should be 'fp16', 'bf16' or 'int8'"),
        ("channel", ["gaussian"], "gaussian should come right after adaptive_clip or clip"),
        ("channel", ["gaussian", "clip"], "gaussian should come right after adaptive_clip or clip"),
        ("channel", ["clip", "adaptive_clip", "gaussian", "gaussian"], "'gaussian' is listed twice"),
        ("channel", ["clip", {"name": "gaussian", "noise": -1}], "noise = -1 should be greater than or equal to 0"),
        ("channel", ["clip", {"name": "gaussian", "on": "all"}], "on = \"all\" should be 'sum' or 'each'"),
        ("channel", [{"name": "quantise", "bits": 1}], "bits = 1 should be greater than or equal to 2"),
        ("attack", ["sign_flip"], 'attack = ["sign_flip"]: should be the name of an attack or a mapping with `name`'),
        ("attack", {"share": 0.2}, "should be the name of an attack or a mapping with `name`"),
        ("attack", {"name": "sign_flip", "share": -0.1}, "share = -0.1 should be greater than or equal to 0"),
        ("attack", {"name": "sign_flip", "std": 1}, "unknown hyperparameter 'std' of 'sign_flip'"),
        ("attack", {"name": "min_max", "direction": "up"}, "direction = \"up\" should be 'std', 'unit' or 'sign'"),
    ],
)
def test_what_makes_no_sense_is_refused(key: str, value: Any, problem: str) -> None:
    with pytest.raises(UserError) as error:
        load_grid({**GRID, key: value})
    assert problem in str(error.value)


def test_a_stage_that_is_none_is_refused(plugin: Callable[[str], Path]) -> None:
    plugin(OWN_CHANNEL.replace('    """Half', '    stage = "encod"\n    """Half'))
    with pytest.raises(UserError, match="'test_half': stage = 'encod' should be 'change' or 'select' or 'encode'"):
        load_grid({**GRID, "channel": ["test_half"]})


@pytest.mark.long
def test_the_operation_of_the_example_halves_what_clients_send(plugin: Callable[[str], Path]) -> None:
    plugin(EXAMPLE.read_text(encoding="utf-8"))
    shrunk, plain = toy("fedavg", channel=tuple(check_setting("channel", ["shrink"]))), toy("fedavg")
    run(shrunk, 1)
    run(plain, 1)
    start = plain.server.initial_model().weights
    torch.testing.assert_close(generic(shrunk), start + (generic(plain) - start) / 2)


def test_the_attack_of_the_example_is_what_it_says(plugin: Callable[[str], Path]) -> None:
    plugin(EXAMPLE.read_text(encoding="utf-8"))
    attack = make_attack(Settings(method="fedavg", attack=check_setting("attack", "all_the_same")))
    assert attack is not None
    data = images()
    assert attack.poison(data.x, data.y, data, generator("a test"))[1].tolist() == [0] * 8
    assert not attack.forges


def test_the_settings_of_the_pages_are_settings() -> None:
    pages = {"channel": ("channel: [", "vary: {channel: [["), "attacks": ("attack: {", "vary: {attack: [")}
    for name, text in ((name, text) for name, texts in pages.items() for text in texts):
        line = next(part for part in re.findall(r"`([^`\n]+)`|^(.+)$", page(name), re.M) if text in "".join(part))
        assert load_grid({**GRID, **yaml.safe_load("".join(line))}).cells


def test_the_page_lists_every_attack_with_its_settings() -> None:
    for name in ATTACKS.names():
        kind = ATTACKS.get(name)
        if not kind.__module__.startswith("bench."):
            continue
        (line,) = (row for row in page("attacks").splitlines() if row.startswith(f"| `{name}`"))
        for setting, field in kind.Hyper.model_fields.items():
            if setting != "share":
                default = f"{field.default:g}" if isinstance(field.default, float) else field.default or ""
                shown = field.default if field.default == 0 else default
                assert f"`{setting}` {shown}".strip() in line, (name, setting)


def test_tables_name_them_in_short() -> None:
    channel = Settings(method="fedavg", channel=({"name": "top_k", "share": 0.01}, {"name": "cast", "to": "fp16"}))
    assert setting_text("channel", channel.channel) == "top_k share=0.01 + cast to=fp16"
    assert setting_text("channel", ()) == "no channel"
    assert setting_text("attack", check_setting("attack", "sign_flip")) == "sign_flip share=0.2 factor=1"
    assert setting_text("attack", check_setting("attack", "alie")) == "alie share=0.2"
    assert setting_text("attack", None) == "no attack"
