"""Cells whose files are damaged, changed or another cell's: they are named and not used, the others' numbers stay, and
the next `bench run` makes them again."""

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from bench.errors import UserError
from bench.results.results import load_run, tidy
from bench.runs.cell import run_cell
from bench.runs.cell_options import Options
from bench.settings import Settings
from bench.store import store
from reports.reading.load import load
from tests.runs.conftest import Bench
from tests.runs.helpers import contents, make_run

METHODS = ("fedavg", "local", "ditto")
OPTIONS = Options(device="cpu", executor="sequential", checkpoint_seconds=0)


@pytest.fixture(scope="module")
def whole(arrays: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three finished cells."""
    return make_run(tmp_path_factory.mktemp("whole") / "run", arrays, METHODS, rounds=2)


@pytest.fixture(scope="module")
def kept(arrays: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two finished cells with their models."""
    options = OPTIONS.model_copy(update={"keep": "best"})
    return make_run(tmp_path_factory.mktemp("kept") / "run", arrays, METHODS[:2], rounds=2, options=options)


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy of the run."""
    return shutil.copytree(whole, tmp_path / "run")


def folder_of(run: Path, label: str) -> Path:
    return next(cell.folder for cell in load_run(run).cells if cell.label == label)


def older(folder: Path) -> None:
    """Make a cell look like one of the time when only four tables had checksums."""
    status = store.read_json(folder / "status.json")
    status["checksums"] = {name: status["checksums"][name] for name in ("metrics", "clients", "ledger", "work")}
    status.pop("cell", None)
    store.write_json(folder / "status.json", status)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def garbage(path: Path) -> None:
    path.write_bytes(b"\x00\xff{")


def number(path: Path) -> None:
    path.write_text("3", encoding="utf-8")


def linked(path: Path) -> None:
    """Replace a file by a link to a copy of it."""
    copy = path.rename(path.parent.parent.parent / path.name)
    path.symlink_to(copy)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE = [
    Path.unlink,
    truncate,
    *(pytest.param(damage, marks=pytest.mark.long) for damage in (garbage, number, linked, folder)),
]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["settings.json", "status.json", "partition.json", "tests.json", "metrics.csv"])
def test_a_damaged_file_costs_its_cell_only_and_the_next_run_makes_it_again(
    whole: Path, run: Path, bench_here: Bench, name: str, damage: Callable[[Path], None]
) -> None:
    before, folder = tidy(whole), folder_of(run, "ditto")
    damage(folder / name)
    cells = {cell.label: cell.status for cell in load_run(run).cells}
    assert {label: status.state for label, status in cells.items() if label != "ditto"} == {
        "fedavg": "done",
        "local": "done",
    }
    assert cells["ditto"].state == "interrupted"
    assert name in cells["ditto"].reason
    others = before[before["label"] != "ditto"].reset_index(drop=True)
    left = tidy(run)
    pd.testing.assert_frame_equal(left[left["label"] != "ditto"].reset_index(drop=True), others)
    assert "1 done" not in (said := bench_here("status", run).stdout)
    assert "2 done" in said
    cell = next(cell for cell in load_run(run).cells if cell.label == "ditto")
    assert run_cell(cell.settings, folder, OPTIONS).state == "done"
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
    truncate(folder_of(run, "local") / "metrics.csv")
    name, *options = command.split()
    bench_here(name, whole, *options, *(READERS[command] or [whole] * (command == "compare")))
    said = bench_here(name, run, *options, *(READERS[command] or [run] * (command == "compare")), code=1).stderr
    assert f"damaged and left out: {folder_of(run, 'local').name}  local" in said
    assert "metrics.csv: changed or damaged since" in said


def test_what_is_left_out_by_only_is_no_damage(kept: Path, tmp_path: Path, bench_here: Bench) -> None:
    run = shutil.copytree(kept, tmp_path / "run")
    truncate(folder_of(run, "local") / "metrics.csv")
    bench_here("evaluate", run, "--tests", "global", "--only", "method=fedavg")
    bench_here("evaluate", run, "--tests", "global", "--only", "method=local", code=2)
    assert "metrics.csv" in bench_here("log", run, folder_of(run, "local").name).stdout
    assert "metrics.csv" in bench_here("export", run, folder_of(run, "local").name, "--out", "e", code=2).stderr


@pytest.mark.parametrize("damage", DAMAGE)
def test_without_its_time_a_cell_has_all_its_numbers(
    whole: Path, run: Path, bench_here: Bench, damage: Callable[[Path], None]
) -> None:
    damage(folder_of(run, "ditto") / "timing.json")
    pd.testing.assert_frame_equal(tidy(run), tidy(whole))
    said = bench_here("status", run).stdout
    assert "3 done" in said
    assert "timing.json" in said


def test_a_cell_of_half_its_rounds_is_not_done(run: Path) -> None:
    folder = folder_of(run, "ditto")
    for rounds, total in ((1, 2), (1, 1), (3, 3), (-1, 2)):
        status = store.read_json(folder / "status.json")
        store.write_json(folder / "status.json", {**status, "rounds": rounds, "total": total})
        (cell,) = (cell for cell in load_run(run).cells if cell.label == "ditto")
        assert cell.status.state == "interrupted"
        assert "rounds" in cell.status.reason


@pytest.mark.parametrize("old", [True, False], ids=["older", "new"])
def test_another_cells_folder_is_named_and_not_used(whole: Path, run: Path, bench_here: Bench, old: bool) -> None:
    """Its numbers would stand under the name of the cell whose place it has."""
    target, source = folder_of(run, "ditto"), folder_of(run, "local")
    if old:
        older(source)
    shutil.rmtree(target)
    shutil.copytree(source, target)
    cell = next(cell for cell in load_run(run).cells if cell.label == "ditto")
    assert cell.status.state == "interrupted"
    assert "copied" in cell.status.reason
    assert set(tidy(run).query("status == 'done'")["label"]) == {"fedavg", "local"}
    assert f"{cell.id}  ditto" in bench_here("status", run).stdout
    run_cell(cell.settings, target, OPTIONS)
    assert contents(run)[f"{cell.id}/metrics.csv"] == contents(whole)[f"{cell.id}/metrics.csv"]


def test_another_data_file_under_the_same_name_is_another_cell(
    run: Path, arrays: Path, tmp_path: Path, cell: Callable[..., Settings]
) -> None:
    """Paths may change with the machine, so settings alone do not tell these two apart: the cell's id is recorded."""
    (tmp_path / "b").mkdir()
    other = shutil.copy(arrays, tmp_path / "b" / arrays.name)
    with open(other, "ab") as file:
        file.write(b" ")
    second = make_run(tmp_path / "second", other, ("ditto",), rounds=2)
    target = folder_of(run, "ditto")
    shutil.rmtree(target)
    shutil.copytree(folder_of(second, "ditto"), target)
    assert "copied" in store.read_status(target, load_run(run).cells[2].settings).reason


def test_a_checkpoint_of_another_cell_is_not_gone_on_with(tmp_path: Path, cell: Callable[..., Settings]) -> None:
    """Neither with the status of that cell nor without one."""
    stopped, fresh = tmp_path / "00000000000000aa", tmp_path / "00000000000000bb"
    first, second = cell(rounds=4), cell(rounds=4, lr=0.01)
    looks = iter([False, False, True])
    run_cell(first, stopped, OPTIONS, stop=lambda: next(looks))
    run_cell(second, fresh, OPTIONS)
    for missing in ("", "status.json"):
        place = tmp_path / f"copy{missing}" / fresh.name
        shutil.copytree(stopped, place)
        (place / missing).unlink() if missing else None
        assert run_cell(second, place, OPTIONS).state == "done"
        assert (place / "metrics.csv").read_bytes() == (fresh / "metrics.csv").read_bytes()


def test_names_and_paths_do_not_make_another_cell(run: Path, whole: Path, tmp_path: Path) -> None:
    """The same cell under another label, and from another place of its data file."""
    info = store.read_json(run / "run.json")
    for entry in info["cells"]:
        entry["settings"] |= {"label": "other", "case": "x", "partition_seed": entry["settings"]["seed"]}
        entry["settings"]["dataset_options"]["path"] = "elsewhere/blobs.npz"
    store.write_json(run / "run.json", info)
    assert {cell.status.state for cell in load_run(run).cells} == {"done"}


def test_a_file_of_another_cell_is_not_taken_for_its_own(run: Path) -> None:
    """A method that leaves no relations gets none from a file that was put there."""
    sizes = {"clients": [0, 1], "n_train": [1, 1], "matrices": {"weights": [[1.0, 0.0], [0.0, 1.0]]}}
    store.write_json(folder_of(run, "ditto") / "relations.json", sizes)
    (cell,) = (cell for cell in load_run(run).cells if cell.label == "ditto")
    assert "relations.json" in cell.status.reason


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
    folder = folder_of(run, "ditto")
    store.write_json(folder / "status.json", {**store.read_json(folder / "status.json"), **change})
    (cell,) = (cell for cell in load_run(run).cells if cell.label == "ditto")
    assert cell.status.state == "interrupted"
    assert cell.status.reason.startswith("status.json")


def test_forged_checksums_do_not_make_nonsense_sound(run: Path) -> None:
    folder = folder_of(run, "ditto")
    tests = store.read_json(folder / "tests.json")
    tests["local"] = base64.b64encode(b"short").decode()
    store.write_json(folder / "tests.json", tests)
    status = store.read_json(folder / "status.json")
    status["checksums"] |= store.record_checksums(folder)
    store.write_json(folder / "status.json", status)
    (cell,) = (cell for cell in load_run(run).cells if cell.label == "ditto")
    assert cell.status.reason.startswith("tests.json: damaged")
    assert json.loads((run / "run.json").read_bytes())["cells"]


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
    table = folder_of(run, "ditto") / f"{name}.csv"
    changed = change(table.read_text(encoding="utf-8")).encode(errors="surrogateescape")
    assert changed != table.read_bytes()
    table.write_bytes(changed)
    status = store.read_json(table.parent / "status.json")
    status["checksums"][name] = store.checksum(table)
    store.write_json(table.parent / "status.json", status)
    with pytest.raises(UserError) as refused:
        _ = (load([run]).table(name), tidy(run))
    assert str(table) in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
