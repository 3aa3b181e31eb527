"""What a release is: the files of a commit, the same bytes every time, and nothing forgotten."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

import bench
from tests.conftest import ROOT

UV = Path(sys.executable).with_name("uv")
PACKAGES = ("bench", "methods", "datasets", "sweeps", "reports")


def built(out: Path, umask: int) -> dict[str, bytes]:
    """The files of a release, by name, built by somebody with that umask."""
    subprocess.run([ROOT / ".ci" / "dist", UV, out], check=True, capture_output=True, umask=umask, cwd=out.parent)
    return {file.name: file.read_bytes() for file in out.iterdir()}


@pytest.mark.slow
@pytest.mark.skipif(not UV.exists() or not (ROOT / ".git").exists(), reason="needs uv and the repository")
def test_a_commit_gives_the_same_bytes_twice_and_all_its_files(tmp_path: Path) -> None:
    first, second = built(tmp_path / "first", 0o022), built(tmp_path / "second", 0o077)
    name = f"pfleague-{bench.__version__}"
    wheel_name, entries = f"{name}-py3-none-any.whl", f"{name}-league-entries.tar"
    assert sorted(first) == ["SHA256SUMS", entries, wheel_name, f"{name}.tar.gz"]
    assert first == second
    listed = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", "HEAD", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert len(first[wheel_name]) < 3_000_000
    with zipfile.ZipFile(tmp_path / "first" / wheel_name) as wheel:
        held = {file for file in wheel.namelist() if f"{name}.dist-info" not in file}
        assert held == {file for file in listed if not file.startswith("reports/league/entries/")}
        assert wheel.read("bench/papers.bib") == (ROOT / "bench" / "papers.bib").read_bytes()


def test_workflows_call_targets_of_the_makefile_on_every_python() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    files = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    jobs = {
        name: job for file in files for name, job in yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"].items()
    }
    matrix = jobs["tests"]["strategy"]["matrix"]
    steps = [step.get("run", "") for job in jobs.values() for step in job["steps"]]
    called = {*matrix["target"], *(entry["target"] for entry in matrix["include"])}
    called |= set(re.findall(r"make ([\w-]+)", "\n".join(steps)))
    assert called >= {"test", "test-all", "oldest", "lint", "docs", "demo", "league", "release", "install", "validate"}
    assert [target for target in called if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []
    assert matrix["python"] == ["3.11", "3.12", "3.13", "3.14"]


def test_the_image_has_what_the_wheel_is_built_of_and_runs_the_demo_as_a_user() -> None:
    """Nothing that is not in the context, each package in it, no index by its address, and never root."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    context = set(re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE))
    assert context >= {*PACKAGES, "pyproject.toml", "constraints.txt", "README.md", "LICENSE"}
    assert [name for name in context if not (ROOT / name).exists()] == []
    assert re.findall(r"https?://[^\s/]+", text) == []
    assert re.findall(r"^FROM \S+ AS (\w+)$", text, re.MULTILINE) == ["build", "cuda", "cpu"]
    ends = re.findall(r'^USER (\d+)$|^CMD \["run", "--grid", "(\S+)"', text, re.MULTILINE)
    assert ends == [("1000", ""), ("", "quickstart.yaml")] * 2
