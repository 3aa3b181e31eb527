"""What a node without the run folder sends is there whole, or not at all, and in the end all of it, kept models too."""

from pathlib import Path

import pytest

from bench.cluster.transfer import Receiver, Sender, names
from bench.runs import attempt
from bench.runs.cell import run_cell
from bench.runs.cell_options import Options
from bench.runs.events import Event
from bench.store import checkpoint
from tests.runs.conftest import Cell

OPTIONS = Options(device="cpu", executor="sequential", keep="best", checkpoint_seconds=0)
KEPT = ("checkpoint", "models/gm", "models/pm")


def transfer(sender: Sender, receiver: Receiver, event: Event) -> None:
    """All that one report of a worker sends."""
    for part in sender.changes():
        receiver.receive(part)
    receiver.commit(sender.report(event))


def folders(cell: Path) -> list[str]:
    """The folders in a cell's folder."""
    return sorted(path.relative_to(cell).as_posix() for path in cell.rglob("*") if path.is_dir())


@pytest.mark.parametrize("tests", [(), ("others",)])
def test_a_cell_that_keeps_models_is_the_same_after_every_report(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tests: tuple[str, ...]
) -> None:
    """Models of an earlier round are replaced by those of a better one, and none is ever seen damaged."""
    monkeypatch.setattr(attempt, "EVENT_SECONDS", 0.0)  # a report of every round
    worker, run = tmp_path / "worker", tmp_path / "run"
    worker.mkdir()
    sender, receiver, versions = Sender(worker), Receiver(run), set()

    def report(event: Event) -> None:
        transfer(sender, receiver, event)
        for name in KEPT:
            generations = [path.name for path in (run / name).glob("*")]
            assert len(list(checkpoint.load(run / name))) == len(generations)
            versions.update(f"{name}/{number}" for number in generations if name != "checkpoint")

    status = run_cell(cell(method="ditto", rounds=4, tests=tests), worker, OPTIONS, report=report)
    assert status.state == "done", status.reason
    assert names(run) == names(worker)
    different = [name for name in names(run) if (run / name).read_bytes() != (worker / name).read_bytes()]
    assert set(different) <= {"log.txt"}  # its last line comes after the last report
    assert (worker / "log.txt").read_text().startswith((run / "log.txt").read_text())
    receiver.close()
    assert folders(run) == folders(worker)
    assert len(versions) > 2


def test_models_that_have_arrived_in_part_are_not_seen(cell: Cell, tmp_path: Path) -> None:
    """Where the worker is lost before its report; another one sends them again."""
    worker, run = tmp_path / "worker", tmp_path / "run"
    worker.mkdir()
    lost, another = Sender(worker), Sender(worker)
    assert run_cell(cell(method="ditto", rounds=2), worker, OPTIONS).state == "done"
    receiver = Receiver(run)
    for part in [part for part in lost.changes() if not part.name.endswith("manifest.json")]:
        receiver.receive(part)
    receiver.close()
    assert not (run / "models").exists()
    again = Receiver(run)
    transfer(another, again, Event("cell", "done", 2, 2))
    again.close()
    assert {path.parent.parent.name for path in run.glob("models/*/*/manifest.json")} == {"gm", "pm"}
    assert len(list(checkpoint.load(run / "models" / "pm"))) == 1
