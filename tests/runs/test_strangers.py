"""What a stranger's archive or run folder can do: be refused in one line, or be read; nothing else."""

import io
import json
import lzma
import os
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.cli import main
from bench.errors import UserError
from bench.results import pack
from bench.results.results import load_run
from bench.runs.cell import run_cell
from bench.runs.cell_options import Options
from bench.store import inside, store
from tests.runs.conftest import Bench
from tests.runs.helpers import states

DEEP = "[" * 200_000 + "]" * 200_000
ID = "00000000000000aa"


GONE = object()
WRONG: dict[str, tuple[tuple[Any, ...], object]] = {
    "integer id": (("cells", 0, "id"), 3),
    "no id": (("cells", 0, "id"), GONE),
    "id above": (("cells", 0, "id"), "../../etc"),
    "absolute id": (("cells", 0, "id"), "/etc"),
    "NUL in an id": (("cells", 0, "id"), "0000000000000\0aa"),
    "newline in an id": (("cells", 0, "id"), f"{ID}\n"),
    "id of a folder of ours": (("cells", 0, "id"), "report"),
    "no label": (("cells", 0, "label"), GONE),
    "no settings": (("cells", 0, "settings"), GONE),
    "no grid": (("grid",), GONE),
    "cells as a dict": (("cells",), {"a": 1}),
    "cells of text": (("cells",), ["a"]),
    "history of numbers": (("history",), [1]),
    "versions of numbers": (("versions",), {"torch": 2}),
    "machine as a list": (("machine",), []),
    "a nest": (("machine",), json.loads("[" * 40 + "]" * 40)),
    "grid as a list": (("grid",), ["a"]),
    "published as a number": (("published",), 1),
}
"""Places in `run.json`, and what a stranger puts there."""


@pytest.mark.parametrize("wrong", [*WRONG, DEEP, '{"a":' * 100_000, "1" * 5000, "\x00", '"text"', "NaN"])
def test_a_run_file_of_the_wrong_kind_is_one_line(run: Path, wrong: str) -> None:
    text = wrong
    if wrong in WRONG:
        info = part = store.read_json(run / "run.json")
        (*above, last), value = WRONG[wrong]
        for key in above:
            part = part[key]
        part[last] = value
        if value is GONE:
            del part[last]
        text = json.dumps(info)
    (run / "run.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as refused:
        load_run(run)
    assert str(refused.value).startswith(f"{run}/run.json is damaged")
    assert len(str(refused.value).splitlines()) == 1


# -- archives ---------------------------------------------------------------------------------------------------------


def archive(file: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    file.write_bytes(lzma.compress(content.getvalue(), preset=1))
    return file


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


BAD_MEMBERS = {
    "above": member("../run.json"),
    "absolute": member("/tmp/run.json"),
    "link": member(f"{ID}/status.json", tarfile.SYMTYPE, "/etc/passwd"),
    "hard link": member(f"{ID}/status.json", tarfile.LNKTYPE, "run.json"),
    "pipe": member(f"{ID}/status.json", tarfile.FIFOTYPE),
    "folder": member(ID, tarfile.DIRTYPE),
    "code": member(f"{ID}/plugin.py"),
    "dot": member(f"{ID}/./status.json"),
    "newline": member(f"{ID}/status.json\n"),
    "checkpoint": member(f"{ID}/checkpoint/00000001/state.json"),
    "study": member("study.json"),
    "twice": member("run.json"),
}


@pytest.mark.parametrize("bad", BAD_MEMBERS.values(), ids=BAD_MEMBERS)
def test_only_what_pack_writes_is_unpacked(whole: Path, tmp_path: Path, bad: tarfile.TarInfo) -> None:
    info = (whole / "run.json").read_bytes()
    file = archive(tmp_path / "a.tar.xz", [(member("run.json"), info), (bad, b"{}" if bad.isreg() else b"")])
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(UserError, match="is not a packed run"):
        pack.unpack(file, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*before, "out"])


def test_a_small_archive_of_many_bytes_or_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bench_here: Bench
) -> None:
    """With smaller limits, so that the test writes little; the size is that of the archive's own list."""
    monkeypatch.setattr(pack, "MOST_BYTES", 1_000_000)
    bomb = archive(tmp_path / "a.tar.xz", [(member(f"{ID}/metrics.csv"), bytes(2_000_000))])
    assert bomb.stat().st_size < 10_000
    said = bench_here("unpack", bomb, "out", code=2).stderr
    assert "50000 files or 0.001 GB" in said
    assert not any((tmp_path / "out").iterdir())
    monkeypatch.setattr(pack, "MOST_FILES", 10)
    names = [member(f"{number:016x}/metrics.csv") for number in range(20)]
    many = archive(tmp_path / "b.tar.xz", [(name, b"") for name in names])
    assert "10 files" in bench_here("unpack", many, "out", code=2).stderr
    assert not any((tmp_path / "out").iterdir())


def test_pack_publishes_nothing_that_a_link_leads_to(run: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret", encoding="utf-8")
    folder = load_run(run).cells[0].folder
    (folder / "timing.json").unlink()
    (folder / "timing.json").symlink_to(tmp_path / "secret")
    tables = run / "report" / "tables"
    tables.mkdir(parents=True)
    (tables / "tuning.csv").symlink_to(tmp_path / "secret")
    pack.pack(run, tmp_path / "a.tar.xz")
    with tarfile.open(tmp_path / "a.tar.xz") as tar:
        assert "tuning.csv" not in tar.getnames()
        assert f"{folder.name}/timing.json" not in tar.getnames()


# -- links ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A folder of the user's with files that no command may touch."""
    folder = tmp_path / "mine"
    (folder / "00000001").mkdir(parents=True)
    for name in ("a.png", "b.svg", "main.md", "lock", "log.txt", "00000001/state.json"):
        (folder / name).write_text(f"my {name}", encoding="utf-8")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    yield folder
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("place", ["report", "report/figures", "report/tables"])
def test_a_report_follows_no_link_out_of_the_run(run: Path, outside: Path, bench_here: Bench, place: str) -> None:
    (run / place).parent.mkdir(exist_ok=True)
    (run / place).symlink_to(outside)
    said = bench_here("report", run, code=2).stderr
    assert f"{place} is or lies behind a link" in said


@pytest.mark.long
def test_links_in_a_report_are_replaced(run: Path, outside: Path, tmp_path: Path, bench_here: Bench) -> None:
    """Also where the folder of the run is reached by a link, which it may be."""
    for name in ("index.html", "main.md", "main.csv.tmp", "tables/cells.csv", "figures/old.png"):
        (run / "report" / name).parent.mkdir(parents=True, exist_ok=True)
        (run / "report" / name).symlink_to(outside / "main.md")
    (tmp_path / "alias").symlink_to(run)
    assert "3 done" in bench_here("status", "alias").stdout
    assert "index.html" in bench_here("report", "alias").stdout
    assert not [path for path in (run / "report").rglob("*") if path.is_symlink()]


@pytest.mark.parametrize(
    "name", ["lock", "log.txt", "status.json.tmp", "error.txt", "checkpoint", "models", "ledger.csv"]
)
def test_a_cell_follows_no_link(run: Path, outside: Path, name: str) -> None:
    cell = load_run(run).cells[0]
    (cell.folder / "status.json").unlink()
    (cell.folder / name).unlink(missing_ok=True)
    (cell.folder / name).symlink_to(outside if name in ("checkpoint", "models") else outside / "lock")
    options = Options(device="cpu", executor="sequential", checkpoint_seconds=0, keep="best")
    assert run_cell(cell.settings, cell.folder, options).state == "done"


def test_a_cells_folder_that_is_a_link_is_refused(run: Path, tmp_path: Path) -> None:
    cell = load_run(run).cells[0]
    moved = cell.folder.rename(tmp_path / cell.id)
    cell.folder.symlink_to(moved)
    assert states(run)["fedavg"] == "interrupted"
    with pytest.raises(UserError, match="behind a link"):
        inside.check_place(run, cell.folder)


def test_the_lock_of_a_run_follows_no_link(run: Path, outside: Path) -> None:
    (run / "lock").unlink(missing_ok=True)
    (run / "lock").symlink_to(outside / "lock")
    with store.locked(run):
        pass
    assert not (run / "lock").is_symlink()


@pytest.mark.long
@pytest.mark.parametrize("name", ["mlflow.db", "mlartifacts", "tracking"])
def test_the_mirror_follows_no_link(run: Path, outside: Path, bench_here: Bench, name: str) -> None:
    (run / name).symlink_to(outside if name != "mlflow.db" else outside / "lock")
    said = bench_here("track", run, code=2).stderr
    assert "link" in said


def test_a_pipe_in_place_of_a_file_is_not_waited_for(run: Path) -> None:
    folder = load_run(run).cells[0].folder
    (folder / "status.json").unlink()
    os.mkfifo(folder / "status.json")
    assert states(run)["fedavg"] == "interrupted"


# -- plug-ins ---------------------------------------------------------------------------------------------------------

PLUGIN = "from pathlib import Path\nPath({mark!r}).touch()\n"
GRID = "methods: [fedavg]\nalphas: [1.0]\nseeds: [0]\nrounds: 1\nplugins: [{plugin}]\n"


@pytest.mark.long
@pytest.mark.parametrize("command", [("show",), ("run", "--dry-run", "--grid"), ("sweep", "--dry-run", "--study")])
def test_to_look_at_a_grid_runs_no_code_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither directly nor by a link that lies under the working folder."""
    here, mark = tmp_path / "here", tmp_path / "ran"
    here.mkdir()
    monkeypatch.chdir(here)
    plugin = tmp_path / f"evil_{command[0]}.py"
    plugin.write_text(PLUGIN.format(mark=str(mark)), encoding="utf-8")
    (here / "near.py").symlink_to(plugin)
    for named in (str(plugin), f"../{plugin.name}", "near.py"):
        text = GRID.format(plugin=named)
        if command[0] == "sweep":
            text = "grid:\n  " + text.replace("\n", "\n  ").replace("seeds: [0]", "", 1)
            text += "\nseeds: [0, 2]\nreport_seeds: [1]\ntrials: 2\nspace: {lr: [0.1, 0.2]}\n"
        (here / "g.yaml").write_text(text, encoding="utf-8")
        monkeypatch.setattr(sys, "argv", ["bench", *command, "g.yaml"])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr().err
        assert ended.value.code == 2
        assert f"--plugin {named}" in said
        assert not mark.exists()


def test_a_plugin_that_is_near_or_named_is_loaded(tmp_path: Path, bench_here: Bench) -> None:
    near, far = tmp_path / "near_plugin.py", tmp_path.parent / f"far_{tmp_path.name}.py"
    for plugin, named, options in ((near, near.name, []), (far, far, ["--plugin", far])):
        plugin.write_text(PLUGIN.format(mark=str(tmp_path / "ran")), encoding="utf-8")
        (tmp_path / "g.yaml").write_text(GRID.format(plugin=named), encoding="utf-8")
        bench_here("show", "g.yaml", *options)
        (tmp_path / "ran").unlink()  # it was there


@pytest.mark.long
def test_reading_a_run_imports_no_plugin_and_opens_no_database(run: Path, tmp_path: Path, bench_here: Bench) -> None:
    """A stranger's `study.json` names both."""
    mark, plugin, database = tmp_path / "ran", tmp_path / "evil_study.py", tmp_path / "mine.db"
    plugin.write_text(PLUGIN.format(mark=str(mark)), encoding="utf-8")
    study = {"file": "s.yaml", "stem": "s", "overrides": [], "trials": 2, "storage": f"sqlite:///{database}"}
    source = "seeds: [0, 2]\nreport_seeds: [1]\nspace: {lr: [0.1, 0.2]}\ngrid:\n  methods: [fedavg]\n  alphas: [1.0]\n"
    for named in (f"  plugins: [{plugin}]\n", ""):
        store.write_json(run / "study.json", {**study, "source": source + named})
        for command in ("status", "results", "report"):
            bench_here(command, run)
        assert bench_here("verify", run, "--cells", "0")
        page = (run / "report" / "index.html").read_text(encoding="utf-8")
        assert ("--plugin" if named else "--storage") in page
        assert not mark.exists()
        assert not database.exists()


@pytest.mark.parametrize("added", ["padding", "another stream", "junk", "a longer end", "junk in the end", "no end"])
def test_one_content_has_one_end(whole: Path, tmp_path: Path, bench_here: Bench, added: str) -> None:
    """What readers skip behind an archive would let its author try checksums until one suits."""
    sound = pack.pack(whole, tmp_path / "a.tar.xz") and (tmp_path / "a.tar.xz").read_bytes()
    content = lzma.decompress(sound)
    (tmp_path / "a.tar.xz").write_bytes(
        {
            "padding": sound + bytes(4),
            "another stream": sound + lzma.compress(b""),
            "junk": sound + b"junk",
            "a longer end": lzma.compress(content + bytes(tarfile.RECORDSIZE)),
            "junk in the end": lzma.compress(content[:-1] + b"\1"),
            "no end": lzma.compress(content.rstrip(b"\0") + bytes(-len(content.rstrip(b"\0")) % 512)),
        }[added]
    )
    said = bench_here("unpack", "a.tar.xz", "out", code=2).stderr
    assert "a.tar.xz is not a packed run (" in said
    assert not any((tmp_path / "out").iterdir())
