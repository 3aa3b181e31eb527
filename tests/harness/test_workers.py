"""Worker processes, and the server that they are forked from."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench.schedule import PRELOAD

CODE = """
import importlib, os, torch

def touched(*_):
    raise SystemExit("a GPU was touched")

torch._C._cuda_init = torch._C._cuda_getDeviceCount = torch.cuda._lazy_init = touched
for name in {names}:
    importlib.import_module(name)
print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="asks Linux for the threads")
def test_the_server_can_be_forked(environment: dict[str, str]) -> None:
    """A process that has used a GPU, or has threads, cannot."""
    alone = {**environment, "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CODE.format(names=PRELOAD)]
    done = subprocess.run(command, env=alone, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
