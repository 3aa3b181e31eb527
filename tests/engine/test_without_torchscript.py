"""If TorchScript fails in the whole process, methods of each kind have the same bytes and say so once."""

import functools
import json
import subprocess
import sys
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.engine.problems import ONE_OF_A_KIND
from tests.warm import PATIENCE

PROGRAM = """
import hashlib, json, sys, torch
from tests.broken_torchscript import break_torchscript

if sys.argv[1] != "nothing":
    break_torchscript(sys.argv[1])
torch.set_num_threads(1)

from bench.engine import backends
from tests.engine.problems import everything, run, toy

backends._RECORD_AFTER = 2
found = {}
for method in sys.argv[2:]:
    for executor in ("cohort", "sequential"):
        federation = toy(method, executor=executor, participation=0.6)
        scores = [row["value"] for row in run(federation, 3).metrics]
        digest = hashlib.sha256(repr(scores).encode())
        for name, tensor in sorted(everything(federation).items()):
            digest.update(name.encode() + tensor.numpy().tobytes())
        found[f"{method}, {executor}"] = [digest.hexdigest(), federation.engine.backend, federation.warnings]
print(json.dumps(found))
"""


@functools.cache
def _found(broken: str) -> dict[str, list[Any]]:
    command = [sys.executable, "-c", PROGRAM, broken, *sorted(ONE_OF_A_KIND)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[Any]] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["import", "recording"])
def test_without_torchscript_methods_of_each_kind_have_the_same_bytes_and_say_so_once(broken: str) -> None:
    """In both executors; TorchScript is broken for the whole process from its start."""
    sound, others = _found("nothing"), _found(broken)
    assert others.keys() == sound.keys()
    for name, (digest, backend, warnings) in sound.items():
        assert backend == "torchscript"
        notices = [text for text in others[name][2] if text not in warnings]
        assert others[name][:2] == [digest, "graph"], name
        assert len(notices) == 1, (name, notices)
        assert notices[0].startswith("the backend torchscript failed and graph takes its place: "), name
