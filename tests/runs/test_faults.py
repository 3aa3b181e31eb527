"""Faults of the machine: kills at random moments, a full disk, no memory left, and files that contain code."""

import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench.errors import UserError
from bench.method import (
    METHODS,
    Batch,
    Client,
    Method,
    Program,
    State,
    Train,
    Upload,
    Values,
    cross_entropy,
)
from bench.plugin import DATASETS
from bench.rng import generator
from bench.runs.cell import run_cell
from bench.store import checkpoint, store
from tests.engine.problems import run, toy
from tests.runs.conftest import Bench, Cell, Grid
from tests.runs.helpers import EVERY_ROUND, cells, contents, forked_by, states, undisturbed, until, wait_for
from tests.warm import PATIENCE, Start, Started

pytestmark = pytest.mark.faults


MOMENTS = [pytest.param(k, marks=[pytest.mark.slow] if k >= 1 else []) for k in range(24)]
"""Seeded moments of a kill: one in every test run, all with `make faults`."""


def workers_of(process: Started) -> list[int]:
    """The processes of a run that train: children of the server that the run started."""
    return [worker for server in forked_by(process.pid) for worker in forked_by(server)]


@pytest.mark.long
@pytest.mark.usefixtures("odd_methods")
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_killed_at_random_moments(bench: Bench, start: Start, grid: Grid, tmp_path: Path, moment: int) -> None:
    """The main process or a worker is killed one to three times; the next command ends as if nothing had been
    killed."""
    rng = generator("tests", "faults", "moments", moment)
    file, run_folder = grid(methods=[{"name": "odd_slow", "nap": 0.05}, "fedper"], rounds=12), tmp_path / "run"
    common = ("run", "--device", "cpu", "--jobs", 1, "--checkpoint-seconds", 0.1)
    arguments = (*common, "--grid", file, "--out", run_folder)
    for kill in range(1 + moment % 3 if moment >= 3 else 1):
        with start(*arguments, "--quiet") as process:
            wait_for(process, run_folder, int(rng.integers(1, 6)) if kill == 0 else 0)
            time.sleep(float(rng.uniform(0, 0.4)))
            victims = [process.pid] if (moment + kill) % 2 == 0 else workers_of(process)[:1]
            assert kill or victims  # a later command may not have a worker yet
            for victim in victims:
                os.kill(victim, signal.SIGKILL)
            process.communicate(timeout=PATIENCE)
    until(lambda: "running" not in states(run_folder).values())  # a worker ends with its parent and releases its lock
    bench(*arguments)
    assert set(states(run_folder).values()) == {"done"}
    assert contents(run_folder) == undisturbed(run_folder, tmp_path / "whole")
    assert not list(run_folder.rglob("*.tmp"))


@pytest.mark.long
def test_without_the_server_of_its_workers_a_run_goes_on(start: Start, grid: Grid, tmp_path: Path) -> None:
    """The system kills the server and the worker for lack of memory: that cell fails, the next one gets a new
    server."""
    file, run = grid(methods=[{"name": "odd_slow", "nap": 0.1}, "fedavg"], rounds=20), tmp_path / "run"
    with start("run", "--grid", file, "--out", run, "--device", "cpu", "--jobs", 1) as process:
        wait_for(process, run, 3)
        (server,) = forked_by(process.pid)
        (worker,) = forked_by(server)
        for victim in (server, worker):
            os.kill(victim, signal.SIGKILL)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, err
    found = states(run)
    assert found.pop("odd_slow") in ("failed", "interrupted")  # the worker may still hold the cell then
    assert found == {"fedavg": "done"}
    assert "odd_slow blobs alpha=1 seed=0: failed" in err
    assert "Traceback" not in err


@pytest.mark.long
@pytest.mark.usefixtures("odd_methods")
def test_a_full_disk_is_one_line_and_the_run_goes_on_after(grid: Grid, environment: dict[str, str], bench: Bench,
                                                            tmp_path: Path) -> None:  # fmt: skip
    """No file may exceed 30 kB, so the checkpoint does not fit and the cell fails; with enough room the rest is
    done."""
    file, folder = grid(methods=["fedavg", "local"], model="mlp", rounds=4, clients=8), tmp_path / "run"
    arguments = ["run", "--grid", file, "--out", folder, "--device", "cpu", "--jobs", 1, "--checkpoint-seconds", 0]

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    # Without byte code, because Python would keep a byte code file of which only a part fits.
    command = [sys.executable, "-m", "bench.cli", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=tmp_path, env={**environment, "PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True, text=True,
        preexec_fn=small_files, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "the disk is full" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    bench(*arguments)
    assert set(states(folder).values()) == {"done"}
    assert contents(folder) == undisturbed(folder, tmp_path / "whole")


@pytest.mark.long
def test_a_cell_whose_end_cannot_be_written_is_not_done(bench: Bench, grid: Grid, tmp_path: Path) -> None:
    """In the first command the disk becomes full in the last round; the reason is said even where no progress is."""
    file, folder = grid(methods=[{"name": "odd_full", "round": 3}], rounds=3), tmp_path / "run"
    arguments = ("run", "--grid", file, "--out", folder, "--device", "cpu", "--jobs", 1, "--checkpoint-seconds", 0)
    done = bench(*arguments, "--quiet", code=1)
    assert done.stderr.startswith(
        "odd_full blobs alpha=1 seed=0: its end could not be written: the disk is full while writing "
    )
    assert states(folder) == {"odd_full": "interrupted"}
    assert list(cells(folder)["odd_full"].folder.glob("checkpoint/*"))


@pytest.mark.long
@pytest.mark.usefixtures("odd_methods")
def test_a_run_whose_folder_is_removed_stops(start: Start, grid: Grid, tmp_path: Path) -> None:
    """It does not train on for nothing, and says so in place of what `load_run` says of a folder that is none."""
    slow = {"name": "odd_slow", "nap": 0.05, "until": str(tmp_path / "never")}
    file, run = grid(methods=[slow], rounds=10_000), tmp_path / "run"
    with start("run", "--grid", file, "--out", run, "--device", "cpu", "--jobs", 1, "--quiet") as process:
        wait_for(process, run, 1)
        run.rename(tmp_path / "moved")
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert said == f"bench: {run} was removed or moved while its cells ran, so they were stopped: run them again\n"
    assert not run.exists()


@pytest.mark.long
def test_a_cell_without_memory_fails_alone(bench: Bench, grid: Grid, tmp_path: Path) -> None:
    methods = [{"name": "fedavg", "label": "huge", "set": {"model": "mlp", "model_options": {"hidden": 2 * 10**10}}}]
    file, folder = grid(methods=[*methods, "fedavg"], rounds=2), tmp_path / "run"
    done = bench("run", "--grid", file, "--out", folder, "--device", "cpu", "--jobs", 1, code=1)
    assert states(folder) == {"huge": "failed", "fedavg": "done"}
    assert "out of memory: run fewer cells side by side" in done.stdout + done.stderr


def test_a_resumed_run_keeps_the_smaller_cohorts_that_gpu_memory_allowed() -> None:
    federation, resumed = toy("fedavg"), toy("fedavg")
    run(federation, 1)
    federation.engine.lanes, federation.warnings = 16, ["GPU memory ran out"]
    resumed.restore(*federation.state())
    assert (resumed.engine.lanes, resumed.warnings) == (16, ["GPU memory ran out"])


class _Nan(Method):
    """FedAvg whose loss is nan from the second round on, while its gradient stays finite."""

    mean_of = ("model",)

    def client_round(self, client: Client, down: State) -> Program:
        client.state["rounds"] = client.state.get("rounds", 0) + 1
        late = torch.tensor(float(client.state["rounds"] > 1))
        trained = yield Train({"w": down["model"]}, loss=nan_loss, context={"late": late})
        yield Upload({"model": trained["w"]})


def nan_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> torch.Tensor:
    """Cross-entropy, and a constant that becomes nan."""
    return cross_entropy(model, values, batch, ctx) + torch.where(ctx.late > 0, torch.nan, 0.0)


def test_a_loss_that_is_no_number_ends_the_cell_at_its_round(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS._items, "test_nan", _Nan)
    status = run_cell(cell(method="test_nan", rounds=5), tmp_path, EVERY_ROUND)
    assert (status.state, status.rounds) == ("diverged", 1)
    assert status.reason.startswith("round 2: the loss of client 0 is not finite")
    assert (tmp_path / "metrics.csv").read_text().count("\n") > 1  # its curve is kept


class Bomb:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (os.environ["BENCH_TEST_BOMB"],)


def test_files_from_others_run_no_code(cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle in place of a checkpoint's tensors, with a matching checksum, and a pickle inside an .npz file."""
    trace = tmp_path / "ran"
    monkeypatch.setenv("BENCH_TEST_BOMB", str(trace))
    planted = tmp_path / "checkpoint"
    checkpoint.Writer(planted).save(checkpoint.Checkpoint(1, {"server/w": torch.ones(2)}, {"x": 1}))
    (file,) = planted.rglob("server.pt")
    manifest = file.with_name("manifest.json")
    old = store.checksum(file)
    file.unlink()
    torch.save({"server/w": Bomb()}, file)
    manifest.write_text(manifest.read_text().replace(old, store.checksum(file)))
    assert not list(checkpoint.load(planted))
    np.savez(tmp_path / "evil.npz", train_images=np.array([Bomb()], dtype=object), train_labels=np.zeros(1, int))
    with pytest.raises(UserError, match=r"evil\.npz"):
        DATASETS.get("npz")(data_root=tmp_path, download=False, path=str(tmp_path / "evil.npz"))
    assert not trace.exists()
    pickle.loads(pickle.dumps(Bomb()))  # the bomb really works
    assert trace.exists()
