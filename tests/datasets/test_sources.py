"""All data sets: options that a grid can hold, and Croissant metadata that are complete and true."""

import hashlib
import importlib.util
import inspect
import json
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from bench import croissant
from bench.citations import DATA_SET, papers
from bench.plugin import DATASETS
from datasets import sources, watch
from tests.conftest import ROOT

NAMES = sorted(sources.SOURCES)


def described(name: str) -> dict[str, Any]:
    return dict(json.loads(sources.describe(name)))


def files(name: str, kind: str = "cr:FileObject") -> list[dict[str, Any]]:
    return [entry for entry in described(name).get("distribution", []) if entry["@type"] == kind]


def test_every_data_set_has_a_source_or_reads_data_of_the_user() -> None:
    """Each option is a keyword with a type that JSON can hold."""
    ours = {name for name in DATASETS.names() if DATASETS.get(name).__module__.startswith("datasets.")}
    of_users = {"csv", "hugging_face", "image_folder", "npz", "parquet", "pfllib", "texts"}
    assert ours - {*NAMES} == of_users  # others are of tests
    for name in ours:
        parameters = inspect.signature(DATASETS.get(name)).parameters
        assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters.values()), name
        for option in parameters.keys() - {"data_root", "download"}:
            TypeAdapter(parameters[option].annotation).json_schema()


def test_the_package_loads_where_only_the_core_is_installed() -> None:
    optional = ["sklearn", "torchvision", "matplotlib", "PIL", "scipy", "mlflow"]
    code = f"""import sys
sys.modules.update(dict.fromkeys({optional}))  # None: importing them fails
from bench.plugin import DATASETS, PARTITIONS
print(len(DATASETS.names()), len(PARTITIONS.names()))"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize("name", NAMES)
def test_metadata_say_who_where_and_under_which_terms(name: str) -> None:
    facts, source = described(name), sources.SOURCES[name]
    assert facts["conformsTo"] == croissant.VERSION
    assert facts["creator"]
    assert ("distribution" in facts) != ("draws its samples" in facts["description"])
    assert facts["citeAs"] == "\n".join(papers().get(DATA_SET + name, ())) or "pfleague" in facts["citeAs"]
    assert ("license" in facts) != ("No licence is recorded here" in facts["description"])
    assert ("fetches nothing" in facts["description"]) == bool(source.place) == bool(files(name, "cr:FileSet"))
    for entry in files(name):
        algorithm, length = ("md5", 32) if "md5" in entry else ("sha256", 64)
        assert len(entry[algorithm]) == length
        assert int(entry[algorithm], 16)
        assert "{" not in entry["contentUrl"]


def test_files_that_packages_bring_are_those_described() -> None:
    [entry] = files("digits")
    content = Path(str(distribution("scikit-learn").locate_file(entry["contentUrl"]))).read_bytes()
    assert (entry["contentSize"], entry["sha256"]) == (f"{len(content)} B", hashlib.sha256(content).hexdigest())
    if packed := watch.packed_file():
        [entry] = files("watch")
        assert packed.as_posix().endswith(entry["contentUrl"])
        assert entry["contentSize"] == f"{packed.stat().st_size} B"
        assert entry["sha256"] == hashlib.sha256(packed.read_bytes()).hexdigest()


def test_names_are_spoken_names() -> None:
    entry = r"  author = {B{\'a}ndi, P{\'e}ter and Kone{\v{c}}n{\'y}, Jakub and {The Authors} and others},"
    assert croissant._creators(entry) == [
        {"@type": "sc:Person", "name": "Péter Bándi"},
        {"@type": "sc:Person", "name": "Jakub Konečný"},
        {"@type": "sc:Organization", "name": "The Authors"},
    ]
    spoken = [person["name"] for name in NAMES for person in described(name)["creator"]]
    assert [name for name in spoken if any(sign in name for sign in "\\{},")] == []


@pytest.mark.long
def test_the_command_writes_all_of_them_and_the_validator_takes_them(tmp_path: Path) -> None:
    """The second part where `mlcroissant` is installed (`make validate` runs it in an environment of its own)."""
    command = [sys.executable, "-m", "bench.cli", "datasets", "--croissant", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "csv, hugging_face, image_folder, npz, parquet, pfllib, texts" in done.stdout
    assert sorted(path.stem for path in (tmp_path / "out").iterdir()) == NAMES
    assert (tmp_path / "out" / "mnist.json").read_text(encoding="utf-8") == sources.describe("mnist")
    if importlib.util.find_spec("mlcroissant"):
        subprocess.run([sys.executable, ROOT / ".ci" / "validate", "out"], cwd=tmp_path, check=True)
