"""The first seconds of a command, in a new interpreter."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.warm import Start


def test_it_speaks_before_torch_is_there_and_ctrl_c_ends_it_at_once(
    fresh: Start, grid: Callable[..., Path], tmp_path: Path
) -> None:
    """To the whole group, as a terminal sends it; no traceback, no run folder, and nobody is left."""
    began = time.monotonic()
    with fresh(
        ["run", "--grid", str(grid(methods=["fedavg"])), "--out", "run", "--device", "cpu"], tmp_path
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == f"bench run: {tmp_path / 'small.yaml'} is being read\n"
        spoke = time.monotonic() - began
        asked = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=30)
        answered = time.monotonic() - asked
        said = process.stderr.read()
    assert process.returncode == -signal.SIGINT
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()
    assert answered < 1, (spoke, answered)
