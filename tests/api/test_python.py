"""What `bench.run` takes beside files: dictionaries, settings, and classes of a script, a notebook or a file."""

from pathlib import Path
from typing import Any

import pytest

import bench
from bench.errors import UserError
from tests.runs.sessions import METHOD, session
from tests.warm import Python


@pytest.mark.long
def test_a_class_of_a_notebook_needs_no_decorator(tmp_path: Path, python: Python) -> None:
    """It makes the cells that it makes with one."""
    bare = METHOD.replace('@METHODS.register("mine")\n', "")
    grid = {"datasets": ["digits"], "alphas": [1.0], "clients": 4, "rounds": 1, "model": "logistic", "batch_size": 10}
    run = f"""
view = bench.run({{**{grid!r}, "methods": METHODS_HERE}}, out="run", device="cpu", quiet=True, methods=[Mine])
print(json.dumps([[cell.label, cell.id, cell.status.state] for cell in view.cells]))
"""
    cells = ["import bench", bare, run.replace("METHODS_HERE", "[]"), METHOD, run.replace("METHODS_HERE", '["mine"]')]
    first, decorated = session(python, tmp_path, cells)
    assert first == decorated
    assert [state for *_, state in first] == ["done"]


def test_what_is_no_method_or_of_an_unknown_file_is_refused(tmp_path: Path) -> None:
    from bench.method import Method

    kind = type("FedProx", (Method,), {"__module__": __name__})
    with pytest.raises(UserError, match=r"method FedProx of tests\.api\.test_python is not registered: put `.regis"):
        bench.run({"methods": []}, tmp_path / "run", methods=[kind])
    with pytest.raises(UserError, match="methods: 'scd' is none: give classes"):
        bench.run({"methods": []}, tmp_path / "run", methods=["scd"])  # type: ignore[list-item]
    here = type("FedProx", (Method,), {"__module__": "__main__"})
    with pytest.raises(UserError, match="method FedProx: there is a method 'fedprox' already: give yours another name"):
        bench.run({"methods": []}, tmp_path / "run", methods=[here])
    from methods.fedprox import FedProx

    settings = bench.Settings(method="fedavg", alpha=1.0)
    with pytest.raises(UserError, match="methods: no cell of the grid is of fedprox, and it is expanded already"):
        bench.run(settings, tmp_path / "run", methods=[FedProx])


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        ("run", {"grid": "quickstart", "overrides": "rounds=5"}, "overrides: give a list, for instance overrides=['r"),
        ("run", {"grid": "quickstart", "allow_fallback": "graph"}, "allow_fallback: give a list"),
        ("sweep", {"study": "league_1_small", "overrides": "trials=5"}, "overrides: give a list"),
        ("report", {"runs": "run", "target": "90"}, "target: give a list, for instance target=['90']"),
        ("report", {"runs": "run", "columns": "digits"}, "columns: give a list"),
    ],
)
def test_a_text_in_place_of_a_list_is_refused(function: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        getattr(bench, function)(**arguments)
    assert str(error.value).startswith(message)


def test_a_grid_without_a_name_needs_a_folder() -> None:
    for grid in ({"methods": ["fedavg"], "datasets": ["digits"]}, bench.Settings(method="fedavg", alpha=1.0)):
        with pytest.raises(UserError, match="the grid has no name: give it one"):
            bench.run(grid)
    with pytest.raises(UserError, match="the study has no name: give it one"):
        bench.sweep({"grid": "quickstart"})
