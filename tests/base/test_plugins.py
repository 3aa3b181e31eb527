"""Methods, data sets, partitions and models from a file: the example of the docs through the real command."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from bench.config.digests import code_digest
from bench.errors import UserError
from bench.plugin import SHIFTS, call_factory, load_file
from tests.conftest import ROOT
from tests.runs.helpers import cells, states
from tests.warm import PATIENCE, Start

EXAMPLE = ROOT / "docs" / "examples" / "plugin"
Run = Callable[..., str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The example, outside the repository."""
    return Path(shutil.copytree(EXAMPLE, tmp_path / "own"))


@pytest.fixture
def bench(start_in: Start, folder: Path) -> Run:
    """Run the command in that folder; what it said."""

    def run(*arguments: object, code: int = 0) -> str:
        with start_in([*map(str, arguments)], folder) as process:
            out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == code, out + err
        assert "Traceback" not in out + err
        return out + err

    return run


@pytest.mark.long
def test_the_example_runs_from_its_folder_in_worker_processes(bench: Run, folder: Path) -> None:
    """And a changed file makes new cells, of what it concerns only."""
    common = ("run", "--grid", "grid.yaml", "--out", "run", "--device", "cpu", "--jobs", 2)
    assert "6 cells to run" in bench(*common)
    assert set(states(folder / "run").values()) == {"done"}
    assert "0 cells to run, 6 finished before" in bench(*common)
    file = folder / "mine.py"
    file.write_text(file.read_text().replace('trained["w"].weights) / 2', '3 * trained["w"].weights) / 4'))
    assert "6 cells to run" in bench(*common)  # the data set, partition and model are of the same file


@pytest.mark.long
def test_a_plugin_by_option_and_its_remedy(bench: Run, folder: Path) -> None:
    """Without the file a name is unknown, and the message says how to name it; with it the cells are the same."""
    grid = yaml.safe_load((folder / "grid.yaml").read_text()) | {"methods": ["half_fedavg"], "seeds": [0]}
    before = folder / "with.yaml"
    before.write_text(yaml.safe_dump(grid))
    del grid["plugins"]
    (folder / "without.yaml").write_text(yaml.safe_dump(grid))
    common = ("run", "--device", "cpu", "--jobs", 1)
    said = bench(*common, "--grid", "without.yaml", code=2)
    assert "unknown method 'half_fedavg'" in said
    assert "--plugin FILE.py" in said
    bench(*common, "--grid", "without.yaml", "--plugin", "mine.py", "--out", "a")
    bench(*common, "--grid", "with.yaml", "--out", "b")
    assert [cell.id for cell in cells(folder / "a").values()] == [cell.id for cell in cells(folder / "b").values()]


TAKEN = "from bench.method import METHODS, Method\n\n@METHODS.register('fedavg')\nclass Taken(Method):\n    pass\n"


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("missing.py", None, "there is no file .*missing.py"),
        ("broken.py", "def (\n", "broken.py cannot be imported: invalid syntax"),
        ("grid.yaml", "", "is not a Python file"),
        ("name.py", "\nx = undefined\n", r"NameError: name 'undefined' is not defined \(name.py, line 2\)"),
        ("taken.py", TAKEN, "method 'fedavg' is registered twice"),
    ],
)
def test_a_bad_plugin_is_refused_in_one_line(file: str, text: str | None, said: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / file).write_text(text)
    with pytest.raises(UserError, match=said) as refused:
        load_file(tmp_path / file)
    assert "\n" not in str(refused.value)


@pytest.mark.long
def test_the_method_passes_the_checks(bench: Run) -> None:
    """The conformance suite takes the same file."""
    assert "half_fedavg" in bench("check-method", "mine.py")


@pytest.mark.long
def test_the_example_package_is_found_once_installed(fresh: Start, tmp_path: Path) -> None:
    """Built and installed by pip into a folder, as CI has no other environment to spoil; without it the names are
    unknown."""
    pytest.importorskip("setuptools")
    source = shutil.copytree(ROOT / "docs" / "examples" / "package", tmp_path / "package")
    target, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(source / "grid.yaml", elsewhere)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--target", target, source], check=True, timeout=PATIENCE)

    def bench(*arguments: str, installed: bool = True, code: int = 0) -> str:
        path = os.pathsep.join([*([str(target)] if installed else []), str(ROOT)])
        with fresh([*arguments], elsewhere, {"PYTHONPATH": path}) as process:
            out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == code, out + err
        return out + err

    common = ("run", "--grid", "grid.yaml", "--out", "run", "--device", "cpu", "--jobs", "2")
    assert "unknown method 'shy_fedavg'" in bench(*common, installed=False, code=2)
    assert "2 cells to run" in bench(*common)
    assert set(states(elsewhere / "run").values()) == {"done"}
    methods = target / "shy_clients" / "methods.py"
    methods.write_text(methods.read_text().replace("w.weights + self.hp.share", "w.weights - self.hp.share"))
    assert "1 cells to run, 1 finished before" in bench(*common)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("return Split([", "return ([", "partition 'left_to_right' returned list; it should return a Split"),
        ("clients)])", "clients - 1)])", "partition 'left_to_right': 'train' has 4 lists; the cell has 5 clients"),
        ("np.sort(part) for", "[order[0], *part] for", "client 0's list in 'train' has a sample twice"),
        ("x, label, samples", "x, label[:-1], samples", "600 samples, labels of shape (599,)"),
        (
            "return assemble(",
            "return {1: 2} or assemble(",
            "data set 'two_moons' returned dict; it should return a Data",
        ),
        (
            "rng.uniform(0, np.pi, samples)",
            "rng.uniform(0, np.pi, many)",
            "name 'many' is not defined (mine.py, line 3",
        ),
        ("nn.Linear(inputs, width)", "nn.Linear(9, width)", "model 'tiny_net' does not take samples of shape (2,)"),
        ("nn.Linear(width, classes)", "nn.Linear(width, 3)", "makes (2, 3) of 2 samples; logits are (2, 2)"),
        ("self.head(self.features(x))", "self.head(self.features(x)).tanh()", "forward(x) is not head(features(x))"),
    ],
)
@pytest.mark.long
def test_a_mistake_in_ones_own_is_told_before_training(bench: Run, folder: Path, old: str, new: str, said: str) -> None:
    """In a line with its place, and nothing is written."""
    file = folder / "mine.py"
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))
    assert said in bench("run", "--grid", "grid.yaml", "--device", "cpu", code=2)
    assert not (folder / "runs").exists()


@pytest.mark.long
def test_a_study_knows_the_plugins_of_its_grid(bench: Run, folder: Path) -> None:
    """Also where its space names a method of theirs; its own mistakes are told before those of the grid."""
    file = folder / "mine.py"
    text = file.read_text().replace("import METHODS, Client", "import METHODS, Client, Hyperparameters, Range, hp")
    own = "class Hyper(Hyperparameters):\n    share: float = hp(0.5, ge=0, le=1, search=Range(0.1, 0.9))\n\n\n"
    text = text.replace('@METHODS.register("half', own + '@METHODS.register("half')
    file.write_text(text.replace('    mean_of = ("model",)', '    Hyper = Hyper\n    mean_of = ("model",)'))
    study = {
        "grid": "grid.yaml",
        "set": {"methods": ["half_fedavg"], "rounds": 1},
        "space": {"half_fedavg.share": "own"},
    }
    study |= {"trials": 1, "seeds": [100, 101], "report_seeds": [0], "sampler": "random"}
    (folder / "study.yaml").write_text(yaml.safe_dump(study))
    said = bench("sweep", "--study", "study.yaml", "--out", "swept", "--device", "cpu", "--jobs", 1, "--no-page")
    assert "half_fedavg" in (folder / "swept" / "best.yaml").read_text()
    assert "share=0.5" in said
    study["space"] = {"half_fedavg.shar": "own"}
    study["grid"] = "nowhere.yaml"
    (folder / "study.yaml").write_text(yaml.safe_dump(study))
    said = bench("sweep", "--study", "study.yaml", "--out", "other", "--device", "cpu", code=2)
    assert "study.yaml:" in said


def test_a_factory_may_have_options_of_any_name() -> None:
    """`what`, `kind` and `factory` are names of `call_factory`'s own parameters, too."""

    def factory(**options: str) -> dict[str, str]:
        return options

    options = {"what": "a", "kind": "b", "factory": "c"}
    assert call_factory("data set 'mine'", dict, factory, **options) == options


@pytest.fixture
def fresh_plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget afterwards what a test loads, and where."""
    monkeypatch.setattr("bench.plugin._FILES", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    loaded = set(sys.modules)
    yield
    for name in sys.modules.keys() - loaded:
        del sys.modules[name]


HELPERS = {
    "at once": "from two_helper import SCALE\n",
    "within a function": "def scale():\n    import two_helper\n",
    "indirectly": "import two_between\n",
    "of a package": "import two_package.part\n",
    "of a folder": "from two_folder.part import SCALE\n",
}


def write_plugins(folder: Path, imports: str) -> list[Path]:
    """Write two plug-ins, each with modules of the same names."""
    plugins = []
    for name in ("a", "b"):
        home = folder / name
        for place in ("two_helper.py", "two_package/__init__.py", "two_package/part.py", "two_folder/part.py"):
            (home / place).parent.mkdir(exist_ok=True, parents=True)
            (home / place).write_text(f"SCALE = {name!r}\n")
        (home / f"two_between_{name}.py").write_text("import two_helper\n")
        plugins.append(home / f"two_{name}.py")
        plugins[-1].write_text(imports.replace("two_between", f"two_between_{name}"))
    return plugins


@pytest.mark.usefixtures("fresh_plugins")
@pytest.mark.parametrize("imports", HELPERS.values(), ids=HELPERS)
def test_a_plugin_that_would_run_the_module_of_another_is_refused(tmp_path: Path, imports: str) -> None:
    """The second: Python has one module of a name, so that it would run the first one's code under its own id."""
    first, second = write_plugins(tmp_path, imports)
    load_file(first)
    with pytest.raises(UserError, match=r"two_b.py imports 'two_\w+', but Python would take .*/a/.* and not .*/b/"):
        load_file(second)
    second.write_text("import two_own\n")
    (second.parent / "two_own.py").write_text("from two_other import SCALE\n")
    (second.parent / "two_other.py").write_text("SCALE = 'b'\n")
    load_file(second)
    assert sys.modules["two_other"].SCALE == "b"


@pytest.mark.usefixtures("fresh_plugins")
def test_modules_beside_a_plugin_count(tmp_path: Path) -> None:
    """A helper that the file imports is part of its cells' identity."""
    SHIFTS.names()
    own = "import two_helper\nfrom bench.plugin import SHIFTS\n\n@SHIFTS.register('two')\ndef two(x): ...\n"
    file, _ = write_plugins(tmp_path, own)
    load_file(file)
    before = code_digest(SHIFTS, "two")
    (file.parent / "two_helper.py").write_text("SCALE = 'another'\n")
    assert code_digest(SHIFTS, "two") != before
    SHIFTS.drop("two")


@pytest.mark.usefixtures("fresh_plugins")
def test_plugins_may_share_a_module(tmp_path: Path) -> None:
    """Of their folder, or by a link; and a module that a plug-in does not import may have any name."""
    first, second = write_plugins(tmp_path, "import two_helper\n")
    (second.parent / "two_helper.py").unlink()
    (second.parent / "two_helper.py").symlink_to(first.parent / "two_helper.py")
    (first.parent / "two_c.py").write_text("import two_helper\nimport bench.method\n")
    (first.parent / "numpy.py").write_text("")
    (first.parent / "bench.py").write_text("")
    for file in (first, second, first.parent / "two_c.py"):
        load_file(file)
    (first.parent / "scipy" / "deep").mkdir(parents=True)  # as a clone, whose root is no package
    (first.parent / "scipy" / "deep" / "setup.py").write_text("import two_absent\n")
    (first.parent / "two_e.py").write_text("import scipy\n")
    load_file(first.parent / "two_e.py")
    (first.parent / "two_d.py").write_text("import numpy\n")
    with pytest.raises(UserError, match=r"imports 'numpy', but Python would take .*__init__.py and not .*numpy.py"):
        load_file(first.parent / "two_d.py")
