"""The grids that come with the package stand for printed tables: they load, and say the tables' own names."""

import functools
import re

import pytest
import yaml

from bench.config.grid import Grid, builtin_grids, load_grid
from bench.plugin import METHODS
from reports.published.comparison import SETTINGS, PublishedTable, _position, agrees, published_table
from reports.reading.names import flat

NAMES = builtin_grids()
READINGS = {"scd_simplex", "scd_restart", "scd_released_code"}
FURTHER = {
    "pgfed_table2": {"local"},
    "pgfed_new_clients": {"feddyn", "apfl", "fedrod", "fedbabu"},
    **dict.fromkeys(("table1", "table2", "table3", "table5", "table10"), READINGS),
    "table4": {
        "scd", "ditto", "fedrod", "scd_wf_until", "ditto_wf_until", "fedrod_wf_until", "scd_restart", "scd_restart_wf",
    },
    "table9": {"ditto_wf_until"},
    "pfllib_table1": {"local"},
    "pfllib_table2": {"local"},
}  # fmt: skip
"""Methods of a grid though its table has no row for them: others are compared with them, or they are read otherwise."""


@functools.cache
def loaded(name: str) -> Grid:
    """A built-in grid; loading all of them takes longer than collecting their tests should."""
    return load_grid(name, [])


def tables_of(name: str) -> list[PublishedTable]:
    """The printed tables for which a grid stands."""
    return [published_table(table) for table in filter(None, (loaded(name).published or "").split(", "))]


@pytest.mark.parametrize("name", NAMES)
def test_methods_of_a_grid_have_a_row_in_its_table(name: str) -> None:
    """And in some the other way round; a comment that counts the cells of a grid is right."""
    grid = loaded(name)
    assert grid.name == name
    assert len(set(map(str, grid.cells))) == len(grid.cells) > 0
    assert {int(count) for count in re.findall(r"(\d+) cells", grid.source)} <= {len(grid.cells)}
    if tables := tables_of(name):
        rows, methods = {row.method for table in tables for row in table.rows}, {cell.name for cell in grid.cells}
        assert methods - FURTHER.get(name, set()) <= rows
        assert rows <= methods or not name.startswith(("pgfed_table", "spfl_table"))


@pytest.mark.parametrize("name", NAMES)
def test_a_grid_has_its_table_s_settings(name: str) -> None:
    """Every printed number that is a setting of ours; where a table varies one, it has the table's values."""
    for table in tables_of(name):
        for setting, value in table.setting.items():
            found = [getattr(cell, SETTINGS.get(setting, setting), None) for cell in loaded(name).cells]
            ours = {one for one in found if isinstance(one, int | float)}
            varied = {row.axes["value"] for row in table.rows if row.axes.get("param") == setting}
            varied |= {row.axes[setting] for row in table.rows if setting in row.axes}
            if ours and isinstance(value, int | float):
                assert ours == (varied or {value}), setting


def test_printed_tables_of_pgfed_and_spfl_have_a_grid() -> None:
    found = {one for grid in map(loaded, NAMES) for one in re.split(", ", grid.published or "")}
    assert found >= {f"pgfed_p{k}" for k in (1, 2, 3, 4)} | {f"spfl_t{k}" for k in (1, 2, 5, 6, 7, 8)}


@pytest.mark.parametrize("name", ["comet_table3", "comet_table4"])
def test_every_printed_number_has_its_cells(name: str) -> None:
    """Also that of FedMD, in which all clients take part whatever the others' participation."""
    cells = [flat(cell) for cell in loaded(name).cells]
    table = published_table(loaded(name).published or "")
    for row in table.rows:
        wanted = {"method": row.method, **_position(table, row)}
        assert any(all(agrees(cell, axis, value) for axis, value in wanted.items()) for cell in cells), row


UNSAID = {("scd", "eps"), ("scd", "extra_l2")}
"""Numbers that no paper has: a guard against a division by zero, and a term of the released code alone."""


@pytest.mark.parametrize("name", [name for name in NAMES if name != "quickstart"])
def test_a_paper_s_grid_says_every_number_itself(name: str) -> None:
    """So a default that changes cannot change a paper's cells unseen; the precision, too."""
    document = yaml.safe_load(loaded(name).source)
    assert document["precision"] == ("bf16" if name == "table1_fast" else "fp32")
    common = document.keys() | document.get("vary", {}).keys()
    common |= set.intersection(*map(set, document.get("cases", [{}])))
    for entry in document["methods"]:
        method, own = (entry, set()) if isinstance(entry, str) else (entry["name"], set(entry))
        fields = METHODS.get(method).Hyper.model_fields
        numbers = {key for key, field in fields.items() if type(field.default) in (int, float)}
        left = {key for key in numbers - own if f"{method}.{key}" not in common and (method, key) not in UNSAID}
        assert not left, f"{method} leans on defaults"
