"""The pages of the manual name files that exist, and the site has what commands print."""

import ast
import re
from pathlib import Path

import pytest
import yaml

import bench
from tests.conftest import ROOT
from tools.site import on_page_markdown

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
PATH = re.compile(r"(?<![\w/.:-])((?:[\w.-]+/)+[\w-]+\.(?:py|md|yaml|json|bib|png|svg))?(?:::(\w+))?(?![\w*])")
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir()} | {".."}


def missing(text: str, page: Path) -> list[str]:
    """Files, and tests within them, that a text names and that are not there.

    A path begins at the repository, at `tests/` or at the page, and `::test` alone goes on with the last path. A path
    that begins with no folder of the repository, and is no test, is a user's file.
    """
    names, path = [], ""
    for match in PATH.finditer(text):
        if not match[0] or (match[1] and match[1].split("/")[0] not in FOLDERS and "/test_" not in match[1]):
            continue
        path = match[1] or path
        files = [place / path for place in (ROOT, ROOT / "tests", page.parent) if (place / path).is_file()]
        if not files or (match[2] and match[2] not in functions(files[0])):
            names.append(f"{path}::{match[2]}" if match[2] else path)
    return names


def functions(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_file_that_a_page_names_exists() -> None:
    names = {page: missing(page.read_text(encoding="utf-8"), page) for page in PAGES}
    assert {page.name: paths for page, paths in names.items() if paths} == {}


def test_the_grid_beside_a_library_s_commands_is_one() -> None:
    page = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
    (grid,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert len(bench.load_grid(yaml.safe_load(grid)).cells) == 6


def test_a_missing_file_and_a_missing_test_are_seen() -> None:
    text = "`runs/test_kill.py::test_two_commands_share_the_cells`, `::test_at_noon`, `bench/nowhere.py`, `runs/a.json`"
    assert missing(text, ROOT / "docs" / "x.md") == ["runs/test_kill.py::test_at_noon", "bench/nowhere.py"]


def test_a_page_of_the_site_has_what_a_command_prints() -> None:
    shown = on_page_markdown("Models:\n\n<!-- bench models -->\n")
    assert shown.startswith("Models:\n\n```text\n")
    assert "\nchar_lstm " in shown
    helped = on_page_markdown("<!-- bench COMMAND --help -->")
    assert "Usage: bench league run " in helped
    assert "--checkpoint-seconds" in helped
    with pytest.raises(RuntimeError, match="bench nothing: "):
        on_page_markdown("<!-- bench nothing -->")
    page = on_page_markdown((ROOT / "docs" / "first-mistakes.md").read_text(encoding="utf-8"))
    assert page.count("| mistake | message |\n| --- | --- |\n") == 3
    assert "\n| a draw | … draws from torch's generator: " in page
    named = {name for page in PAGES for name in re.findall(r"^<!-- (bench .+) -->$", page.read_text(), re.MULTILINE)}
    assert named == {"bench datasets", "bench models", "bench --help", "bench COMMAND --help"}
