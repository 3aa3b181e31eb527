"""What `bench show` prints."""

import json
from pathlib import Path

import pytest
import yaml

from bench.cli.show import show
from bench.config.grid import load_grid
from bench.errors import UserError


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text("{methods: [{name: toy, label: '[x]'}, plain], alphas: [1, 0.1], rounds: 7, description: 'a: b'}")
    return str(path)


def test_yaml_and_json_hold_every_setting_of_every_cell(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    show(file, ["lr=0.25"])
    shown = yaml.safe_load(capsys.readouterr().out)
    assert (shown["name"], shown["description"], shown["published"], shown["count"]) == ("small", "a: b", None, 4)
    whole = [{**shown["common"], **cell} for cell in shown["cells"]]
    assert whole == [cell.model_dump(mode="json") for cell in load_grid(file, ["lr=0.25"]).cells]
    assert shown["common"]["lr"] == 0.25
    show(file, as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert shown["cells"] == [cell.model_dump(mode="json") for cell in load_grid(file, []).cells]


def test_table_has_a_row_per_cell(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    show(file, ["methods=[{name: toy, label: '[x]'}]", "alphas=[0.125]"], table=True)
    show(file, table=True)
    out = capsys.readouterr().out
    assert "small: 1 cells" in out
    assert "small: 4 cells" in out
    assert out.count("[x]") == 3


def test_two_formats_at_once_are_refused(file: str) -> None:
    with pytest.raises(UserError, match="--table and --json"):
        show(file, table=True, as_json=True)
