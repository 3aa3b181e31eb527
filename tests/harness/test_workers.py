"""Worker processes, and the server that they are forked from."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.schedule import PRELOAD
from tests.harness.helpers import forked_by

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


def test_the_server_can_be_forked(environment: dict[str, str]) -> None:
    """A process that has used a GPU, or has threads, cannot."""
    alone = {**environment, "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CODE.format(names=PRELOAD)]
    done = subprocess.run(command, env=alone, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_ctrl_c_does_not_reach_the_server_while_it_imports(
    start: Callable[..., "subprocess.Popen[str]"], grid: Callable[..., Path], tmp_path: Path
) -> None:
    with start(
        "run", "--grid", grid(methods=["fedavg"], rounds=2000), "--out", tmp_path / "run", "--device", "cpu"
    ) as process:
        deadline = time.monotonic() + 60
        while not (servers := forked_by(process.pid)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        status = Path(f"/proc/{servers[0]}/status").read_text()
        process.kill()
    blocked = int(next(line for line in status.splitlines() if line.startswith("SigBlk:")).split()[1], 16)
    assert all(blocked >> (sign - 1) & 1 for sign in (signal.SIGINT, signal.SIGTERM))
