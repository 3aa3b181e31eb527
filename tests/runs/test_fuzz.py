"""Any file of a run damaged in any way: every command ends with the right numbers or with one line that names the file,
never with a traceback, and nothing outside the run is touched."""

import contextlib
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.cli import main
from bench.errors import UserError
from bench.results.results import load_run
from bench.runs.cell import run_cell
from bench.runs.cell_options import Options
from tests.runs.helpers import contents, make_run

FIGURES = ["cell", "metric", "on", "mean", "selection", "round", "value"]
OPTIONS = Options(device="cpu", executor="sequential")
SLOW = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@dataclass(frozen=True)
class Fault:
    """One change of a file: `kind`, which file (a number, modulo how many there are), and where in it (a share).

    The number's last bits say which bit flips, and `at` also which file is the other one.
    """

    kind: str
    file: int
    at: float
    name: str = ""

    def apply(self, run: Path, outside: Path) -> None:
        files = sorted(path for path in run.rglob("*") if path.is_file() and not path.is_symlink())
        named = [path for path in files if path.name == self.name] or files
        path, other = named[self.file % len(named)], files[int(self.at * len(files)) % len(files)]
        content = path.read_bytes()
        place = int(self.at * len(content))
        match self.kind:
            case "truncate":
                path.write_bytes(content[:place])
            case "flip" if content:
                changed = bytearray(content)
                changed[place % len(content)] ^= 1 << (self.file % 8)
                path.write_bytes(bytes(changed))
            case "swap":
                path.write_bytes(other.read_bytes())
                other.write_bytes(content)
            case "link":
                path.unlink()
                path.symlink_to(outside / "secret")
            case "replace":
                rivals = [one for one in files if one.name == path.name and one != path] or [other]
                path.write_bytes(rivals[0].read_bytes())
            case "delete":
                path.unlink()
            case "folder":
                path.unlink()
                path.mkdir()
            case "pipe":
                path.unlink()
                os.mkfifo(path)
            case "link of a folder" if path.parent != run:
                shutil.rmtree(path.parent)
                path.parent.symlink_to(outside)


KINDS = ("truncate", "flip", "swap", "link", "replace", "delete", "folder", "pipe", "link of a folder")
FAULTS = st.lists(
    st.builds(Fault, st.sampled_from(KINDS), st.integers(0, 1000), st.floats(0, 0.999)), min_size=1, max_size=2
)


@pytest.fixture(scope="module")
def whole(arrays: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two finished cells of one task."""
    return make_run(tmp_path_factory.mktemp("whole") / "run", arrays, ("fedavg", "ditto"), rounds=2)


@contextlib.contextmanager
def damaged(whole: Path, faults: Sequence[Fault]) -> Iterator[Path]:
    """A copy of the run with faults; at the end nothing outside of it has changed."""
    with tempfile.TemporaryDirectory() as folder:
        run, outside = Path(folder, "run"), Path(folder, "outside")
        shutil.copytree(whole, run)
        outside.mkdir()
        for name in ("secret", "settings.json", "lock"):
            (outside / name).write_text("mine", encoding="utf-8")
        for fault in faults:
            fault.apply(run, outside)
        yield run
        assert {path.name: path.read_text() for path in outside.iterdir()} == dict.fromkeys(
            ("secret", "settings.json", "lock"), "mine"
        )
        assert {path.name for path in Path(folder).iterdir()} <= {"run", "outside", "run.tar.xz", "again"}


def command(*arguments: object) -> tuple[int, str, str]:
    """Run `bench` in this process: exit status, output and errors. Any exception but an exit is a traceback."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["bench", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.argv = before
    return int(ended.value.code or 0), out.getvalue(), err.getvalue()


def check(whole: Path, run: Path, *arguments: object) -> bool:
    """Whether a command came to its end; if not, it said why in one line."""
    code, _, err = command(*arguments)
    if code == 2:
        assert len(err.strip().splitlines()) == 1, err
        assert str(run) in err or str(run.parent) in err, err
    return code == 0


def check_numbers(whole: Path, run: Path) -> None:
    """What is reported of a cell is what it had, or nothing."""
    expected = load_run(whole).results[FIGURES]
    refusal = ""
    try:
        results = load_run(run).results
    except UserError as error:
        refusal = str(error)
    if refusal:
        assert len(refusal.splitlines()) == 1
        return
    done = results[(results["status"] == "done") & (results["metric"] != "")][FIGURES]
    merged = done.merge(expected, on=FIGURES, how="left", indicator=True)
    assert (merged["_merge"] == "both").all(), merged


def check_all(whole: Path, faults: Sequence[Fault], *, report: bool) -> None:
    with damaged(whole, faults) as run:
        check_numbers(whole, run)
        for name in ("status", "results"):
            check(whole, run, name, run)
        if check(whole, run, "pack", run) and check(whole, run, "unpack", f"{run}.tar.xz", run.with_name("again")):
            check_numbers(whole, run.with_name("again"))
        check(whole, run, "verify", run, "--cells", "0")
        if report:
            check(whole, run, "report", run)
        resume(whole, run)


def resume(whole: Path, run: Path) -> None:
    """Run the cells again, as `bench run` of the same grid would: they end with the bytes of the undisturbed run.

    But for words of `status.json` on which no number rests: nothing covers them.
    """
    for cell in load_run(whole).cells:
        refusal = ""
        try:
            status = run_cell(cell.settings, run / cell.id, OPTIONS)
        except UserError as error:
            refusal = str(error)
        if refusal:
            assert str(run) in refusal
            return
        assert status.state == "done", status.reason
    ended, undisturbed = (
        {name: content for name, content in contents(one).items() if not name.endswith("status.json")}
        for one in (run, whole)
    )
    assert ended == undisturbed


@pytest.mark.long
@settings(SLOW, max_examples=40)
@given(faults=FAULTS)
def test_any_faults(whole: Path, faults: list[Fault]) -> None:
    check_all(whole, faults, report=False)


@pytest.mark.slow
@settings(SLOW, max_examples=30)
@given(faults=FAULTS)
def test_any_faults_in_a_report(whole: Path, faults: list[Fault]) -> None:
    check_all(whole, faults, report=True)
