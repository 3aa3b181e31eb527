"""Names of rows and columns, and merging of runs."""

import shutil
from dataclasses import replace

import pandas as pd
import pytest

from bench.errors import UserError
from bench.results.results import load_run, tidy
from reports.reading.load import GM, load, remembered
from tests.reports.conftest import cell_id, cells_of, change_run, write_store


def _of_scd(**hp):
    """The change of SCD's hyperparameters by these functions of its settings."""

    def change(cell):
        settings = cell["settings"]
        own = settings["hp"] | {name: of(settings) for name, of in hp.items()}
        return {"hp": own} if settings["method"] == "scd" else {}

    return change


METHODS = ["fedavg", "local", "fedper", "ditto", "scd"]
TASKS = ["digits, α=1", "digits, α=0.1"]
NAMED = {"dataset": "npz", "dataset_options": {"path": "data/some.npz", "name": "cifar10-jpeg"}}


@pytest.mark.parametrize(
    ("change", "rows", "tasks"),
    [
        (_of_scd(tau=lambda one: 0.1 * one["seed"]), [f"scd, tau={tau}" for tau in (0, 0.1, 0.2)], TASKS),
        (_of_scd(alpha=lambda one: 0.1 + one["seed"]), [f"scd, alpha={alpha}" for alpha in (0.1, 1.1, 2.1)], TASKS),
        (
            lambda cell: {"clients": 50, "lr": 0.003} if cell["settings"]["alpha"] < 0.5 else {},
            METHODS[4:],
            ["digits, α=1, clients=20", "digits, α=0.1, clients=50"],
        ),
        (lambda _: NAMED, METHODS[4:], ["cifar10-jpeg, α=1", "cifar10-jpeg, α=0.1"]),
    ],
    ids=["of a method", "a method's own alpha", "of a task", "the name that data were given"],
)
def test_settings_of_a_method_make_rows_and_those_of_a_task_make_columns(run, tmp_path, change, rows, tasks):
    store = load([_changed(run, tmp_path / "a", change)])
    assert (store.rows, store.tasks) == (METHODS[:4] + rows, tasks)


@pytest.mark.long
def test_merged_runs_have_every_cell_once_and_the_finished_copy(store_writer, tmp_path):
    whole = store_writer(tmp_path / "whole", seeds=2)
    half = store_writer(tmp_path / "half", seeds=2, states={("scd", 1.0, 0): "failed"}, methods=("scd",))
    alone, merged = load([whole]), load([half, whole])
    assert len(merged.cells) == len(alone.cells) == 20
    assert {cell.state for cell in merged.cells} == {"done"}
    key = ("scd", "digits, α=1", GM)
    assert merged.scores(*key) == alone.scores(*key)


def test_one_cell_under_two_labels_is_in_both_rows(run, tmp_path):
    """FedProx at its default beside FedProx at that very value: one folder, two rows."""
    again = [{**cell, "label": "fedavg again"} for cell in cells_of(run) if cell["label"] == "fedavg"]
    store = load([_changed(run, tmp_path / "a", cells=cells_of(run) + again)])
    assert store.rows[-1] == "fedavg again"
    keys = [(row, "digits, α=1", GM) for row in ("fedavg", "fedavg again")]
    first, again = (store.scores(*key) for key in keys)
    assert len(first) == 3
    assert first == again


@pytest.mark.parametrize("state", ["diverged", "failed"])
def test_a_cell_that_ended_badly_is_not_missing_because_another_run_never_began_it(store_writer, tmp_path, state):
    states = {("scd", 1.0, 0): state}
    ended = store_writer(tmp_path / "ended", seeds=1, methods=("scd",), alphas=(1.0,), states=states)
    waiting = store_writer(
        tmp_path / "waiting", seeds=1, methods=("scd",), alphas=(1.0,), states={("scd", 1.0, 0): "missing"}
    )
    for runs in ([ended, waiting], [waiting, ended]):
        assert [cell.state for cell in load(runs).cells] == [state]


def test_one_seed_under_two_ids_is_refused(run, tmp_path):
    """After an edit of a method its cells have other ids: their seeds must not count twice."""
    edited = [cell | {"id": cell_id(cell["id"])} if cell["label"] == "scd" else cell for cell in cells_of(run)]
    with pytest.raises(UserError, match=r"scd \(digits, α=1, seed 0, protocol honest\).*bench compare"):
        load([run, _changed(run, tmp_path / "a", cells=edited)])
    with pytest.raises(UserError, match="is not a run"):
        load([tmp_path])


def _changed(run, copy, *change, **info):
    """A copy of a run with settings changed."""
    return change_run(shutil.copytree(run, copy, ignore=shutil.ignore_patterns("report")), *change, **info)


def test_tasks_are_called_by_the_options_in_which_cells_of_a_data_set_differ(store_writer, tmp_path):
    runs = [
        store_writer(
            tmp_path / str(alpha),
            seeds=1,
            alphas=(alpha,),
            methods=("scd",),
            partition_options={"k": k, "same_classes": same},
            dataset_options={"name": name, "path": f"{name}.npz"},
        )
        for name, k, same, alpha in (("a", 4, True, 1.0), ("a", 4, False, 2.0), ("b", 6, False, 3.0))
    ]
    assert load(runs).tasks == ["a, same_classes=true, α=1", "a, same_classes=false, α=2", "b, α=3"]


def test_what_is_remembered_of_a_store_is_of_that_store_and_of_what_was_asked(store):
    calls = []

    @remembered
    def asked(store, *words):
        calls.append(words)
        return [len(store.cells), *words]

    assert asked(store, "a") is asked(store, "a")
    assert asked(store, "b") == [len(store.cells), "b"]
    fewer = replace(store, cells=store.cells[:1])
    assert asked(fewer, "a") == [1, "a"]
    assert calls == [("a",), ("b",), ("a",)]


@pytest.mark.long
def test_cells_read_together_have_the_figures_of_each_cell_alone(tmp_path):
    """Also where their tables have different lengths, some have models right after training and some are not done."""
    run = write_store(tmp_path / "run", seeds=2, states={("ditto", 0.1, 0): "failed", ("scd", 1.0, 1): "missing"})
    folders = sorted(path.parent for path in run.glob("*/metrics.csv"))
    for at, folder in enumerate(folders[::3]):
        metrics = pd.read_csv(folder / "metrics.csv", keep_default_na=False)
        local = metrics[metrics["metric"] == "pm"].assign(metric="lm")
        pd.concat([metrics, local]).to_csv(folder / "metrics.csv", index=False)
        clients = pd.read_csv(folder / "clients.csv")
        scored = clients[clients["metric"] == "pm"].assign(metric="lm")
        fewer = (scored["round"] == sorted(set(scored["round"]))[-2 - at % 2]) & (scored["client"] < 3)
        pd.concat([clients, scored[~fewer]]).to_csv(folder / "clients.csv", index=False)
    view = load_run(run)
    alone = [tidy(replace(view, cells=[cell])) for cell in view.cells]
    assert "lm" in set(tidy(run)["metric"])
    pd.testing.assert_frame_equal(tidy(run), pd.concat(alone, ignore_index=True))
