"""Callbacks follow cells in the process that trains or in the user's, change nothing, and cost nothing if they fail."""

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch

import bench
from bench.errors import UserError
from bench.params import Params
from bench.runs.callbacks import CallbackListener, check_callbacks, pack_callback
from bench.runs.cell import run_cell
from bench.runs.cell_options import Options
from bench.runs.events import Event
from bench.settings import Settings
from bench.store.store import Status
from tests.runs.conftest import Cell
from tests.runs.helpers import contents

SEEN: list[tuple[Any, ...]] = []
"""What the callbacks of this file saw; those that are called where a cell trains are copies."""


class Recorder(bench.Callback):
    """Remembers everything."""

    def after_version(self, at: bench.Moment) -> None:
        SEEN.append(("version", at.round, at.state, at.rows, at.server))

    def after_evaluation(self, at: bench.Moment) -> None:
        SEEN.append(("evaluation", at.round, at.state, at.rows, at.server))

    def at_end(self, at: bench.Moment) -> None:
        SEEN.append(("end", at.round, at.state, at.rows, at.server))


class RecorderInside(Recorder):
    in_worker = True


class Vandal(bench.Callback):
    """Spoils all that it can reach."""

    in_worker = True

    def after_version(self, at: bench.Moment) -> None:
        assert at.server is not None
        for value in at.server.values():
            if isinstance(value, Params):
                value.weights.zero_()
                value.buffers.fill_(7.0)
        at.server.clear()
        at.rows["round"] = 0
        torch.manual_seed(at.round)
        torch.set_num_threads(3)
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)

    after_evaluation = at_end = after_version


class Breaks(bench.Callback):
    in_worker = True

    def after_evaluation(self, at: bench.Moment) -> None:
        raise ZeroDivisionError("by intention") if at.round == 2 else ValueError("too late")


class Leaves(bench.Callback):
    in_worker = True

    def after_version(self, at: bench.Moment) -> None:
        sys.exit("enough")


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    SEEN.clear()


def run(
    settings: Settings,
    folder: Path,
    *callbacks: bench.Callback,
    stop: Callable[[], bool] = lambda: False,
    inside: bool = False,
) -> tuple[Status, list[str]]:
    """Run a cell in this process, with callbacks as a session calls them; its status, and the warnings."""
    warnings: list[str] = []
    texts = tuple(text for callback in callbacks if (text := pack_callback(callback))) if inside else ()
    listener = CallbackListener(folder.parent, {folder.name: settings}, () if inside else callbacks, warnings.append)

    def report(event: Event) -> None:
        if event.warning:
            warnings.append(event.warning)
        listener(event)

    options = Options(device="cpu", executor="sequential", callbacks=texts)
    return run_cell(settings, folder, options, report=report, stop=stop), warnings


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "scd"},
        *(pytest.param({"method": name}, marks=pytest.mark.long) for name in ("fedavg", "fedala")),
        pytest.param({"method": "fedavg", "server": {"name": "fedbuff"}}, marks=pytest.mark.long),
    ],
)
def test_numbers_are_the_same_with_callbacks_and_without(cell: Cell, tmp_path: Path, changes: dict[str, Any]) -> None:
    """Even if they write into what they are shown and change torch's settings for the whole process."""
    settings = cell(rounds=3, **changes)
    before = torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_rng_state()
    run(settings, tmp_path / "plain" / "cell")
    for place, inside in (("inside", True), ("outside", False)):
        status, warnings = run(settings, tmp_path / place / "cell", RecorderInside(), Vandal(), inside=inside)
        assert status.state == "done"
        assert bool(warnings) != inside  # outside there is no state to spoil
        assert contents(tmp_path / place) == contents(tmp_path / "plain")
    after = torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_rng_state()
    assert before[:3] == after[:3]
    assert torch.equal(before[3], after[3])


def test_both_kinds_see_the_same_rows_in_the_same_order(cell: Cell, tmp_path: Path) -> None:
    """Those of the tables; the server's state is seen where the cell trains only, and is a copy."""
    settings = cell(method="ditto", rounds=4, eval_every=2)
    run(settings, tmp_path / "inside", RecorderInside(), inside=True)
    inside = list(SEEN)
    SEEN.clear()
    run(settings, tmp_path / "outside", Recorder())
    hooks = [(hook, round_, state) for hook, round_, state, *_ in SEEN]
    assert hooks == [
        ("version", 1, "running"), ("version", 2, "running"), ("evaluation", 2, "running"), ("version", 3, "running"),
        ("version", 4, "running"), ("evaluation", 4, "running"), ("end", 4, "done"),
    ]  # fmt: skip
    assert hooks == [(hook, round_, state) for hook, round_, state, *_ in inside]
    for (*_, theirs, server), (*_, rows, nothing) in zip(inside, SEEN, strict=True):
        pd.testing.assert_frame_equal(theirs, rows, check_dtype=False)
        assert nothing is None
        assert isinstance(server["model"], Params)
    versions = [server["model"].weights for hook, *_, server in inside if hook == "version"]
    assert all(not torch.equal(one, other) for one, other in itertools.pairwise(versions))


@pytest.mark.parametrize("inside", [True, False])
def test_no_version_is_left_out_after_a_stop(cell: Cell, tmp_path: Path, inside: bool) -> None:
    """A stopped cell has a checkpoint; after a kill it goes on from an earlier one, and shows the versions again."""
    settings = cell(method="fedavg", rounds=5)
    folder, looks = tmp_path / "cell", iter([False, False, True])
    recorder = RecorderInside() if inside else Recorder()
    status, _ = run(settings, folder, recorder, stop=lambda: next(looks), inside=inside)
    assert status.state == "interrupted"
    assert [(hook, round_) for hook, round_, *_ in SEEN if hook != "evaluation"] == [
        ("version", 1), ("version", 2), ("end", 2),
    ]  # fmt: skip
    SEEN.clear()
    run(settings, folder, recorder, inside=inside)
    assert [(hook, round_) for hook, round_, *_ in SEEN if hook != "evaluation"] == [
        ("version", 3), ("version", 4), ("version", 5), ("end", 5),
    ]  # fmt: skip
    SEEN.clear()
    run(settings, folder, recorder, inside=inside)
    assert SEEN == []  # it was finished before


def test_a_worker_that_takes_over_shows_versions_again(tmp_path: Path, cell: Cell) -> None:
    """Its first event is of an earlier round than the last one of the worker that was lost."""
    settings = cell(method="fedavg", rounds=5)
    run(settings, tmp_path / "cell")
    listener = CallbackListener(tmp_path, {"cell": settings}, [Recorder()], pytest.fail)
    for round_ in (0, 4, 2, 3, 5):
        listener(Event("cell", "running", round_, 5))
    listener(Event("cell", "done", 5, 5))
    assert [round_ for hook, round_, *_ in SEEN if hook == "version"] == [1, 2, 3, 4, 3, 4, 5]
    assert SEEN[-1][0] == "end"


@pytest.mark.parametrize("inside", [True, False])
def test_a_callback_that_fails_is_named_and_the_cell_goes_on(cell: Cell, tmp_path: Path, inside: bool) -> None:
    """Without it; the others are called as before. One that leaves by `sys.exit` is treated alike."""
    settings = cell(method="fedavg", rounds=3)
    status, warnings = run(settings, tmp_path / "cell", Leaves(), Breaks(), RecorderInside(), inside=inside)
    assert status.state == "done"
    assert [hook for hook, *_ in SEEN].count("version") == 3
    name = "fedavg blobs alpha=1 seed=0"
    assert warnings[0].startswith(f"the callback Leaves failed in after_version of {name}, round 1: SystemExit: enough")
    assert warnings[1].startswith(
        f"the callback Breaks failed in after_evaluation of {name}, round 1: ValueError: too late (test_callbacks.py, "
    )
    assert warnings[1].endswith("; the cell goes on without it")
    assert len(warnings) == 2


@pytest.mark.long
def test_scores_in_one_file_survive_a_stop(cell: Cell, tmp_path: Path) -> None:
    """With a torn last line, too; the file is that of a run without a stop."""
    settings = cell(method="fedavg", rounds=5)
    run(settings, tmp_path / "a" / "cell", bench.CsvScores(tmp_path / "whole.csv"))
    looks = iter([False, False, True])
    run(settings, tmp_path / "b" / "cell", bench.CsvScores(tmp_path / "parts.csv"), stop=lambda: next(looks))
    with (tmp_path / "parts.csv").open("a") as file:
        file.write("fedavg,blobs,,1.0,0,ce")
    run(settings, tmp_path / "b" / "cell", bench.CsvScores(tmp_path / "parts.csv"))
    assert (tmp_path / "parts.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    run(settings, tmp_path / "c" / "cell", bench.CsvScores(tmp_path / "whole.csv"))  # the same cell from its beginning
    assert (tmp_path / "parts.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    frame = pd.read_csv(tmp_path / "whole.csv", keep_default_na=False)
    assert set(frame["round"]) == {1, 2, 3, 4, 5}
    assert set(frame["label"]) == {"fedavg"}
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match=r"other\.csv exists and has other columns"):
        bench.CsvScores(tmp_path / "other.csv")


def test_scores_are_printed(cell: Cell, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(cell(method="fedavg", rounds=2), tmp_path / "cell", bench.PrintScores())
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fedavg blobs alpha=1 seed=0")]
    assert [line.partition(", PM")[0][:-5] for line in lines] == [
        f"fedavg blobs alpha=1 seed=0: round {round_}/2: GM " for round_ in (1, 2)
    ]


def test_what_is_no_callback_is_refused() -> None:
    with pytest.raises(UserError, match=r"callbacks: give Recorder\(\) instead of the class Recorder"):
        check_callbacks([Recorder])  # type: ignore[list-item]
    with pytest.raises(UserError, match=r"callbacks: 3 is not a callback: derive its class from bench\.Callback"):
        check_callbacks([3])  # type: ignore[list-item]


class Shared(bench.Callback):
    """Its state is that of the copy in the process that trains."""

    in_worker: ClassVar[bool] = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rounds = 0

    def after_version(self, at: bench.Moment) -> None:
        self.rounds += 1
        assert at.server is not None
        np.save(self.folder / f"{at.settings.seed}_{self.rounds}.npy", at.server["model"].weights.numpy())


@pytest.mark.long
def test_a_run_with_all_of_them(grid: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two cells in worker processes: each has its own copy of a callback that asks for it."""
    recorder, shared = Recorder(), Shared(tmp_path)
    held = RecorderInside()
    held.lock = (one for one in ())  # type: ignore[attr-defined]
    view = bench.run(
        grid(methods=["fedavg"], rounds=2, seeds=[0, 1]), tmp_path / "run", device="cpu", jobs=2,
        callbacks=[recorder, held, shared, Breaks(), bench.CsvScores(tmp_path / "scores.csv")],
    )  # fmt: skip
    assert {cell.status.state for cell in view.cells} == {"done"}
    assert sorted(path.name for path in tmp_path.glob("*.npy")) == ["0_1.npy", "0_2.npy", "1_1.npy", "1_2.npy"]
    assert shared.rounds == 0
    assert [hook for hook, *_ in SEEN].count("end") == 4
    said = capsys.readouterr().err
    assert "note: the callback RecorderInside is called here, with rows alone: workers cannot have it\n" in said
    assert said.count("warning: the callback Breaks failed in after_evaluation of fedavg blobs alpha=1 seed=") == 2
    assert view.info["command"].startswith("bench.run, called in ")
    written = pd.read_csv(tmp_path / "scores.csv", keep_default_na=False)
    columns = ["cell", "round", "metric", "on", "mean", "split", "quantity"]
    both = [frame.sort_values(columns)["value"].to_numpy() for frame in (written, view.metrics)]
    assert np.array_equal(*both)
