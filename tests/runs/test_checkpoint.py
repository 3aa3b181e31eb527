from pathlib import Path

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.runs import checkpoint
from bench.runs.checkpoint import Checkpoint, Writer


def make(version: int) -> Checkpoint:
    tensors = {"server/model": torch.arange(4.0) + version, "clients": torch.full((2, 3), version)}
    return Checkpoint(version, tensors, {"numbers": [0.1, 1e-300], "version": version})


def same(a: Checkpoint, b: Checkpoint) -> bool:
    equal = all(torch.equal(a.tensors[name], b.tensors[name]) for name in a.tensors)
    return a.version == b.version and a.rest == b.rest and set(a.tensors) == set(b.tensors) and equal


def test_the_two_newest_generations_come_back(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    for version in (3, 9, 10):
        Writer(folder).save(make(version))
    found = list(checkpoint.load(folder))
    assert len(found) == 2
    assert same(found[0], make(10))
    assert same(found[1], make(9))
    assert {path.name for path in (folder / "00000010").iterdir()} == {
        "server.pt",
        "state.pt",
        "state.json",
        "manifest.json",
    }


def test_no_checkpoint(tmp_path: Path) -> None:
    assert list(checkpoint.load(tmp_path / "checkpoint")) == []


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_generation_is_passed_over(tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "checkpoint"
    checkpoint.remove(folder)
    Writer(folder).save(make(1))
    Writer(folder).save(make(2))
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


def test_a_half_written_generation_is_ignored(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    Writer(folder).save(make(1))
    (folder / "00000002.tmp").mkdir()
    (folder / "00000002.tmp" / "state.pt").write_bytes(b"half")
    assert [one.version for one in checkpoint.load(folder)] == [1]
    Writer(folder).save(make(2))
    assert [one.version for one in checkpoint.load(folder)] == [2, 1]


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
