"""The setting `attack` in grids, ids and tables."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.config.grid import load_grid
from bench.config.identity import cell_id
from bench.config.validation import check_setting
from bench.errors import UserError
from bench.federation.attacks import make_attack
from bench.plugin import ATTACKS
from bench.rng import generator
from bench.settings import Settings
from reports.reading.names import setting_text
from tests.attacks.problems import images
from tests.conftest import ROOT

GRID: dict[str, Any] = {"methods": ["fedavg"], "alphas": [1]}

PAGE = ROOT / "docs" / "attacks.md"

OWN = '''
from bench.attacks.attack import Attack
from bench.plugin import ATTACKS


@ATTACKS.register("test_half")
class Half(Attack):
    """Half of it."""

    def forge(self, malicious, benign, rng):
        return malicious / 2
'''


def test_the_attack_and_its_share_are_parts_of_the_id() -> None:
    attacks = [None, "honest", "sign_flip", {"name": "sign_flip", "share": 0.4}]
    cells = load_grid({**GRID, "vary": {"attack": attacks}}).cells
    ids = [cell_id(cell, "data") for cell in cells]
    assert len(set(ids)) == 4
    assert ids[0] == cell_id(load_grid(GRID).cells[0], "data")


@pytest.mark.parametrize(
    ("attack", "problem"),
    [
        (["sign_flip"], 'attack = ["sign_flip"]: should be the name of an attack or a mapping with `name`'),
        ({"share": 0.2}, "should be the name of an attack or a mapping with `name`"),
        ({"name": "sign_flip", "share": -0.1}, "share = -0.1 should be greater than or equal to 0"),
        ({"name": "sign_flip", "share": 1}, "share = 1 should be less than 1"),
        ({"name": "sign_flip", "std": 1}, "unknown hyperparameter 'std' of 'sign_flip'"),
        ({"name": "min_max", "direction": "up"}, "direction = \"up\" should be 'std', 'unit' or 'sign'"),
    ],
)
def test_what_makes_no_sense_is_refused(attack: Any, problem: str) -> None:
    with pytest.raises(UserError) as error:
        load_grid({**GRID, "attack": attack})
    assert problem in str(error.value)


def test_an_attack_of_a_plugin_counts_with_its_code(plugin: Callable[[str], Path]) -> None:
    file = plugin(OWN)
    cell = load_grid({**GRID, "attack": "test_half"}).cells[0]
    before = cell_id(cell, "data")
    file.write_text(OWN.replace("/ 2", "/ 30"))
    assert cell_id(cell, "data") != before
    file.write_text(OWN.replace("Half of it.", "A half."))
    assert cell_id(cell, "data") == before


def test_the_attack_of_the_page_is_what_it_says(plugin: Callable[[str], Path]) -> None:
    plugin(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)[0])
    attack = make_attack(Settings(method="fedavg", attack=check_setting("attack", "all_the_same")))
    assert attack is not None
    data = images()
    assert attack.poison(data.x, data.y, data, generator("a test"))[1].tolist() == [0] * 8
    assert not attack.forges


@pytest.mark.parametrize("text", ["attack: {", "vary: {attack: ["])
def test_the_settings_of_the_page_are_settings(text: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    line = next(part for part in re.findall(r"`([^`\n]+)`|^(.+)$", page, re.M) if text in "".join(part))
    assert load_grid({**GRID, **yaml.safe_load("".join(line))}).cells


def test_the_page_lists_every_attack_with_its_settings() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in ATTACKS.names():
        kind = ATTACKS.get(name)
        if not kind.__module__.startswith("bench."):
            continue
        (line,) = (row for row in page.splitlines() if row.startswith(f"| `{name}`"))
        for setting, field in kind.Hyper.model_fields.items():
            if setting != "share":
                default = f"{field.default:g}" if isinstance(field.default, float) else field.default or ""
                assert f"`{setting}` {field.default if field.default == 0 else default}".strip() in line, (
                    name,
                    setting,
                )


def test_tables_name_an_attack_in_short() -> None:
    assert setting_text("attack", check_setting("attack", "sign_flip")) == "sign_flip share=0.2 factor=1"
    assert setting_text("attack", check_setting("attack", "alie")) == "alie share=0.2"
    assert setting_text("attack", None) == "no attack"
