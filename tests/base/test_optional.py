"""Packages that only an extra of pFLeague brings: without one, the command that needs it says which extra that is."""

import ast
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.cluster.connect import connect
from bench.errors import EXTRAS, UserError
from bench.models.factory import build
from bench.models.pretrained import pretrained
from bench.sites.messages import read_file, write_file
from datasets.tables import read_table

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IMPORTED_AS = {"dp-accounting": "dp_accounting", "PyYAML": "yaml", "scikit-learn": "sklearn"}
BROUGHT_ALONG = {"PIL", "markupsafe", "pydantic_core", "sqlalchemy", "threadpoolctl", "triton", "typing_extensions"}
"""Modules of packages that the dependencies need themselves."""
BEHIND = ("bench/cluster/", "bench/federation/privacy.py", "bench/sites/flare.py")
"""Files that import such a package themselves: they are reached behind a call of `optional`, or of `check_privacy`.

dp-accounting brings absl."""


def names(requirements: list[str]) -> set[str]:
    """The modules that requirements bring."""
    found = {re.split(r"[\[<>=]", text)[0] for text in requirements}
    return {IMPORTED_AS.get(name, name) for name in found}


def test_the_table_of_extras_is_that_of_the_project() -> None:
    extras = PROJECT["optional-dependencies"]
    brought = {package for extra in extras if extra != "dev" for package in names(extras[extra])}
    assert set(EXTRAS) == brought
    for package, extra in EXTRAS.items():
        assert package in names(extras[extra]), package


def imported(file: Path) -> set[str]:
    """First parts of the names that a file imports, also within functions."""
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    found |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.partition(".")[0] for name in found}


@pytest.mark.long
def test_no_file_imports_an_optional_package_by_itself() -> None:
    rooms = {"bench", "methods", "datasets", "sweeps", "reports"}
    known = rooms | names(PROJECT["dependencies"]) | set(sys.stdlib_module_names) | BROUGHT_ALONG
    for room in sorted(rooms):
        for file in (ROOT / room).rglob("*.py"):
            place = file.relative_to(ROOT).as_posix()
            more = imported(file) - known
            assert more <= ({*EXTRAS, "absl"} if place.startswith(BEHIND) else set()), f"{place} imports {more}"


def table(folder: Path) -> Any:
    (folder / "t.parquet").touch()
    return read_table(folder / "t.parquet")


def weights(folder: Path) -> Any:
    (folder / "w.safetensors").touch()
    return pretrained(folder / "w.safetensors", build("mlp", (4,), 3, {"hidden": 5}))


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("ray", lambda folder: connect("local")),
        ("timm", lambda folder: build("timm/resnet10t", (3, 32, 32), 3, {})),
        ("safetensors", weights),
        ("safetensors", lambda folder: write_file({}, "")),
        ("safetensors", lambda folder: read_file(b"")),
        ("pyarrow", table),
    ],
)
def test_a_package_that_is_missing_is_named_with_its_extra(
    package: str, call: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [package, *(name for name in sys.modules if name.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError) as error:
        call(tmp_path)
    assert "\n" not in str(error.value)
    assert f"the package {package} is not installed" in str(error.value)
    assert str(error.value).endswith(f"pip install 'pfleague[{EXTRAS[package]}]'")
