"""What `bench.run` takes beside files: dictionaries, settings, and classes of a script, a notebook or a file."""

import json
from pathlib import Path
from typing import Any

import pytest

import bench
from bench.errors import UserError
from tests.runs.sessions import METHOD, session
from tests.warm import Python

SCRIPT = """
import json

import bench
import numpy
from bench.errors import UserError
from bench.method import Hyperparameters, Method, Train, Upload, cross_entropy, hp
{top}

def halfway(one, other, share):
    return share * one.weights + (1 - share) * other.weights


class Hyper(Hyperparameters):
    share: float = hp(0.5, ge=0, le=1)


class Mine(Method):
    Hyper = Hyper
    mean_of = ("model",)

    def client_round(self, client, down):
        trained = yield Train({{"w": down["model"]}}, loss=cross_entropy)
        yield Upload({{"model": trained["w"].with_weights(halfway(down["model"], trained["w"], {share}))}})
        return trained["w"]


class Inside(bench.Callback):
    in_worker = True

    def after_version(self, at):
        with open(f"seen_{{at.settings.name}}.txt", "a") as file:
            print(at.round, *at.server, file=file)


if __name__ == "__main__":
    grid = {{"methods": {methods}, "datasets": ["digits"], "alphas": [1.0], "clients": 4, "rounds": 1}}
    grid |= {{"model": "logistic", "batch_size": 10, "lr": 0.1}}
    try:
        view = bench.run(grid, out="run", methods=[Mine], callbacks=[Inside()], device="cpu", jobs=1, quiet=True)
        print(json.dumps([[cell.label, cell.id, cell.status.state, cell.status.reason] for cell in view.cells]))
    except UserError as error:
        print(json.dumps(f"refused: {{error}}"))
"""


def script(python: Python, folder: Path, **parts: str) -> Any:
    """Run the script with other parts; what it prints."""
    text = SCRIPT.format(**{"top": "", "share": "self.hp.share", "methods": "['fedavg']", **parts})
    (folder / "mine.py").write_text(text, encoding="utf-8")
    return json.loads(python("mine.py", folder=folder).stdout)


@pytest.mark.long
def test_a_method_of_a_script_runs_and_its_code_alone_makes_its_id(tmp_path: Path, python: Python) -> None:
    """Whether the grid names it or not; the rest of the script does not count."""
    plain = {label: rest for label, *rest in script(python, tmp_path)}
    assert [state for _, state, _ in plain.values()] == ["done", "done"], plain
    for label in plain:  # a callback of the script is known to its workers, too
        assert (tmp_path / f"seen_{label}.txt").read_text() == "1 model\n"
    top, named = "OTHER = numpy.arange(3)\nclass Unused: ...\n", "[{'name': 'mine', 'share': 0.5}]"
    assert [row[1:] for row in script(python, tmp_path, top=top, methods=named)] == [plain["mine"]]
    changed = {label: id for label, id, *_ in script(python, tmp_path, share="1 - self.hp.share")}
    assert changed["fedavg"] == plain["fedavg"][0]
    assert changed["mine"] != plain["mine"][0]


@pytest.mark.long
def test_a_value_of_the_script_is_refused_by_name(tmp_path: Path, python: Python) -> None:
    assert script(python, tmp_path, top="SHARE = 0.5", share="SHARE") == (
        "refused: method 'mine' uses SHARE of the script, which its workers do not have: make it part of the "
        "definition (a hyperparameter, an option, an argument's default), or put all of it into a .py file and load "
        "that by bench.load_file"
    )
    assert not list(tmp_path.glob("run/*/status.json"))


@pytest.mark.long
def test_a_class_of_a_notebook_needs_no_decorator(tmp_path: Path, python: Python) -> None:
    """It makes the cells that it makes with one; defined anew it makes others."""
    bare = METHOD.replace('@METHODS.register("mine")\n', "")
    grid = {"datasets": ["digits"], "alphas": [1.0], "clients": 4, "rounds": 1, "model": "logistic", "batch_size": 10}
    run = f"""
view = bench.run({{**{grid!r}, "methods": METHODS_HERE}}, out="run", device="cpu", quiet=True, methods=[Mine])
print(json.dumps([[cell.label, cell.id, cell.status.state] for cell in view.cells]))
"""
    first, decorated, changed = session(
        python,
        tmp_path,
        [
            "import bench",
            bare, run.replace("METHODS_HERE", "[]"),
            METHOD, run.replace("METHODS_HERE", '["mine"]'),
            bare.replace("/ 2", "/ 3"), run.replace("METHODS_HERE", "[]"),
        ],
    )  # fmt: skip
    assert first == decorated
    assert [state for *_, state in (*first, *changed)] == ["done", "done"]
    assert first[0][1] != changed[0][1]


def test_what_is_no_method_or_of_an_unknown_file_is_refused(tmp_path: Path) -> None:
    from bench.method import Method

    kind = type("FedProx", (Method,), {"__module__": __name__})
    with pytest.raises(UserError, match=r"method FedProx of tests\.api\.test_python is not registered: put `@METHO"):
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


TEXTS = [
    (
        "run",
        {"grid": "quickstart", "overrides": "rounds=5"},
        "overrides: give a list, for instance overrides=['rounds=5']",
    ),
    ("run", {"grid": "quickstart", "allow_fallback": "graph"}, "allow_fallback: give a list"),
    ("sweep", {"study": "league_1_small", "overrides": "trials=5"}, "overrides: give a list"),
    ("report", {"runs": "run", "target": "90"}, "target: give a list, for instance target=['90']"),
    ("report", {"runs": "run", "columns": "digits"}, "columns: give a list"),
]


@pytest.mark.parametrize(("function", "arguments", "message"), TEXTS)
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
