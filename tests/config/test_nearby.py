"""A misspelt or missing grid or study: the message names the files beside it."""

from pathlib import Path

import pytest

from bench.config.grid import load_grid
from bench.config.named_files import missing_option
from bench.errors import UserError
from sweeps.study_reader import load_study


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a grid, a study, and YAML files that are neither."""
    (tmp_path / "base.yaml").write_text("# mine\nmethods: [fedavg]\nalpha: 1\n", encoding="utf-8")
    (tmp_path / "tune_it.yml").write_text("grid: quickstart\nspace: {}\n", encoding="utf-8")
    (tmp_path / "basic.yaml").write_text("site_name: pages\n", encoding="utf-8")
    (tmp_path / "broken.yaml").write_bytes(b"\xff\x00" * 9)
    (tmp_path / "dangling.yaml").symlink_to("nowhere")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(name: str, kind: str = "grid") -> str:
    with pytest.raises(UserError) as caught:
        load_grid(name) if kind == "grid" else load_study(name, [])
    return str(caught.value)


@pytest.mark.parametrize("name", ["bse.yaml", "base.yml", "base", "Base.yaml", "bases"])
def test_a_misspelt_file_is_suggested_as_it_is_written(name: str) -> None:
    assert refused(name).endswith(
        f"no grid file {name!r}, and no built-in grid of that name. Did you mean 'base.yaml'?"
    )


def test_a_file_of_another_folder_has_its_path(tmp_path: Path) -> None:
    name = str(tmp_path / "bsae.yaml")
    assert refused(name).endswith(f"Did you mean {str(tmp_path / 'base.yaml')!r}?")


def test_files_of_another_kind_are_not_suggested() -> None:
    assert "Did you mean 'basic" not in refused("basic")
    assert refused("tune_it").count("tune_it") == 1
    assert refused("tune-it.yaml", "study").endswith("no built-in study of that name. Did you mean 'tune_it.yml'?")


def test_where_nothing_is_similar_all_are_named() -> None:
    assert "name. Files here: base.yaml. Built in: comet_table3, " in refused("xxxx")
    assert "name. Files here: tune_it.yml. Built in: fair_table1, " in refused("xxxx", "study")
    assert refused("quickstrat").endswith("Did you mean 'quickstart'?")


def test_folders(tmp_path: Path) -> None:
    assert refused(".") == ". is a folder, not a grid file. Files here: base.yaml."
    assert refused("nowhere/base.yaml") == "there is no grid file 'nowhere/base.yaml': there is no folder 'nowhere'"
    (tmp_path / "empty").mkdir()
    assert refused("empty") == "empty is a folder, not a grid file. No grid file is in it."


def test_a_missing_name() -> None:
    said = str(missing_option("grid", "--grid ", "run"))
    assert said.endswith("or the name of a built-in one: bench run --grid NAME. Files here: base.yaml.")
    assert str(missing_option("file", "", "data")).endswith("bench data NAME. Files here: base.yaml.")


def test_a_plugin_that_fails_is_not_followed_by_the_names_that_it_would_have_registered(folder: Path) -> None:
    (folder / "mine.py").write_text("import nothing_of_that_name\n", encoding="utf-8")
    (folder / "plugged.yaml").write_text("plugins: [mine.py]\nmethods: [mine]\nalpha: 1\n", encoding="utf-8")
    said = refused("plugged.yaml")
    assert said.startswith("plugged.yaml:1: mine.py cannot be imported: ModuleNotFoundError: No module named 'nothing_")
    assert "\n" not in said
