"""Further tests of a finished cell's models: at its end (`tests:`), or later from kept models (`bench evaluate`)."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import bench as front_door
from bench.errors import UserError
from bench.federation.cell_data import apply_shifts, file_samples, load_all
from bench.results.figures import reported_figures
from bench.results.further_tests import evaluate_cell
from bench.results.pack import pack, unpack
from bench.results.results import CellView, load_run
from bench.results.saved_models import has_reported
from bench.runs.cell import run_cell
from bench.runs.cell_options import Options
from bench.runs.plan import plan
from bench.samples.corruptions import corrupt
from bench.settings import PlainTest, ShiftPart
from bench.store import store
from datasets.assemble import assemble
from reports.page.further_tests import reversals
from tests.runs.conftest import Bench, Cell
from tests.runs.forger import change_entries
from tests.runs.helpers import BEST, make_run, stop_after

SETTINGS: dict[str, Any] = {"rounds": 3, "alphas": [0.3]}


@pytest.fixture(scope="module")
def made(arrays: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two cells that kept their models."""
    return make_run(tmp_path_factory.mktemp("made") / "run", arrays, ["fedavg", "ditto"], options=BEST, **SETTINGS)


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def accuracies(cell: CellView, split: str, metric: str, on: str = "local") -> dict[int, float]:
    """By client, and under -1 the mean in which every client counts the same, or the value on all samples together."""
    table = cell.table("evaluated")
    table = table[(table["split"] == split) & (table["metric"] == metric) & (table["on"] == on)]
    table = table[(table["quantity"] == "accuracy") & (table["mean"] != "train_size")]
    assert not table.duplicated(["client"]).any()
    return dict(table[["client", "value"]].itertuples(index=False, name=None))


def right(cell: CellView, client: int | None, x: np.ndarray, y: np.ndarray) -> float:
    """Accuracy of a kept model as a user would compute it."""
    with torch.no_grad():
        return float((cell.model(client=client)(torch.from_numpy(x)).argmax(1).numpy() == y).mean())


@pytest.mark.long
@pytest.mark.parametrize("model", [{}, {"model": "mlp", "frozen": ["body"]}], ids=["logistic", "frozen body"])
def test_every_kind_of_test_is_what_a_user_would_compute(model: dict[str, Any], arrays: Path, tmp_path: Path) -> None:
    """Where the body is frozen, a cell's samples are features, and its models are heads."""
    run = make_run(tmp_path / "run", arrays, ["fedavg", "ditto"], options=BEST, **model, **SETTINGS)
    before = {path: path.read_bytes() for path in run.glob("*/*") if path.is_file()}
    shifts = [{"name": "rotation", "groups": 2}]
    with np.load(arrays) as file:
        np.savez(tmp_path / "other.npz", train_images=file["test_images"][:20], train_labels=file["test_labels"][:20])
    view = front_door.evaluate(
        run, quiet=True,
        tests=["global", "others", {"name": "corrupted", "severity": 5, "kinds": ["fog"]},
               {"name": "shifted", "shifts": shifts}, {"name": "file", "path": str(tmp_path / "other.npz")}],
    )  # fmt: skip
    cell = view.cells[1]
    dataset, partition, _ = load_all(cell.settings)
    common, clients = partition.global_test, range(4)
    assert len(common)
    y = dataset.y

    def check(split: str, of: Callable[[int], float], metric: str = "pm", on: str = "local") -> None:
        expected = {i: of(i) for i in clients}
        found = accuracies(cell, split, metric, on)
        assert found == pytest.approx({**expected, -1: np.mean([*expected.values()])})

    check("global", lambda i: right(cell, i, dataset.x[common], y[common]), on="global")
    assert accuracies(cell, "global", "gm", "global") == {-1: right(cell, None, dataset.x[common], y[common])}

    def others(client: int | None, without: int) -> float:
        tests = [partition.test[j] for j in clients if j != without]
        return float(np.mean([right(cell, client, dataset.x[at], y[at]) for at in tests]))

    check("others", lambda i: others(i, i))
    check("others", lambda i: others(None, i), metric="gm")

    def in_fog(i: int) -> float:
        at = partition.test[i]
        return right(cell, i, corrupt(dataset.x[at], "fog", 5, at, cell.settings.seed), y[at])

    check("corrupted fog 5", in_fog)
    settings = cell.settings.model_copy(update={"shifts": tuple(ShiftPart(**shift) for shift in shifts)})
    turned, lists = apply_shifts(settings, dataset, partition)
    check("shifted rotation groups=2", lambda i: right(cell, i, turned.x[lists.test[i]], turned.y[lists.test[i]]))
    first = slice(dataset.n_train, dataset.n_train + 20)
    check("file other", lambda i: right(cell, i, dataset.x[first], y[first]), on="global")
    assert all(path.read_bytes() == content for path, content in before.items()), "old files change"
    assert [cell.status.state for cell in view.cells] == ["done", "done"]


def test_a_second_call_adds_what_is_missing_and_changes_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    front_door.evaluate(run, tests=["global"])
    tables = {cell.id: (cell.folder / "evaluated.csv").read_bytes() for cell in load_run(run).cells}
    front_door.evaluate(run, tests=["global"])
    assert capsys.readouterr().err.count(": 0 new rows") == 2
    view = front_door.evaluate(run, tests=["global", "others"], metrics=["auroc"])
    for cell in view.cells:
        content = (cell.folder / "evaluated.csv").read_bytes()
        assert content.startswith(tables[cell.id])
        table = cell.table("evaluated")
        assert not table.duplicated([name for name in store.EVALUATED if name != "value"]).any()
        assert set(zip(table["split"], table["quantity"], strict=True)) == {
            *((split, quantity) for split in ("global", "others") for quantity in ("accuracy", "loss", "auroc")),
            ("test", "auroc"),
        }
    assert view.evaluated["label"].unique().tolist() == ["fedavg", "ditto"]


def test_what_the_grid_asks_for_is_what_is_added_later(arrays: Path, run: Path, tmp_path: Path) -> None:
    """Tests, and a score of the cells' own tests; models right after local training are not kept for it. At the end
    models stay only where they are asked for, and other tables are the same."""
    tests = ["global", {"name": "corrupted", "severity": 3, "kinds": ["snow"]}]
    asked = make_run(tmp_path / "asked", arrays, ["fedavg", "ditto"], tests=tests, metrics=["auroc"], **SETTINGS)
    later = front_door.evaluate(run, tests=tests, metrics=["auroc"], quiet=True)
    for cell, other in zip(load_run(asked).cells, later.cells, strict=True):
        assert cell.id == other.id
        assert not (cell.folder / "models").exists()
        added = other.table("evaluated").query("split != 'test'").reset_index(drop=True)
        pd.testing.assert_frame_equal(cell.table("evaluated"), added)
        keys = ("metric", "on", "mean", "round")
        expected, shown = (
            {tuple(f[k] for k in keys): f["value"] for f in reported_figures(one, "auroc") if f["metric"] != "lm"}
            for one in (cell, other)
        )
        assert shown == pytest.approx(expected, rel=1e-6)
        for name in ("metrics", "clients", "hits", "ledger"):
            assert (cell.folder / f"{name}.csv").read_bytes() == (other.folder / f"{name}.csv").read_bytes()


@pytest.mark.long
def test_a_stopped_cell_ends_with_the_same_rows_and_a_trial_has_none(cell: Cell, tmp_path: Path) -> None:
    """Also where rows were left by a kill, of models that another `select_by` chose."""
    settings = cell(method="ditto", lr=1.5, alpha=0.2, seed=2, tests=["global"])
    options = Options(device="cpu", checkpoint_seconds=0)
    run_cell(settings, tmp_path / "whole", options)
    run_cell(settings, tmp_path / "parts", options, stop=stop_after(4))
    (tmp_path / "parts" / "evaluated.csv").write_text("round,metric,on,mean,client,split,quantity,value\n"
                                                      "1,pm,global,equal,-1,global,accuracy,0.5\n")  # fmt: skip
    run_cell(settings, tmp_path / "parts", options)
    whole, parts = ((tmp_path / name / "evaluated.csv").read_bytes() for name in ("whole", "parts"))
    assert whole == parts
    trial = run_cell(settings.model_copy(update={"protocol": "tuning"}), tmp_path / "trial", options)
    assert (trial.state, trial.warnings) == ("done", [])
    assert not (tmp_path / "trial" / "evaluated.csv").exists()


def test_tests_that_fail_cost_no_training(cell: Cell, tmp_path: Path) -> None:
    """The file was there when the run was planned: the cell is done, says so, and keeps its models for later."""
    settings = cell(rounds=1, tests=[{"name": "file", "path": str(tmp_path / "gone.npz")}])
    status = run_cell(settings, tmp_path / "cell", Options(device="cpu"))
    assert status.state == "done"
    assert any("not all further tests are scored" in text and "gone.npz" in text for text in status.warnings)
    assert (tmp_path / "cell" / "models").is_dir()


def test_models_of_an_earlier_attempt_are_not_scored(cell: Cell, tmp_path: Path) -> None:
    """The first attempt keeps the models of its best round, and the second one, which finishes, keeps none."""
    settings, best = cell(alpha=0.2, rounds=5), Options(device="cpu", keep="best", checkpoint_seconds=0)
    folder = tmp_path / "cell"
    run_cell(settings, folder, best, stop=stop_after(2))
    early = Path(shutil.copytree(folder / "models", tmp_path / "early"))
    status = run_cell(settings, folder, best.model_copy(update={"keep": "none"}))
    assert not (folder / "models").exists()
    early.rename(folder / "models")  # as older versions left them
    view = CellView("cell", "fedavg", settings, folder, status)
    assert not has_reported(folder, settings)
    assert next(f["round"] for f in reported_figures(view) if f["metric"] == "gm") > 2
    with pytest.raises(UserError, match="no model of the reported round was kept"):
        evaluate_cell(view, [PlainTest(name="global")], ["auroc"])
    assert not (folder / "evaluated.csv").exists()


def test_a_packed_run_with_models_is_evaluated_without_training(run: Path, tmp_path: Path, bench_here: Bench) -> None:
    pack(run, tmp_path / "bare.tar.xz")
    bench_here("pack", run, "--models", "--out", "run.tar.xz")
    assert (tmp_path / "run.tar.xz").stat().st_size > (tmp_path / "bare.tar.xz").stat().st_size
    theirs = unpack(tmp_path / "run.tar.xz", tmp_path / "theirs")
    bench_here("evaluate", "theirs", "--tests", "global", "--tests", "{name: corrupted, severity: 1, kinds: [fog]}")
    tests = ["global", {"name": "corrupted", "severity": 1, "kinds": ["fog"]}]
    ours = front_door.evaluate(run, tests=tests, quiet=True)
    for cell, other in zip(load_run(theirs.path).cells, ours.cells, strict=True):
        pd.testing.assert_frame_equal(cell.table("evaluated"), other.table("evaluated"))
    pack(theirs.path, tmp_path / "again.tar.xz")
    assert len(unpack(tmp_path / "again.tar.xz", tmp_path / "again").evaluated) == len(ours.evaluated)
    bare = unpack(tmp_path / "bare.tar.xz", tmp_path / "unpacked")
    with pytest.raises(UserError, match=r"none of 2 finished cells kept the models of its .*; run them .* --fresh"):
        front_door.evaluate(bare.path, tests=["global"])
    with pytest.raises(UserError, match="no cell has models"):
        pack(bare.path, tmp_path / "no.tar.xz", models=True)


def test_what_cannot_be_is_refused(run: Path, bench_here: Bench, arrays: Path) -> None:
    def refused(*tests: Any) -> str:
        with pytest.raises(UserError) as error:
            front_door.evaluate(run, tests=tests)
        return str(error.value)

    assert "asks for no further tests and scores; name some by --tests and --metrics" in refused()
    assert "unknown key 'path'" in refused({"name": "corrupted", "path": "x.npz"})
    assert "needs 'shifts'" in refused("shifted")
    assert "unknown corruption 'fogg'. Did you mean 'fog'?" in refused({"name": "corrupted", "kinds": ["fogg"]})
    assert "unknown shift 'rotated'" in refused({"name": "shifted", "shifts": [{"name": "rotated"}]})
    assert "has the name 'globe'; there are 'global'" in refused("globe")
    assert "'global' is listed twice" in refused("global", "global")
    assert "unknown metric 'aurok'" in bench_here("evaluate", run, "--metrics", "aurok", code=2).stderr
    assert "is a file, not a run folder; `bench unpack" in bench_here("evaluate", arrays, code=2).stderr
    missing = {"method": "fedavg", "alpha": 1.0, "tests": [{"name": "file", "path": "missing.npz"}]}
    with pytest.raises(UserError, match=r"missing\.npz"):
        front_door.run(front_door.Settings(**missing), out=run.parent / "other", quiet=True)
    assert not (run.parent / "other" / "run.json").exists()


def test_samples_of_a_file_on_which_clients_may_train_are_counted(
    run: Path, arrays: Path, cell: Cell, tmp_path: Path, bench_here: Bench
) -> None:
    """Before a run and by `bench evaluate`, once for all cells; the data's own test part is none of them, unless the
    partition deals it out, too."""
    with np.load(arrays) as file:
        known, new = file["train_images"][[3, 8, 9]], file["test_images"][:4]
        np.savez(tmp_path / "leaking.npz", train_images=np.concatenate([new, known]), train_labels=np.zeros(7, int))
    note = "3 of 7 samples of leaking.npz equal samples of {} on which clients may train"
    err = bench_here("evaluate", run, "--tests", "{name: file, path: leaking.npz}").stderr
    assert err.count(note.format("blobs")) == 1
    both = {"partition": "dirichlet_pfllib"}
    for path, division, expected in ((tmp_path / "leaking.npz", {}, 3), (arrays, {}, 0), (arrays, both, 60)):
        cells = [cell(tests=[{"name": "file", "path": str(path)}], seed=seed, **division) for seed in (0, 1)]
        for planned in plan(cells, tmp_path, download=False):
            said = [text for text in planned.notes if "on which clients may train" in text]
            assert [int(text.split()[1]) for text in said] == [expected] * (expected > 0)


def test_a_cell_without_the_tests_that_the_grid_asks_for_is_named(run: Path, bench_here: Bench) -> None:
    change_entries(run, lambda entry: entry["settings"].update(tests=["global"]))
    assert "2 finished cells ran without the test global" in bench_here("status", run).stdout
    bench_here("evaluate", run)
    assert "without the test global" not in bench_here("status", run).stdout


@pytest.mark.long
def test_the_report_shows_them_and_further_scores(arrays: Path, tmp_path: Path, bench_here: Bench) -> None:
    """Means and deviations over seeds by hand from the run's frames, corruptions of a severity together, and the number
    of clients without a score; and the picture. Pages of clients are made for those who ask for them."""
    tests = ["global", {"name": "corrupted", "severity": 2, "kinds": ["fog", "contrast"]}]
    settings = {**SETTINGS, "alphas": [0.05], "seeds": [0, 1], "tests": tests, "metrics": ["auroc"]}
    run = load_run(make_run(tmp_path / "run", arrays, ["fedavg", "ditto"], **settings))
    bench_here("report", run.path)
    assert not (run.path / "report" / "clients").exists()
    lines = pd.read_csv(run.path / "report" / "tables" / "further_tests.csv").set_index(["row", "column"])
    rows = run.evaluated.query("client == -1 and quantity == 'accuracy'")
    personal = rows.query("metric == 'pm' and mean == 'train_size'")
    for label in ("fedavg", "ditto"):
        of_label = personal[personal["label"] == label]
        for column, splits in (("global", ["global"]), ("corrupted 2", ["corrupted fog 2", "corrupted contrast 2"])):
            values = of_label[of_label["split"].isin(splits)].groupby("seed")["value"].mean() * 100
            line = lines.loc[(label, f"PM {column}")]
            assert (line["value"], line["spread"]) == pytest.approx((values.mean(), values.std()), abs=5e-3)
        own = [figure["value"] for cell in run.cells if cell.label == label for figure in reported_figures(cell)
               if (figure["metric"], figure["mean"]) == ("pm", "train_size")]  # fmt: skip
        assert lines.loc[(label, "PM own"), "value"] == pytest.approx(100 * np.mean(own), abs=5e-3)
    assert (run.path / "report" / "figures" / "price_of_personalisation.svg").stat().st_size > 1000

    scores = pd.read_csv(run.path / "report" / "tables" / "score_auroc.csv").query("row == 'ditto'")
    areas = run.scores("auroc").query("selection == 'validation'")
    for name, of in (("GM", "metric == 'gm' and on == 'global'"), ("PM", "metric == 'pm' and mean == 'train_size'")):
        chosen = areas.query(of)
        values = chosen[chosen["label"] == "ditto"]
        (row,) = scores[scores["column"].str.endswith(name)].itertuples()
        assert (row.value, row.spread) == pytest.approx((values["value"].mean(), values["value"].std()), abs=5e-5)
    tested = run.clients.query("metric == 'pm' and split == 'test'").merge(chosen[["cell", "round"]])
    missing = tested[tested["auroc"].isna()]["label"].value_counts()
    assert f"{missing['ditto']} of " in row.note


def test_pairs_that_a_test_turns_round_are_named() -> None:
    """By hand: a is 10 better than b on own tests and 20 worse on the other, both by nearly the same in each seed; the
    third method's differences are noise."""

    def rows(row: str, test: str, values: list[float]) -> pd.DataFrame:
        units = [str(k) for k in range(len(values))]
        return pd.DataFrame({"row": row, "task": "t", "unit": units, "metric": "pm", "test": test, "value": values})

    tested = pd.concat([
        rows("a", "own", [90, 91, 92]), rows("b", "own", [80, 81.1, 81.9]), rows("c", "own", [85, 70, 95]),
        rows("a", "global", [40, 41, 42]), rows("b", "global", [60, 61.1, 61.9]), rows("c", "global", [50, 20, 70]),
        rows("a", "triggered", [5, 6, 7]), rows("b", "triggered", [95, 96, 96.9]),  # where less is better: no reversal
    ])  # fmt: skip
    store_like = SimpleNamespace(tasks=["t"], rows=["a", "b", "c"], least=lambda task, on: 0.0)
    (text,) = reversals(store_like, tested)  # type: ignore[arg-type]
    assert text.startswith("t: a − b: +10.00 [")
    assert "on own tests, -20.00 [" in text
    assert text.endswith("on global")


def test_labels_of_a_file_are_names_where_classes_are_called_by_numbers(tmp_path: Path) -> None:
    """Classes 1 to 3, and a file with a 0: no place among classes, which would move all labels by one."""
    x = np.zeros((12, 4), np.float32)
    data = assemble("mine", x, np.arange(12) % 3, 9, mean=None, std=None, classes=("1", "2", "3"))
    for labels, expected in (([1, 3, 2], [0, 2, 1]), ([0, 1, 2], None), ([1, 2, 4], None)):
        np.savez(tmp_path / "more.npz", train_images=x[:3], train_labels=np.array(labels))
        if expected is None:
            with pytest.raises(UserError, match=f"no classes of mine, such as '{'0' if 0 in labels else '4'}'"):
                file_samples(str(tmp_path / "more.npz"), data)
        else:
            assert file_samples(str(tmp_path / "more.npz"), data).y.tolist() == expected
    named = replace(data, classes=("cat", "cow", "dog"))
    np.savez(tmp_path / "more.npz", train_images=x[:3], train_labels=np.array([0, 1, 2]))
    assert file_samples(str(tmp_path / "more.npz"), named).y.tolist() == [0, 1, 2]


def test_tokens_of_a_file_are_within_the_vocabulary(tmp_path: Path) -> None:
    """Else the run would end in an embedding after its last round."""
    tokens = (np.arange(24).reshape(8, 3) % 20).astype(np.int32)
    data = assemble("mine", tokens, np.arange(8) % 2, 6, mean=None, std=None, vocabulary=20)
    np.savez(tmp_path / "more.npz", train_tokens=tokens, train_labels=np.arange(8) % 2)
    assert len(file_samples(str(tmp_path / "more.npz"), data).y) == 8
    with pytest.raises(UserError, match="has tokens from 0 to 19, and mine a vocabulary of 15"):
        file_samples(str(tmp_path / "more.npz"), replace(data, vocabulary=15))
