"""The setting `channel` in grids, ids and tables."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from bench.config.grid import load_grid
from bench.config.identity import cell_id
from bench.config.validation import check_setting
from bench.errors import UserError
from bench.settings import Settings
from reports.reading.names import setting_text
from tests.conftest import ROOT
from tests.engine.problems import generic, run, toy

GRID: dict[str, Any] = {"methods": ["fedavg"], "alphas": [1]}

PAGE = ROOT / "docs" / "channel.md"

OWN = '''
from bench.channel.operation import ChannelOperation
from bench.plugin import CHANNELS


@CHANNELS.register("test_halve")
class Halve(ChannelOperation):
    """Half of it."""

    def send(self, update, state, rng):
        return type(update).of(update.values / 2), state
'''


def test_the_operations_of_the_channel_are_part_of_the_id() -> None:
    grid = {**GRID, "vary": {"channel": [[], ["cast"], ["top_k", "cast"]]}}
    cells = load_grid(grid).cells
    ids = [cell_id(cell, "data") for cell in cells]
    assert len(set(ids)) == 3
    assert ids[0] == cell_id(load_grid(GRID).cells[0], "data")


@pytest.mark.parametrize(
    ("channel", "problem"),
    [
        ("top_k", 'channel = "top_k": should be a list of names, or of mappings with `name`'),
        ([{"share": 1}], 'channel[0] = {"share": 1}: should be the name of an operation or a mapping with `name`'),
        (["cast", "top_k"], "top_k should come before cast"),
        (["cast", "clip"], "clip should come before cast"),
        (["top_k", "random_k"], "top_k and random_k cannot both be there; take one out"),
        (["quantise", "sign"], "quantise and sign cannot both be there; take one out"),
        (["top_k", "top_k"], "'top_k' stands there twice"),
        ([{"name": "top_k", "share": 0}], "share = 0 should be greater than 0"),
        ([{"name": "top_k", "k": 3}], "unknown hyperparameter 'k' of 'top_k'"),
        ([{"name": "cast", "to": "fp8"}], "to = \"fp8\" should be 'fp16', 'bf16' or 'int8'"),
        (["gaussian"], "gaussian should come right after adaptive_clip or clip"),
        (["gaussian", "clip"], "gaussian should come right after adaptive_clip or clip"),
        (["clip", "adaptive_clip", "gaussian", "gaussian"], "'gaussian' stands there twice"),
        ([{"name": "clip"}, {"name": "gaussian", "noise": -1}], "noise = -1 should be greater than or equal to 0"),
        ([{"name": "clip"}, {"name": "gaussian", "on": "all"}], "on = \"all\" should be 'sum' or 'each'"),
        ([{"name": "quantise", "bits": 1}], "bits = 1 should be greater than or equal to 2"),
    ],
)
def test_what_makes_no_sense_is_refused(channel: Any, problem: str) -> None:
    with pytest.raises(UserError) as error:
        load_grid({**GRID, "channel": channel})
    assert problem in str(error.value)


def test_an_operation_of_a_plugin_counts_with_its_code(plugin: Callable[[str], Path]) -> None:
    file = plugin(OWN)
    cell = load_grid({**GRID, "channel": ["test_halve"]}).cells[0]
    before = cell_id(cell, "data")
    file.write_text(OWN.replace("/ 2", "/ 30"))
    assert cell_id(cell, "data") != before
    file.write_text(OWN.replace("Half of it.", "A half."))
    assert cell_id(cell, "data") == before


def test_a_stage_that_is_none_is_refused(plugin: Callable[[str], Path]) -> None:
    plugin(OWN.replace('    """Half', '    stage = "encod"\n    """Half'))
    with pytest.raises(UserError, match="'test_halve': stage = 'encod' should be 'change' or 'select' or 'encode'"):
        load_grid({**GRID, "channel": ["test_halve"]})


def test_the_operation_of_the_page_halves_what_clients_send(plugin: Callable[[str], Path]) -> None:
    plugin(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)[0])
    shrunk, plain = toy("fedavg", channel=tuple(check_setting("channel", ["shrink"]))), toy("fedavg")
    run(shrunk, 1)
    run(plain, 1)
    start = plain.server.initial_model().weights
    torch.testing.assert_close(generic(shrunk), start + (generic(plain) - start) / 2)


@pytest.mark.parametrize("text", ["channel: [", "vary: {channel: [["])
def test_the_settings_of_the_page_are_settings(text: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    line = next(part for part in re.findall(r"`([^`\n]+)`|^(.+)$", page, re.M) if text in "".join(part))
    given = yaml.safe_load("".join(line))
    assert load_grid({**GRID, **given}).cells


def test_tables_name_a_channel_in_short() -> None:
    channel = Settings(method="fedavg", channel=({"name": "top_k", "share": 0.01}, {"name": "cast", "to": "fp16"}))
    assert setting_text("channel", channel.channel) == "top_k share=0.01 + cast to=fp16"
    assert setting_text("channel", ()) == "no channel"
