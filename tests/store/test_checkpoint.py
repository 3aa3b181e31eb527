import contextlib
import shutil
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.engine.backends import backends, recording
from bench.errors import shortage
from bench.store import checkpoint
from bench.store.checkpoint import Checkpoint, Writer
from tests.engine.problems import ONE_OF_A_KIND, run, toy


def make(version: int) -> Checkpoint:
    tensors = {"server/model": torch.arange(4.0) + version, "clients": torch.full((2, 3), version)}
    return Checkpoint(version, tensors, {"numbers": [0.1, 1e-300], "version": version})


def same(a: Checkpoint, b: Checkpoint) -> bool:
    equal = all(torch.equal(a.tensors[name], b.tensors[name]) for name in a.tensors)
    return a.version == b.version and a.rest == b.rest and set(a.tensors) == set(b.tensors) and equal


def test_the_two_newest_generations_come_back(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    assert list(checkpoint.load(folder)) == []
    for version in (3, 9, 10):
        Writer(folder).save(make(version))
    found = list(checkpoint.load(folder))
    assert len(found) == 2
    assert same(found[0], make(10))
    assert same(found[1], make(9))
    files = {path.name for path in (folder / "00000010").iterdir()}
    assert files == {"server.pt", "state.pt", "state.json", "manifest.json"}


@pytest.fixture(scope="module")
def generations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two generations."""
    folder = tmp_path_factory.mktemp("generations") / "checkpoint"
    for version in (1, 2):
        Writer(folder).save(make(version))
    return folder


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_generation_is_passed_over(generations: Path, tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "checkpoint"
    checkpoint.remove(folder)
    shutil.copytree(generations, folder)
    path = data.draw(st.sampled_from(sorted((folder / "00000002").iterdir())))
    content = bytearray(path.read_bytes())
    match data.draw(st.sampled_from(["flip", "cut", "gone"])):
        case "flip":
            at = data.draw(st.integers(0, len(content) - 1))
            content[at] ^= data.draw(st.integers(1, 255))
            path.write_bytes(content)
        case "cut":
            path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
        case "gone":
            path.unlink()
    found = list(checkpoint.load(folder))
    assert [one.version for one in found][-1] == 1
    assert same(found[-1], make(1))
    assert all(same(one, make(2)) for one in found[:-1])  # damage may hit whitespace of the manifest, which is harmless


def test_what_did_not_change_is_linked_and_what_did_is_written(tmp_path: Path) -> None:
    """Also a value that was set back to the same numbers is written, because it is another tensor."""
    folder = tmp_path / "checkpoint"
    writer = Writer(folder)
    tensors = {"server/0": torch.ones(3), "client-1/0": torch.ones(2), "client-2/0": torch.zeros(2)}
    writer.save(Checkpoint(1, tensors, {}))
    tensors = {**tensors, "server/0": torch.full((3,), 2.0), "client-2/0": torch.zeros(2)}
    writer.save(Checkpoint(2, tensors, {}))
    files = {g: [folder / f"0000000{v}" / f"{g}.pt" for v in (1, 2)] for g in ("server", "client-1", "client-2")}
    assert {g: a.samefile(b) for g, (a, b) in files.items()} == {"server": False, "client-1": True, "client-2": False}
    newest, older = checkpoint.load(folder)
    assert newest.tensors["server/0"].tolist() == [2, 2, 2]
    assert older.tensors["server/0"].tolist() == [1, 1, 1]
    assert torch.equal(newest.tensors["client-1/0"], older.tensors["client-1/0"])
    writer.save(Checkpoint(3, tensors, {}), generations=1)
    assert [one.version for one in checkpoint.load(folder)] == [3]


def test_a_view_is_saved_without_the_rest_of_its_matrix(tmp_path: Path) -> None:
    Writer(tmp_path / "checkpoint").save(Checkpoint(1, {"client-0/0": torch.zeros(1000, 100)[3]}, {}))
    assert (tmp_path / "checkpoint" / "00000001" / "client-0.pt").stat().st_size < 10_000


@contextlib.contextmanager
def waiting(writer: Writer) -> Iterator[None]:
    """Inside this context the writer's thread writes nothing."""
    gate = threading.Event()
    writer._thread.submit(gate.wait)
    try:
        yield
    finally:
        gate.set()


@pytest.mark.long
@pytest.mark.parametrize("executor", ["sequential", "cohort"])
@pytest.mark.parametrize("method", sorted(ONE_OF_A_KIND))
def test_what_is_written_beside_training_is_what_was_there_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, executor: Any
) -> None:
    """All of it is written after two more rounds, whose recorded steps overwrite the weights that they train."""
    monkeypatch.setattr(backends, "_RECORD_AFTER", 2)
    monkeypatch.setattr(recording, "_SMALL", 0)  # steps of one client overwrite weight vectors of all sizes
    federation = toy(method, executor=executor, momentum=0.0)
    run(federation, 2)
    saved = Checkpoint(federation.version, *federation.state())
    Writer(tmp_path / "at once").save(saved)
    writer = Writer(tmp_path / "beside")
    with waiting(writer):
        writer.start(saved)
        run(federation, 2)
    writer.wait()
    beside, at_once = (
        {path.relative_to(tmp_path / name): path.read_bytes() for path in (tmp_path / name).glob("*/*")}
        for name in ("beside", "at once")
    )
    assert beside == at_once


def test_one_checkpoint_is_held_at_a_time(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "checkpoint")
    first = make(1)
    held = [weakref.ref(tensor) for tensor in first.tensors.values()]
    writer.start(first)
    del first
    with waiting(writer):
        writer.start(make(2))
        assert [tensor() for tensor in held] == [None, None]
        assert [one.version for one in checkpoint.load(tmp_path / "checkpoint")] == [1]
    writer.wait()
    assert [one.version for one in checkpoint.load(tmp_path / "checkpoint")] == [2, 1]


def test_nothing_appears_or_vanishes_while_somebody_reads(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "checkpoint")
    for version in (1, 2):
        writer.save(make(version))
    with writer.publishing:
        writer.start(make(3))
        while not (tmp_path / "checkpoint" / "00000003.tmp" / "manifest.json").exists():
            pass
        assert [one.version for one in checkpoint.load(tmp_path / "checkpoint")] == [2, 1]
    writer.wait()
    assert [one.version for one in checkpoint.load(tmp_path / "checkpoint")] == [3, 2]


LARGE = Checkpoint(2, {"server/0": torch.zeros(10_000)}, {})


@pytest.mark.usefixtures("full_disk")
@pytest.mark.parametrize("call", ["wait", "start", "end"])
def test_an_error_of_the_thread_is_raised_by_the_next_call(tmp_path: Path, call: str) -> None:
    """The generation before is still there, and a later one can be written."""
    writer = Writer(tmp_path / "checkpoint")
    writer.save(make(1))
    with pytest.raises(RuntimeError) as error, writer:  # noqa: PT012
        writer.start(LARGE)
        if call != "end":
            {"wait": writer.wait, "start": lambda: writer.start(make(2))}[call]()
    assert "the disk is full" in shortage(error.value)
    assert [one.version for one in checkpoint.load(tmp_path / "checkpoint")] == [1]
    writer.save(make(2))
    assert [one.version for one in checkpoint.load(tmp_path / "checkpoint")] == [2, 1]


@pytest.mark.usefixtures("full_disk")
def test_what_ended_the_training_counts_more_than_an_error_of_the_thread(tmp_path: Path) -> None:
    with pytest.raises(KeyError), Writer(tmp_path / "checkpoint") as writer:  # noqa: PT012
        writer.start(LARGE)
        raise KeyError("of the training")
