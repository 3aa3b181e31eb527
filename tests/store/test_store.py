import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.errors import UserError
from bench.store import inside, store
from bench.store.store import BusyError, Status
from bench.store.tables import Tables, read_table
from tests.warm import PATIENCE

LEDGER_ROW = {name: 1.5 if name in ("seconds", "settled") else 7 for name in store.COLUMNS["ledger"][1:]}


def hold(folder: Path) -> "subprocess.Popen[str]":
    """Start another process, which holds a folder until it is killed."""
    code = "import sys, time, pathlib\nfrom bench.store import store\n"
    code += "with store.locked(pathlib.Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)\n"
    process = subprocess.Popen([sys.executable, "-c", code, folder], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.usefixtures("full_disk")
def test_a_replaced_file_is_whole_or_as_before(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("before", encoding="utf-8")
    with pytest.raises(OSError, match="File too large"):
        inside.replace(path, bytes(20_000))
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
    assert path.read_text(encoding="utf-8") == "before"


@pytest.mark.faults
def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    with hold(tmp_path) as other:
        with pytest.raises(BusyError, match=str(other.pid)), store.locked(tmp_path):
            pass
        store.write_status(tmp_path, Status("running", 3, 9))
        assert store.read_status(tmp_path).state == "running"
        other.kill()
    assert store.read_status(tmp_path) == Status("interrupted", 3, 9, reason="its process was killed")
    with store.locked(tmp_path):
        assert store.is_locked(tmp_path)
    assert not store.is_locked(tmp_path)


@pytest.mark.faults
def test_waiting_for_a_lock(tmp_path: Path) -> None:
    with hold(tmp_path) as other:
        os.kill(other.pid, signal.SIGSTOP)  # a stopped process is still alive, so it keeps the lock
        with pytest.raises(BusyError), store.locked(tmp_path):
            pass
        other.kill()
        start = time.monotonic()
        with store.locked(tmp_path, wait=True):
            assert time.monotonic() - start < PATIENCE


@pytest.mark.faults
def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(UserError, match=r"no locks \(No locks available\).*with --out"), store.locked(tmp_path):
        pass


def test_tables_are_cut_back_to_a_checkpoint(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    tables.restart()
    tables.append("ledger", 1, [LEDGER_ROW])
    sizes = tables.sync()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    tables.append("ledger", 2, [LEDGER_ROW, LEDGER_ROW])
    assert tables.cut(sizes)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert before["ledger.csv"].endswith(b"\n1,1.5,1.5,7,7,7,7,7,7\n")
    (tmp_path / "metrics.csv").write_text("", encoding="utf-8")
    assert not tables.cut(sizes)


def test_a_row_with_the_wrong_columns_is_refused(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    tables.restart()
    with pytest.raises(ValueError, match=r"ledger\.csv needs"):
        tables.append("ledger", 1, [{"bytes": 1}])


def test_floats_come_back_as_they_were(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    tables.restart()
    value = 0.1 + 0.2
    row = {"metric": "gm", "on": "global", "mean": "", "split": "test", "quantity": "accuracy", "value": value}
    tables.append("metrics", 1, [row])
    path = tmp_path / "metrics.csv"
    path.write_text(path.read_text() + "2,gm,global,,te")  # a line that is still being written
    assert read_table(tmp_path, "metrics").to_dict("records") == [{"round": 1, **row}]


def test_of_a_forgotten_cell_nothing_is_left_and_links_lead_to_nothing_that_is_removed(tmp_path: Path) -> None:
    outside, cell = tmp_path / "outside", tmp_path / "cell"
    for folder in (outside, cell):
        folder.mkdir()
    (outside / "mine").touch()
    for link in ("link.tmp", "checkpoint"):
        (cell / link).symlink_to(outside)
    store.remove_temporaries(cell)
    assert not list(cell.iterdir())
    (cell / "checkpoint").symlink_to(outside)
    (outside / "00000001").mkdir()
    store.remove_leftovers(cell, Status("done", total=3))
    assert (outside / "00000001").exists()
    store.write_status(cell, Status("done"))
    store.forget(cell)
    assert store.read_status(cell).state == "waiting"
    assert {path.name for path in cell.iterdir()} == {"lock"}
    assert (outside / "mine").exists()
    store.forget(tmp_path / "never")
