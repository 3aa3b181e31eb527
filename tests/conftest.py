"""Settings of every test run."""

import atexit
import gc
import os
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path

import pytest

from tests.broken_torchscript import asked, break_in_commands, break_torchscript
from tests.processes import free_memory, processes
from tests.warm import PATIENCE, Python, Start, Started, Warm

ROOT = Path(__file__).parents[1]


@pytest.hookimpl(optionalhook=True)  # for pytest without xdist
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """How many processes `-n auto` is."""
    from bench.store.provenance import cores

    return processes(cores(), free_memory(), config.getoption("markexpr"))


def pytest_configure(config: pytest.Config) -> None:
    """One intra-op thread: the byte promise rests on it, and the test workers share few cores."""
    os.environ["OMP_NUM_THREADS"] = "1"  # torch reads it when it is imported, here and in processes that tests start
    os.environ["BENCH_TRACKING"] = "0"  # only the tests of the mirror turn it on, because MLflow costs seconds
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return  # this process hands the tests out and runs none

    import torch

    torch.set_num_threads(1)
    if how := asked():
        break_torchscript(how)

    import hypothesis

    from tests.drawn import look_at_pictures

    look_at_pictures()
    # No deadlines, as times mean little on a shared machine. The same examples in every run keep CI's result
    # repeatable.
    hypothesis.settings.register_profile("bench", deadline=None, derandomize=True)
    hypothesis.settings.load_profile("bench")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The millions of objects that importing and collecting makes live as long as the process: they are not looked
    through for garbage, neither meanwhile nor later, which took 7% of the quick tests' time."""
    atexit.register(gc.unfreeze)  # libraries look at the end for objects of theirs that nobody has taken away
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 20, 50)
        gc.enable()


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of commands: the odd methods are installed as a plug-in, and byte code is kept, as is Python's
    default. In `make without-torchscript` TorchScript is broken in them, too."""
    site = tmp_path_factory.mktemp("site")
    info = site / "odd_methods-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-methods\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[bench.methods]\nodd = odd_methods\n", encoding="utf-8")
    if how := asked():
        break_in_commands(site, how)
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    path = os.pathsep.join([str(site), str(ROOT / "tests" / "runs"), str(ROOT), kept.get("PYTHONPATH", "")])
    return {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def fresh(environment: dict[str, str]) -> Start:
    """Start the command `bench` in a folder, in a new interpreter and a process group of its own."""

    def start(arguments: list[str], folder: Path, more: Mapping[str, str] | None = None) -> Started:
        command, pipe = [sys.executable, "-m", "bench.cli", *arguments], subprocess.PIPE
        return subprocess.Popen(
            command, cwd=folder, env={**environment, **(more or {})}, stdout=pipe, stderr=pipe, text=True,
            start_new_session=True,
        )  # fmt: skip

    return start


@pytest.fixture(scope="session")
def warm(request: pytest.FixtureRequest, environment: dict[str, str]) -> Iterator[Warm | None]:
    """A process that has imported torch, on Linux and except in `make slow` and `make faults`."""
    if sys.platform != "linux" or "not slow" not in request.config.getoption("markexpr"):
        yield None
        return
    process = Warm(environment)
    yield process
    process.end()


@pytest.fixture(scope="session")
def start_in(warm: Warm | None, fresh: Start) -> Start:
    """As `fresh`, but forked from the warm process where there is one."""
    return warm.start if warm else fresh


@pytest.fixture(scope="session")
def python(warm: Warm | None, environment: dict[str, str]) -> Python:
    """Run a script, or code after `-c`, in a folder to its end, forked from the warm process where there is one; its
    exit status should be `code`."""

    def run(*arguments: object, folder: Path, code: int = 0) -> "subprocess.CompletedProcess[str]":
        words, pipe = [*map(str, arguments)], subprocess.PIPE
        process: Started = (
            warm.python(words, folder)
            if warm
            else subprocess.Popen(
                [sys.executable, *words], cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True,
                start_new_session=True,
            )
        )  # fmt: skip
        with process:
            out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == code, f"exit status {process.returncode}\n{out}\n{err}"
        return subprocess.CompletedProcess(words, code, out, err)

    return run
