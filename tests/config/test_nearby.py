"""A misspelt or missing grid or study: the message names the files beside it."""

from pathlib import Path

import pytest

from bench.config.grid import load_grid
from bench.errors import UserError
from sweeps.study_reader import load_study


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a grid, a study, and a file that cannot be read."""
    (tmp_path / "base.yaml").write_text("# mine\nmethods: [fedavg]\nalpha: 1\n", encoding="utf-8")
    (tmp_path / "tune_it.yml").write_text("grid: quickstart\nspace: {}\n", encoding="utf-8")
    (tmp_path / "dangling.yaml").symlink_to("nowhere")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(name: str, kind: str = "grid") -> str:
    with pytest.raises(UserError) as caught:
        load_grid(name) if kind == "grid" else load_study(name, [])
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("bse.yaml", "grid", "no grid file 'bse.yaml', and no built-in grid of that name. Did you mean 'base.yaml'?"),
        ("base.yml", "grid", "Did you mean 'base.yaml'?"),
        ("base", "grid", "Did you mean 'base.yaml'?"),
        ("Base.yaml", "grid", "Did you mean 'base.yaml'?"),
        ("quickstrat", "grid", "Did you mean 'quickstart'?"),
        ("tune-it.yaml", "study", "no built-in study of that name. Did you mean 'tune_it.yml'?"),
        ("xxxx", "grid", "name. Files here: base.yaml, dangling.yaml, tune_it.yml. Built in: comet_table3, "),
        ("xxxx", "study", "name. Files here: base.yaml, dangling.yaml, tune_it.yml. Built in: fair_table1, "),
        (".", "grid", ". is a folder, not a grid file. Files here: base.yaml, dangling.yaml, tune_it.yml."),
        ("empty", "grid", "empty is a folder, not a grid file."),
        ("nowhere/base.yaml", "grid", "there is no grid file 'nowhere/base.yaml': there is no folder 'nowhere'"),
    ],
)
def test_what_is_there_is_said(name: str, kind: str, said: str) -> None:
    assert said in refused(name, kind)


def test_files_of_another_folder_are_suggested_by_their_names(folder: Path) -> None:
    assert refused(str(folder / "bsae.yaml")).endswith("Did you mean 'base.yaml'?")


def test_a_plugin_that_fails_is_not_followed_by_the_names_that_it_would_have_registered(folder: Path) -> None:
    (folder / "mine.py").write_text("import nothing_of_that_name\n", encoding="utf-8")
    (folder / "plugged.yaml").write_text("plugins: [mine.py]\nmethods: [mine]\nalpha: 1\n", encoding="utf-8")
    said = refused("plugged.yaml")
    assert said.startswith("plugged.yaml:1: mine.py cannot be imported: ModuleNotFoundError: No module named 'nothing_")
    assert "\n" not in said
