"""Names, options and hyperparameters are read without torch, and are those of the real items."""

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from bench.cli.app import app
from bench.cli.league import app as league_app
from bench.plugin import REGISTRIES, is_external
from tests.conftest import ROOT
from tests.reports.conftest import write_store

THIRD_PARTIES = {
    "annotated_types", "cython_runtime", "numpy", "pydantic", "pydantic_core", "typing_extensions", "typing_inspection",
}  # fmt: skip
"""Packages that may be imported beside the stand-in for torch; none of them looks for torch as it is imported."""

DESCRIBE = """
import json, sys
import bench.plugin
before = set(sys.modules)
names = {registry.kind: registry.names() for registry in bench.plugin.REGISTRIES}
imported = sorted({name.partition(".")[0] for name in sys.modules.keys() - before} - set(sys.stdlib_module_names))
from tests.base.test_declared import description
described = {
    registry.kind: {name: description(registry.declaration(name)) for name in names[registry.kind]}
    for registry in bench.plugin.REGISTRIES
}
forgotten = ("torch", "methods", "datasets", "bench.method", "bench.models")
left = [name for name in sys.modules if name.startswith(forgotten)]
method = bench.plugin.METHODS.get("scd")  # the real one, after the stand-in is gone
import torch
real = [method.__module__, issubclass(method, sys.modules["bench.method"].Method), torch.ones(2).sum().item()]
print(json.dumps({"described": described, "left": left, "imported": imported, "real": real}))
"""


def description(item: Any) -> dict[str, Any]:
    """All that commands and grids read of a registered item without running it."""
    hyper = getattr(item, "Hyper", None)
    return {
        "doc": inspect.getdoc(item),
        "module": item.__module__,
        "attributes": {key: repr(getattr(item, key, None)) for key in ("trains", "public", "mixes_models", "bound")},
        "options": [
            [parameter.name, repr(parameter.default), parameter.kind.name]
            for parameter in inspect.signature(item).parameters.values()
        ],
        "hyper": None if hyper is None else hyper.model_json_schema(),
        "defaults": None if hyper is None else json.loads(hyper().model_dump_json()),
    }


@pytest.mark.long
def test_what_is_declared_is_what_the_packages_register() -> None:
    """And nothing of the stand-in for torch is left behind for whoever trains."""
    done = subprocess.run([sys.executable, "-c", DESCRIBE], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    for registry in REGISTRIES:
        ours = [name for name in registry.names() if not is_external(registry.get(name))]  # other tests register more
        real = {name: json.loads(json.dumps(description(registry.get(name)))) for name in ours}
        assert answer["described"][registry.kind] == real
    assert answer["left"] == []
    assert {name for name in answer["imported"] if not name.startswith("_")} <= THIRD_PARTIES
    assert answer["real"] == ["methods.scd", True, 2.0]


WITHOUT_TORCH = """
import shlex, sys
from importlib.abc import MetaPathFinder

class Refuse(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise AssertionError("torch is imported")

sys.meta_path.insert(0, Refuse())
from bench.cli import main
for command in sys.stdin.read().splitlines():
    sys.argv = ["bench", *shlex.split(command)]
    try:
        main()
    except SystemExit as end:
        print("status", end.code, flush=True)
"""


def answered(lists: list[str], refused: list[str]) -> str:
    """What is said of commands that do not import torch: the first end with 0, the others with 2."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], input="\n".join([*lists, *refused]), capture_output=True, text=True,
        cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    statuses = [line for line in done.stdout.splitlines() if line.startswith("status ")]
    assert statuses == ["status 0"] * len(lists) + ["status 2"] * len(refused), done.stderr
    return done.stderr


REFUSED = {
    "run --grid quickstart.yaml --set methods=[fedavgg]": "'fedavgg'",
    "run --grid quickstart.yaml --set 'methods=[{{name: fedprox, mu: -1}}]'": "mu = -1",
    "run --grid quickstart.yaml --set 'methods=[{{name: scd, preset: none_such}}]'": "none_such",
    "run --grid quickstart.yaml --set model=mlpp": "'mlpp'",
    "run --grid quickstart.yaml --set 'model_options={{hiden: 3}}'": "'hiden'",
    "run --grid quickstart.yaml --set partition=dirichlett": "'dirichlett'",
    "run --grid quickstart.yaml --set learning_rat=1": "'learning_rat'",
    "run --grid quickstart.yaml --only method=none_such": "none of the 30 cells fits",
    "run --grid quickstart.yaml --device tpu": "--device tpu: there is no such device",
    "run --grid quickstart.yaml --out {file}/run": "is a file, not a folder",
    "run --grid quickstart.yaml --plugin none_such.py": "there is no file none_such.py",
    "sweep --study none_such": "no study file 'none_such'",
    "sweep --study league_1_small --set methods=[fedavg] --set trails=1": "'trails'",
    "sweep --study league_1_small --set methods=[fedavg] --gpus-per-cell 1": "are for --ray",
    "league run --method fedavg --tier huge": "'huge'",
    "league export --method none_such": "there is no runs",
    "league compare {file} {file}": "is a file, not a folder of entries",
    "report none_such --target x": "--target x",
    "verify none_such": "none_such is not a run",
    "check-method none_such.py": "there is no file none_such.py",
    "speed --workload none_such": "'none_such'",
    "compare none_such none_such": "none_such is not a run",
    "status none_such": "none_such is not a run",
}
"""Commands with something wrong in them, and what is said of it."""


@pytest.mark.long
def test_lists_are_answered_and_mistakes_refused_without_torch(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    lists = ["methods", "datasets", "models --json", "grids", "show quickstart.yaml"]
    err = answered(lists, [line.format(file=tmp_path / "file") for line in REFUSED])
    for said in REFUSED.values():
        assert said in err


@pytest.mark.long
def test_runs_are_read_and_reported_without_torch(tmp_path: Path) -> None:
    """Also by the help of every command."""
    run = write_store(tmp_path / "run", seeds=1, alphas=(1.0,), methods=("fedavg", "local"))
    commands = "status {0}", "status --all {0}", "results {0}", "results --csv {0}", "results --json {0}", "clean {0}"
    cell = next(run.glob("*/status.json")).parent.name
    further = "log {0} " + cell, "compare {0} {0}", "pack {0} --out {1}", "unpack {1} {1}-run", "report {0}"
    lines = [line.format(run, tmp_path / "packed") for line in (*commands, *further)]
    names = [name for name in typer.main.get_command(app).commands if name != "league"]
    league = [f"league {name}" for name in typer.main.get_command(league_app).commands]
    answered([*lines, "--help", "league --help", *(f"{name} --help" for name in (*names, *league))], [])
    assert (run / "report" / "index.html").exists()
