"""What each command says of each kind of bad file or folder: `python -m tests.cli.test_bad_places` complains of it.

A command has to refuse in a line that names the place and says what is there, in words of the file system that a user
knows. The commands run in this process; a few also run in their own.
"""

import contextlib
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from bench.cli import main
from bench.results.pack import pack
from bench.runs.cell_options import Options
from bench.runs.workers import start_server
from tests.conftest import ROOT
from tests.runs.conftest import COMMON, Bench, write_arrays
from tests.runs.helpers import make_run
from tests.warm import PATIENCE

pytestmark = pytest.mark.long

SECONDS = 120  # after which a command is taken for one that waits without end

OURS = re.compile(
    r"waits without end|Errno|Traceback|Not a directory|Is a directory|File exists|No such device|codec|surrogate"
    r"|instance of|Input should|tmp[a-z0-9_]{8}/(own|shipped|\d)|Symlink loop|NoneType"
)
"""Words of the system and of libraries that say nothing to a user, and names of temporary folders."""

NOTHING = r"there is no|no such|is not a run|is a link to|which does not exist"
FOLDER_KINDS = {  # what is at a place, and what a good answer says of it
    "missing": NOTHING,
    "missing/deeper": NOTHING,
    "file": r"is a file|no table|is not a packed run",
    "file/deeper": r"\bfile is a file, not a folder",
    "pipe": r"is a pipe",
    "socket": r"is a socket",
    "circle": r"symbolic links",
    "link": NOTHING,
    "n" * 300: r"too long",
    "\udcff": NOTHING,
    "": r"empty",
}
EMPTY = {"folder": r"is not a run|there is no|has no|no CSV"}
FILE_KINDS = {key: value for key, value in FOLDER_KINDS.items() if key != "file"} | {
    "folder": r"is a folder|is no table|has no files|is not a run",
    "garbage": r"UTF-8|is not|is no|not a file of|cannot be read|cannot be imported|ends? in|must end",
    "nil": r"empty|is not|is no|not a file of|cannot be read|registers no|keys with values|ends? in|must end",
}
WRITTEN = {
    "file/deeper": r"file is a file, not a folder",
    "pipe": r"is a pipe",
    "socket": r"is a socket",
    "circle": r"symbolic links",
    "n" * 300: r"too long",
    "/proc/x/y": r"nothing can be written into /proc: No such file",
    "/sys/x": r"nothing can be written into /sys: ",
    "": r"empty",
}
OUT_FOLDER_KINDS = WRITTEN | {"file": r"file is a file, not a folder", "link": r"link is a link to nothing"}
OUT_FILE_KINDS = WRITTEN | {"folder": r"folder\S* is a folder, not a file"}
RUN_FILE_KINDS = {  # contents of run.json
    "null": r"run.json is damaged",
    "[]": r"run.json is damaged",
    "{": r"run.json is damaged",
    '{"grid": 1, "cells": []}': r"run.json is damaged \(grid",
    "[" * 99_999: r"run.json is damaged",
    "\udcff": r"run.json is damaged",
    "pipe": r"run.json is .*pipe",
    "folder": r"run.json is a folder where a file should be",
    "link": r"run.json is a link",
}
FAST = "--device cpu --jobs 1 --quiet"
RUN_COMMANDS = """\
status X; clean X; log X a; results X; report X; compare X good; compare good X; cite X/; evaluate X; verify X; pack X;
export X --out new; track X; ui X"""
SLOTS = {  # what a command expects: the kinds of places that are something else, and commands with such a place for X
    "run folder": (FOLDER_KINDS | EMPTY, RUN_COMMANDS),
    "entries": (FOLDER_KINDS | EMPTY, "league compare X X"),
    "job": (
        FOLDER_KINDS | EMPTY,
        "sites serve X --box b --folder f; sites join X --box b --folder f --site 0",
    ),
    "grid": (
        FILE_KINDS,
        "run --grid X; run --grid X --dry-run; show X; data X; decide X; sites export X --out new; sites check X",
    ),
    "study": (FILE_KINDS, "sweep --study X"),
    "table": (
        FILE_KINDS,
        "data X.csv --label y; data X.parquet --label y; decide X.csv --label y --site s",
    ),
    "plug-in": (
        FILE_KINDS | {"nil": r"must end"},
        "run --grid grid.yaml --plugin X; show grid.yaml --plugin X; report good --plugin X; verify good --plugin X",
    ),
    "method": (FILE_KINDS, "check-method X.py; league run --method X.py --dry-run; league submit --method X.py"),
    "packed run": (FILE_KINDS, "unpack X new; verify X; league report X"),
    "data of a grid": (
        {kind: words for kind, words in FILE_KINDS.items() if kind} | {"\udcff": r"no value of the kind"},
        "data npz:X; data csv:X; data parquet:X; data split:X; show plugin:X; run --grid weights:X --quiet",
    ),
    "output folder": (
        OUT_FOLDER_KINDS,
        f"""\
run --grid grid.yaml {FAST} --out X; run --grid grid.yaml --dry-run --out X; sweep --study study.yaml {FAST} --out X;
decide table.csv --label y --site s {FAST} --out X; export good --out X; unpack good.tar.xz X; datasets --croissant X;
sites export grid.yaml --out X; sites check grid.yaml --out X; new-method mine --out X; league export --out X;
league run --method local --out X; league run --method local --dry-run --out X; league report --out X;
league export --method local --out X; league submit --method local --out X""",
    ),
    "full folder": (
        {"full": r"full is not empty"},
        "export good --out X; unpack good.tar.xz X; sites export grid.yaml --out X; sites check grid.yaml --out X",
    ),
    "output file": (
        OUT_FILE_KINDS,
        "pack good --out X; data table.csv --label y --html X.html; speed --quick --workload digits --json X",
    ),
    "run.json": (RUN_FILE_KINDS, RUN_COMMANDS),
}
GRIDS = {
    "npz": "datasets: [{{name: npz, path: {}}}]",
    "csv": "datasets: [{{name: csv, path: {}, label_column: y}}]",
    "parquet": "datasets: [{{name: parquet, path: {}, label_column: y}}]",
    "split": "partition: file\npartition_options: {{path: {}}}",
    "weights": "model: mlp\npretrained: {}",
    "plugin": "plugins: [{}]",
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run, packed too, a grid, a study and a table, all as they should be."""
    return make_good(tmp_path_factory.mktemp("good"))


def make_good(folder: Path) -> Path:
    start_server()  # from a folder that stays: it would keep the first working folder of these, which is removed
    write_arrays(folder / "blobs.npz")
    make_run(
        folder / "good", folder / "blobs.npz", ["fedavg"],
        Options(device="cpu", executor="sequential", keep="best"), rounds=1,
    )  # fmt: skip
    pack(folder / "good", folder / "good.tar.xz")
    grid = {**COMMON, "methods": ["fedavg"], "datasets": [{"name": "npz", "path": str(folder / "blobs.npz")}],
            "alphas": [1.0], "rounds": 1}  # fmt: skip
    study = {"grid": grid, "space": {"lr": [0.1, 0.5]}, "sampler": "grid", "seeds": [100, 101], "report_seeds": [0, 1]}
    for name, content in (("grid", grid), ("study", study)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    rows = "".join(f"{row % 7},{row % 2},{'uvw'[row % 3]}\n" for row in range(90))
    (folder / "table.csv").write_text(f"a,y,s\n{rows}", encoding="utf-8")
    return folder


def make_place(kind: str, ending: str = "") -> str:
    """Make what the kind is called in the working folder, and return its path."""
    name = kind.partition("/")[0] + ending
    if kind.startswith(("/", "missing", "n" * 300)) or not kind:
        return kind and kind + ending
    if kind == "pipe":
        os.mkfifo(name)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(name)
    elif kind in ("circle", "link"):
        Path(name).symlink_to(name if kind == "circle" else "nowhere")
    elif kind in ("folder", "full"):
        Path(name).mkdir()
        if kind == "full":
            Path(name, "notes.txt").touch()
    elif name == f"file{ending}" and "/" in kind:
        Path("file").touch()
        return kind + ending
    elif kind != "\udcff":
        Path(name).write_bytes({"garbage": bytes(range(256)), "nil": b""}.get(kind, b"text"))
    return name


def make_run_file(kind: str) -> str:
    """Make a folder whose run.json is of that kind, or has that content."""
    Path("bad").mkdir()
    with contextlib.chdir("bad"):
        if kind in ("pipe", "folder", "link"):
            Path(make_place(kind)).rename("run.json")
        else:
            Path("run.json").write_bytes(kind.encode(errors="surrogateescape"))
    return "bad"


def arguments(command: str, slot: str, kind: str, good: Path) -> tuple[list[str], str]:
    """The words of a command with a place of that kind for X, and the place."""
    words, place = [], ""
    for word in command.split():
        form = re.fullmatch(r"(?:(\w+):)?X(/|\.\w+)?", word)
        if form is None:
            words.append(str(good / word) if (good / word).exists() else word)
            continue
        ending = form[2] or ""
        if not place:
            slash = ending == "/" and bool(kind)
            place = make_run_file(kind) if slot == "run.json" else make_place(kind, "" if ending == "/" else ending)
            place += "/" * (slash and slot != "run.json" and "/" not in place)
        if form[1]:
            quoted = json.dumps(str(Path(place).absolute()) if place else place)
            base = yaml.safe_load((good / "grid.yaml").read_text(encoding="utf-8"))
            changed = base | yaml.safe_load(GRIDS[form[1]].format('"PLACE"'))
            if form[1] == "split":
                del changed["alphas"]
            text = yaml.safe_dump(changed).replace("PLACE", "@@").replace("'@@'", quoted).replace("@@", quoted)
            Path("with.yaml").write_text(text, encoding="utf-8")
            words.append("with.yaml")
        else:
            words.append(place)
    return words, place


def complaint(command: str, slot: str, kind: str, good: Path) -> str:
    """Run a command in this process, in the working folder; what is wrong with its answer, or nothing."""
    words, place = arguments(command, slot, kind, good)
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    before = signal.signal(signal.SIGALRM, _give_up), sys.argv
    sys.argv = ["bench", *words]
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        code = end.code or 0
    except BaseException as error:
        code = traceback.format_exception_only(error)[-1].strip()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before[0])
        sys.argv = before[1]
    said = "".join(err.getvalue().partition("bench: ")[1:])
    names = {place.rstrip("/").encode(errors="replace"), ascii(place)[1:-1].encode()}
    fine = (
        code in (1, 2)
        and any(name in said.encode(errors="replace") for name in names)
        and re.search(SLOTS[slot][0][kind], said)
        and not OURS.search(said)
        and not re.search(rf"Did you mean '{re.escape(place)}'", said)
    )
    return "" if fine else f"{command} <{kind[:40]!r}> -> {code}: {(said or err.getvalue())[-400:]!r}"


def _give_up(*_: object) -> None:
    raise TimeoutError("it waits without end")


def complaints(slot: str, good: Path, folder: Path) -> Iterator[str]:
    """Of all commands of a slot with all kinds of places; each has an empty working folder."""
    kinds, commands = SLOTS[slot]
    for command in commands.replace("\n", " ").split(";"):
        for kind in kinds:
            with tempfile.TemporaryDirectory(dir=folder) as here, contextlib.chdir(here):
                yield complaint(command.strip(), slot, kind, good)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc, and names of a file system for bytes")
@pytest.mark.parametrize("slot", SLOTS)
def test_every_bad_place_has_a_good_answer(slot: str) -> None:
    """In a process of its own: commands in folders that are gone would leave it unfit for other tests."""
    command = [sys.executable, "-m", "tests.cli.test_bad_places", slot]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=ROOT, timeout=10 * PATIENCE)
    tried = len(SLOTS[slot][0]) * (SLOTS[slot][1].count(";") + 1)
    assert done.stdout.splitlines() == [f"{tried} tried"], done.stdout + done.stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("evaluate good --tests 3", "tests: 3: should be a name or a mapping"),
        ("run --grid grid.yaml --dry-run --set tests=[3]", "--set tests: tests[0] = 3 should be a name or a mapping"),
        ("data table.csv --label \udcff", 'label_column = "?" is not text in UTF-8'),
        ("sweep --study study.yaml --storage sqlite:///\udcff", "is not text in UTF-8: give another one"),
    ],
    ids=ascii,
)
def test_bad_values_are_answered_in_the_users_words(bench_here: Bench, good: Path, command: str, said: str) -> None:
    words = [str(good / word) if (good / word).exists() else word for word in command.split()]
    answer = bench_here(*words, code=2).stderr
    assert said in answer
    assert not re.search(r"instance of|surrogate i|Input should|Traceback", answer)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        place = make_good(Path(scratch))
        found = [said for slot in sys.argv[1:] or SLOTS for said in complaints(slot, place, Path(scratch))]
    for said in filter(None, found):
        print(said)
    print(f"{len(found)} tried")
