"""Cells whose files are damaged, changed or another cell's: they are named and not used, the others' numbers stay, and
the next `bench run` makes them again; and files damaged in any way."""

import base64
import contextlib
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.cli import main
from bench.errors import UserError
from bench.results.results import load_run, tidy
from bench.runs.cell import run_cell
from bench.settings import Settings
from bench.store import store
from reports.reading.load import load
from tests.runs.conftest import Bench
from tests.runs.forger import change_entries, change_status, record_checksums
from tests.runs.helpers import BEST, EVERY_ROUND, OPTIONS, cells, contents, make_run, states, stop_after


@pytest.fixture(scope="module")
def kept(arrays: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two finished cells with their models."""
    return make_run(tmp_path_factory.mktemp("kept") / "run", arrays, ("fedavg", "local"), BEST, rounds=2)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def number(path: Path) -> None:
    path.write_text("3", encoding="utf-8")


def nest(path: Path) -> None:
    path.write_text("[" * 200_000 + "]" * 200_000, encoding="utf-8")


def linked(path: Path) -> None:
    """Replace a file by a link to a copy of it."""
    copy = path.rename(path.parent.parent.parent / path.name)
    path.symlink_to(copy)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE = [
    Path.unlink,
    *(pytest.param(damage, marks=pytest.mark.long) for damage in (truncate, number, nest, linked, folder)),
]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["settings.json", "status.json", "partition.json", "tests.json", "metrics.csv"])
def test_a_damaged_file_costs_its_cell_only_and_the_next_run_makes_it_again(
    whole: Path, run: Path, bench_here: Bench, name: str, damage: Callable[[Path], None]
) -> None:
    damage(cells(run)["ditto"].folder / name)
    cell = cells(run)["ditto"]
    assert states(run) == {"fedavg": "done", "local": "done", "ditto": "interrupted"}
    assert name in cell.status.reason
    before, left = (tidy(one).query("label != 'ditto'").reset_index(drop=True) for one in (whole, run))
    pd.testing.assert_frame_equal(left, before)
    assert "2 done" in bench_here("status", run).stdout
    assert run_cell(cell.settings, cell.folder, EVERY_ROUND).state == "done"
    assert contents(run) == contents(whole)


READERS = {
    "results": [], "results --csv": [], "results --json": [], "report": [], "pack": ["--out", "p.tar.xz"],
    "evaluate": ["--tests", "global"], "track": [], "compare": [],
}  # fmt: skip
SLOW = ("report", "track", "compare")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what MLflow asks SQLAlchemy for
@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=pytest.mark.long) if name in SLOW else name for name in READERS]
)
def test_each_command_that_reads_a_run_names_damaged_cells(
    command: str, kept: Path, tmp_path: Path, bench_here: Bench
) -> None:
    """It works on the others, and its exit status is 1; without damage it is 0."""
    whole, run = (shutil.copytree(kept, tmp_path / name) for name in ("whole", "run"))
    truncate(cells(run)["local"].folder / "metrics.csv")
    name, *options = command.split()
    bench_here(name, whole, *options, *(READERS[command] or [whole] * (command == "compare")))
    said = bench_here(name, run, *options, *(READERS[command] or [run] * (command == "compare")), code=1).stderr
    assert f"damaged and left out: {cells(run)['local'].id}  local" in said
    assert "metrics.csv: changed or damaged since" in said


def test_what_is_left_out_by_only_is_no_damage(kept: Path, tmp_path: Path, bench_here: Bench) -> None:
    run = shutil.copytree(kept, tmp_path / "run")
    truncate(cells(run)["local"].folder / "metrics.csv")
    bench_here("evaluate", run, "--tests", "global", "--only", "method=fedavg")
    bench_here("evaluate", run, "--tests", "global", "--only", "method=local", code=2)
    assert "metrics.csv" in bench_here("log", run, cells(run)["local"].id).stdout
    assert "metrics.csv" in bench_here("export", run, cells(run)["local"].id, "--out", "e", code=2).stderr


@pytest.mark.parametrize("damage", DAMAGE)
def test_without_its_time_a_cell_has_all_its_numbers(
    whole: Path, run: Path, bench_here: Bench, damage: Callable[[Path], None]
) -> None:
    damage(cells(run)["ditto"].folder / "timing.json")
    pd.testing.assert_frame_equal(tidy(run), tidy(whole))
    said = bench_here("status", run).stdout
    assert "3 done" in said
    assert "timing.json" in said


def test_a_cell_of_half_its_rounds_is_not_done(run: Path) -> None:
    folder = cells(run)["ditto"].folder
    for rounds, total in ((1, 2), (1, 1), (3, 3), (-1, 2)):
        status = store.read_json(folder / "status.json")
        store.write_json(folder / "status.json", status | {"rounds": rounds, "total": total})
        assert states(run)["ditto"] == "interrupted"
        assert "rounds" in cells(run)["ditto"].status.reason


@pytest.mark.parametrize("named", [True, False])
def test_another_cells_folder_is_named_and_not_used(whole: Path, run: Path, bench_here: Bench, named: bool) -> None:
    """Its numbers would stand under the name of the cell whose place it has; also where its status has no id."""
    target, source = cells(run)["ditto"].folder, cells(run)["local"].folder
    if not named:
        change_status(source, lambda status: status.pop("cell"))
    shutil.rmtree(target)
    shutil.copytree(source, target)
    cell = cells(run)["ditto"]
    assert cell.status.state == "interrupted"
    assert "copied" in cell.status.reason
    assert set(tidy(run).query("status == 'done'")["label"]) == {"fedavg", "local"}
    assert f"{cell.id}  ditto" in bench_here("status", run).stdout
    run_cell(cell.settings, target, EVERY_ROUND)
    assert contents(run)[f"{cell.id}/metrics.csv"] == contents(whole)[f"{cell.id}/metrics.csv"]


def test_another_data_file_under_the_same_name_is_another_cell(run: Path, arrays: Path, tmp_path: Path) -> None:
    """Paths may change with the machine, so settings alone do not tell these two apart: the cell's id is recorded."""
    (tmp_path / "b").mkdir()
    other = shutil.copy(arrays, tmp_path / "b" / arrays.name)
    with open(other, "ab") as file:
        file.write(b" ")
    second = make_run(tmp_path / "second", other, ("ditto",), rounds=2)
    target = cells(run)["ditto"].folder
    shutil.rmtree(target)
    shutil.copytree(cells(second)["ditto"].folder, target)
    assert "copied" in cells(run)["ditto"].status.reason


def test_a_checkpoint_of_another_cell_is_not_gone_on_with(tmp_path: Path, cell: Callable[..., Settings]) -> None:
    """Neither with the status of that cell nor without one."""
    stopped, fresh = tmp_path / "00000000000000aa", tmp_path / "00000000000000bb"
    first, second = cell(rounds=4), cell(rounds=4, lr=0.01)
    run_cell(first, stopped, EVERY_ROUND, stop=stop_after(2))
    run_cell(second, fresh, EVERY_ROUND)
    for missing in ("", "status.json"):
        place = tmp_path / f"copy{missing}" / fresh.name
        shutil.copytree(stopped, place)
        (place / missing).unlink() if missing else None
        assert run_cell(second, place, EVERY_ROUND).state == "done"
        assert (place / "metrics.csv").read_bytes() == (fresh / "metrics.csv").read_bytes()


def test_names_and_paths_do_not_make_another_cell(run: Path) -> None:
    """The same cell under another label, and from another place of its data file."""

    def rename(entry: dict[str, Any]) -> None:
        entry["settings"] |= {"label": "other", "case": "x", "partition_seed": entry["settings"]["seed"]}
        entry["settings"]["dataset_options"]["path"] = "elsewhere/blobs.npz"

    change_entries(run, rename)
    assert {cell.status.state for cell in load_run(run).cells} == {"done"}


def test_a_file_of_another_cell_is_not_taken_for_its_own(run: Path) -> None:
    """A method that leaves no relations gets none from a file that was put there."""
    sizes = {"clients": [0, 1], "n_train": [1, 1], "matrices": {"weights": [[1.0, 0.0], [0.0, 1.0]]}}
    store.write_json(cells(run)["ditto"].folder / "relations.json", sizes)
    assert "relations.json" in cells(run)["ditto"].status.reason


@pytest.mark.parametrize(
    "change",
    [
        {"checksums": ["metrics"]},
        {"checksums": {"../../secret": "0"}},
        {"checksums": {"metrics": 3}},
        {"state": "perfect"},
        {"rounds": "many"},
        {"warnings": {}},
        {"unknown": 1},
    ],
    ids=str,
)
def test_a_status_of_the_wrong_kind_is_damaged(run: Path, change: dict[str, object]) -> None:
    folder = cells(run)["ditto"].folder
    store.write_json(folder / "status.json", store.read_json(folder / "status.json") | change)
    assert states(run)["ditto"] == "interrupted"
    assert cells(run)["ditto"].status.reason.startswith("status.json")


def test_forged_checksums_do_not_make_nonsense_sound(run: Path) -> None:
    folder = cells(run)["ditto"].folder
    tests = store.read_json(folder / "tests.json")
    tests["local"] = base64.b64encode(b"short").decode()
    store.write_json(folder / "tests.json", tests)
    record_checksums(folder)
    assert cells(run)["ditto"].status.reason.startswith("tests.json: damaged")


FORGED = {
    "no numbers": ("metrics", lambda text: text.replace(",0.", ",x")),
    "other columns": ("metrics", lambda text: text.replace("quantity", "quality", 1)),
    "too many fields": ("metrics", lambda text: text.replace("\n", ",1\n").replace(",1\n", "\n", 1)),
    "one line of many fields": ("metrics", lambda text: text + "1,2,3,4,5,6,7,8,9\n"),
    "bytes": ("metrics", lambda text: text.replace("pm", "p\udcff", 1)),
    "no text": ("metrics", lambda text: "\n"),
    "a word for a round": ("clients", lambda text: text.replace("\n1,", "\none,")),
}


@pytest.mark.parametrize(("name", "change"), FORGED.values(), ids=FORGED)
def test_a_table_that_is_none_is_named_though_its_checksum_is_forged(
    run: Path, name: str, change: Callable[[str], str]
) -> None:
    table = cells(run)["ditto"].folder / f"{name}.csv"
    changed = change(table.read_text(encoding="utf-8")).encode(errors="surrogateescape")
    assert changed != table.read_bytes()
    table.write_bytes(changed)
    change_status(table.parent, lambda status: status["checksums"].update({name: store.checksum(table)}))
    with pytest.raises(UserError) as refused:
        _ = (load([run]).table(name), tidy(run))
    assert str(table) in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


# -- any file of a run damaged in any way ------------------------------------------------------------------------------


FIGURES = ["cell", "metric", "on", "mean", "selection", "round", "value"]
SLOW = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


Fault = tuple[str, int, float]
"""A kind, which file (a number, modulo how many there are), and where in it (a share).

The number's last bits say which bit flips, and the share also which file is the other one.
"""
KINDS = ("truncate", "flip", "swap", "link", "replace", "delete", "folder", "pipe", "link of a folder")
FAULTS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 1000), st.floats(0, 0.999)), min_size=1, max_size=2)


def apply(fault: Fault, run: Path, outside: Path) -> None:
    """Change one file."""
    kind, number, at = fault
    files = sorted(path for path in run.rglob("*") if path.is_file() and not path.is_symlink())
    path, other = files[number % len(files)], files[int(at * len(files)) % len(files)]
    content = path.read_bytes()
    place = int(at * len(content))
    match kind:
        case "truncate":
            path.write_bytes(content[:place])
        case "flip" if content:
            changed = bytearray(content)
            changed[place % len(content)] ^= 1 << (number % 8)
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


@contextlib.contextmanager
def damaged(whole: Path, faults: Sequence[Fault]) -> Iterator[Path]:
    """A copy of the run with faults; at the end nothing outside of it has changed."""
    names = ("secret", "settings.json", "lock")
    with tempfile.TemporaryDirectory() as folder:
        run, outside = Path(folder, "run"), Path(folder, "outside")
        shutil.copytree(whole, run)
        outside.mkdir()
        for name in names:
            (outside / name).write_text("mine", encoding="utf-8")
        for fault in faults:
            apply(fault, run, outside)
        yield run
        assert {path.name: path.read_text() for path in outside.iterdir()} == dict.fromkeys(names, "mine")
        assert {path.name for path in Path(folder).iterdir()} <= {"run", "outside", "run.tar.xz", "again"}


def ends_well(run: Path, *arguments: object) -> bool:
    """Whether a command came to its end, in this process; if not, it said why in one line."""
    err = io.StringIO()
    with (
        patch("sys.argv", ["bench", *map(str, arguments)]),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,  # any other exception is a traceback
    ):
        main()
    if ended.value.code == 2:
        said = err.getvalue()
        assert len(said.strip().splitlines()) == 1, said
        assert str(run) in said or str(run.parent) in said, said
    return not ended.value.code


def check_numbers(whole: Path, run: Path) -> None:
    """What is reported of a cell is what it had, or nothing."""
    expected = load_run(whole).results[FIGURES]
    try:
        results = load_run(run).results
    except UserError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017
        return
    done = results[(results["status"] == "done") & (results["metric"] != "")][FIGURES]
    merged = done.merge(expected, on=FIGURES, how="left", indicator=True)
    assert (merged["_merge"] == "both").all(), merged


def check_all(whole: Path, faults: Sequence[Fault], *, report: bool) -> None:
    with damaged(whole, faults) as run:
        check_numbers(whole, run)
        for name in ("status", "results", *(["report"] if report else [])):
            ends_well(run, name, run)
        if ends_well(run, "pack", run) and ends_well(run, "unpack", f"{run}.tar.xz", run.with_name("again")):
            check_numbers(whole, run.with_name("again"))
        ends_well(run, "verify", run, "--cells", "0")
        resume(whole, run)


def resume(whole: Path, run: Path) -> None:
    """Run the cells again, as `bench run` of the same grid would: they end with the bytes of the undisturbed run.

    But for words of `status.json` on which no number rests: nothing covers them.
    """
    for cell in load_run(whole).cells:
        try:
            status = run_cell(cell.settings, run / cell.id, OPTIONS)
        except UserError as error:
            assert str(run) in str(error)  # noqa: PT017
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
