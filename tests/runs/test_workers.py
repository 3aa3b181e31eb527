"""Worker processes and the server from which they are forked."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.config.grid import load_grid
from bench.runs import workers
from bench.runs.interrupts import interrupts_deferred
from bench.runs.workers import PRELOAD, LocalRunner
from tests.conftest import ROOT
from tests.runs.helpers import forked_by, until
from tests.warm import Start

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are spawned")

CODE = """
import importlib, os, torch

def touched(*_):
    raise SystemExit("a GPU was touched")

torch._C._cuda_init = torch._C._cuda_getDeviceCount = torch.cuda._lazy_init = touched
for name in {names}:
    importlib.import_module(name)
print(len(os.listdir("/proc/self/task")))
"""


AT_TORCH = """
import os
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path

class Finder(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print(Path(f"/proc/self/task/{{os.getpid()}}/children").read_text(), flush=True)
            os._exit(0)

sys.meta_path.insert(0, Finder())
sys.argv = {arguments}
from bench.cli import main
main()
"""
"""A command that prints the ids of its child processes, and ends, where it first imports torch."""


@pytest.mark.long
def test_the_server_can_be_forked(environment: dict[str, str]) -> None:
    """A process that has used a GPU or has threads cannot be forked."""
    alone = {**environment, "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CODE.format(names=PRELOAD)]
    done = subprocess.run(command, env=alone, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


@pytest.mark.long
def test_the_server_is_there_before_the_command_imports_torch(
    environment: dict[str, str], grid: Callable[..., Path], tmp_path: Path
) -> None:
    """The server imports torch while the command does. Where other packages register methods it comes later, as their
    names are known only with torch."""
    alone = {**environment, "PYTHONPATH": str(ROOT)}
    arguments = ["bench", "run", "--grid", str(grid(methods=["fedavg"])), "--device", "cpu"]
    command = [sys.executable, "-c", AT_TORCH.format(arguments=arguments)]
    done = subprocess.run(command, env=alone, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, bool(done.stdout.split())) == (0, True), done.stderr


@pytest.mark.long
def test_the_server_hears_no_ctrl_c_while_it_imports_and_ends_with_the_command(
    fresh: Start, grid: Callable[..., Path], tmp_path: Path
) -> None:
    """At once, whatever the server is doing: it is stopped here, so that it cannot notice by itself."""
    with fresh(["run", "--grid", str(grid(methods=["fedavg"])), "--device", "cpu"], tmp_path) as process:
        until(lambda: bool(forked_by(process.pid)))
        server = forked_by(process.pid)[0]
        status = Path(f"/proc/{server}/status").read_text()
        until(lambda: "libtorch" in Path(f"/proc/{server}/maps").read_text())
        os.kill(server, signal.SIGSTOP)
        process.kill()
    blocked = int(next(line for line in status.splitlines() if line.startswith("SigBlk:")).split()[1], 16)
    assert all(blocked >> (sign - 1) & 1 for sign in (signal.SIGINT, signal.SIGTERM))
    try:
        until(lambda: not Path(f"/proc/{server}").exists())
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_waits_for_the_end_of_the_block(sign: signal.Signals) -> None:
    """And afterwards the signal handlers are the earlier ones."""
    before = signal.getsignal(sign)
    done = []

    def interrupted() -> None:
        with interrupts_deferred():
            os.kill(os.getpid(), sign)
            done.append("all")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done == ["all"]
    assert signal.getsignal(sign) == before


@pytest.mark.parametrize(("gigabytes", "expected"), [(1000, 6), (5, 2), (1, 1)])
def test_a_gpu_gets_as_many_cells_as_cores_and_memory_allow(
    gigabytes: int, expected: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each of the small cells needs some megabytes, and its process a gigabyte; half of the memory is for them."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (0, gigabytes * 2**30))
    monkeypatch.setattr(workers, "cores", lambda: 6)
    runner = LocalRunner(None, "auto")
    assert runner.sharing == 1
    runner.check(load_grid("quickstart").cells[:1], tmp_path)
    assert runner.sharing == expected
    chosen = LocalRunner(3, "auto")
    chosen.check(load_grid("quickstart").cells, tmp_path)
    assert chosen.sharing == 3
