"""Entries whose partitions are kept once beside them, from real packed runs."""

import lzma
import shutil
from pathlib import Path

import pytest

from bench.errors import UserError
from bench.results.pack import RELATIONS, SHARED, SUFFIX, checksum_in, compressed, pack, read_shared, unpack
from bench.results.results import load_run
from bench.runs.verify.recomputed import compare
from bench.store.store import write_json
from reports.league.archive import write_archive
from tests.runs.helpers import make_run
from tools.league import ship

METHODS = ("fedavg", "local")


@pytest.fixture(scope="module")
def packed(arrays: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two entries on the same two partitions, which each test copies."""
    folder = tmp_path_factory.mktemp("packed")
    for method in METHODS:
        run = make_run(folder / method, arrays, [method], rounds=1, seeds=[0, 1])
        pack(run, folder / "whole" / f"{method}{SUFFIX}")
    return folder / "whole"


@pytest.fixture
def folder(packed: Path, tmp_path: Path) -> Path:
    shutil.copytree(packed, tmp_path / "whole")
    return Path(shutil.copytree(packed, tmp_path / "entries"))


def content(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}


def test_what_is_unpacked_is_as_before(folder: Path, tmp_path: Path) -> None:
    ship(folder)
    assert len(read_shared(folder)) == 2  # of four cells
    for method in METHODS:
        entry = f"{method}{SUFFIX}"
        assert (folder / entry).stat().st_size < (tmp_path / "whole" / entry).stat().st_size
        before = unpack(tmp_path / "whole" / entry, tmp_path / "a" / method)
        after = unpack(folder / entry, tmp_path / "b" / method)
        assert content(after.path) == content(before.path)
        assert all((cell.folder / "partition.json").exists() for cell in after.cells)


def test_a_further_entry_adds_what_is_new_and_changes_nothing_else(folder: Path, arrays: Path, tmp_path: Path) -> None:
    ship(folder)
    before = content(folder)
    ship(folder)
    assert content(folder) == before
    pack(make_run(tmp_path / "more", arrays, ["fedprox"], rounds=1, seeds=[1, 2]), folder / f"fedprox{SUFFIX}")
    ship(folder)
    assert len(read_shared(folder)) == 3
    assert {name for name, bytes in content(folder).items() if before.get(name) != bytes} == {
        f"fedprox{SUFFIX}", SHARED, "SHA256SUMS",
    }  # fmt: skip


def test_an_entry_without_its_partitions_is_refused(folder: Path, tmp_path: Path) -> None:
    """Alone in another folder; beside a damaged file; and beside the partitions of others."""
    ship(folder)
    entry = folder / f"local{SUFFIX}"
    alone = shutil.copy(entry, tmp_path / entry.name)
    with pytest.raises(UserError, match=f"{SHARED} should lie beside it"):
        unpack(alone, tmp_path / "run")
    assert not list((tmp_path / "run").iterdir())
    others = compressed({"0" * 32: "{}"})
    for partitions, said in (
        (others, f"{SHARED} should lie beside it"),
        (others + bytes(4), "something follows the end of its"),
        *((damaged, "is damaged") for damaged in (b"no archive", lzma.compress(b"[1]"), lzma.compress(b"{}")[:-9])),
    ):
        (tmp_path / SHARED).write_bytes(partitions)
        with pytest.raises(UserError, match=said):
            unpack(alone, tmp_path / "run")


def test_the_relations_of_clients_are_left_out(arrays: Path, tmp_path: Path) -> None:
    """Computed again, the cell has them, and is the same but for them; relations that were packed are compared."""
    run = make_run(tmp_path / "fedamp", arrays, ["fedamp"], rounds=1, seeds=[0])
    entry = tmp_path / "entries" / f"fedamp{SUFFIX}"
    pack(run, entry)
    again = load_run(run).cells[0].folder
    whole = unpack(entry, tmp_path / "whole").cells[0]
    write_json(whole.folder / RELATIONS, {"clients": [0], "n_train": [1], "matrices": {}})
    assert compare(whole, again).outcome == "wrong"
    ship(entry.parent)
    (light,) = unpack(entry, tmp_path / "light").cells
    assert (again / RELATIONS).exists()
    assert not (light.folder / RELATIONS).exists()
    assert (light.status.state, compare(light, again).outcome) == ("done", "same")
    before = entry.read_bytes()
    ship(entry.parent)
    assert entry.read_bytes() == before


@pytest.mark.parametrize(
    "status", [b"", b"[]", b"{}", b'{"checksums": 3}', b'{"checksums": {"partition.json": [1]}}', b"[" * 10**6]
)
def test_a_status_that_is_damaged_has_no_checksum(status: bytes) -> None:
    assert checksum_in(status) == ""


def test_an_edited_partition_is_found_by_its_checksum(folder: Path, tmp_path: Path) -> None:
    ship(folder)
    edited = {checksum: text.replace("train", "trial") for checksum, text in read_shared(folder).items()}
    (folder / SHARED).write_bytes(compressed(edited))
    run = unpack(folder / f"local{SUFFIX}", tmp_path / "run")
    assert ["partition.json: changed or damaged" in cell.status.reason for cell in run.cells] == [True, True]


def test_a_published_archive_has_the_partitions_of_all_its_entries(folder: Path, arrays: Path, tmp_path: Path) -> None:
    """Of entries from two folders, each with partitions of its own beside them."""
    other = tmp_path / "other" / f"ditto{SUFFIX}"
    pack(make_run(tmp_path / "ditto", arrays, ["ditto"], rounds=1, seeds=[2]), other)
    entries = {}
    for file in (folder / f"local{SUFFIX}", other):
        ship(file.parent)
        entries[file] = unpack(file, tmp_path / "b" / file.name)
    archive = write_archive(entries, tmp_path / "archive", "a league", "1.0.0").parent
    assert f"entries/{SHARED}" in (archive / "SHA256SUMS").read_text(encoding="utf-8")
    for file in entries:
        unpack(archive / "entries" / file.name, tmp_path / "again" / file.name)
