"""New clients: the table by hand, and the bars."""

from dataclasses import replace

import pandas as pd
import pytest

from reports.pictures.new_clients import newcomer_bars, newcomer_table, newcomers
from reports.reading.load import load
from tests.reports.conftest import cell_id


@pytest.fixture
def held_out(store_writer, tmp_path):
    """A run whose last round also scored newcomers after 0 and 5 epochs."""
    return load([with_newcomers(store_writer(tmp_path, seeds=2, methods=("fedavg", "scd"), alphas=(1.0,)))])


def with_newcomers(run):
    for seed in (0, 1):
        for method, level in (("fedavg", 0.5), ("scd", 0.6)):
            path = run / cell_id(f"{method}-1-{seed}") / "metrics.csv"
            metrics = pd.read_csv(path, keep_default_na=False)
            last = metrics["round"].max()
            more = [
                (last, f"new{k}", "local", mean, "test", "accuracy", level + 0.1 * seed + 0.01 * k)
                for k in (0, 5)
                for mean in ("train_size", "equal")
            ]
            pd.concat([metrics, pd.DataFrame(more, columns=metrics.columns)]).to_csv(path, index=False)
    return run


def test_a_column_for_each_number_of_epochs(held_out):
    table = newcomer_table(held_out, newcomers(held_out))
    assert [column.name for column in table.columns] == ["0 epochs", "5 epochs"]
    entries = dict(table.rows)["scd"]
    assert [entry.value for entry in entries] == pytest.approx([65, 70])
    assert entries[0].spread == pytest.approx(10 / 2**0.5)


def test_a_diverged_cell_has_the_accuracy_of_guessing(store_writer, tmp_path):
    """One of ten classes, 10 %, as in the main table; else the seeds that came to their end stood alone."""
    states = {("scd", 1.0, 1): "diverged"}
    methods = ("fedavg", "scd")
    store = load([with_newcomers(store_writer(tmp_path, seeds=2, methods=methods, alphas=(1.0,), states=states))])
    entries = dict(newcomer_table(store, newcomers(store)).rows)["scd"]
    assert [entry.value for entry in entries] == pytest.approx([(60 + 10) / 2, (65 + 10) / 2])


def test_bars_of_one_colour_differ_in_their_hatches(held_out, drawn):
    """Seven colours are not enough for twelve methods, and the legend shows what the bars have."""
    twelve = replace(held_out, cells=tuple(replace(c, row=f"{c.row} {k}") for k in range(6) for c in held_out.cells))
    newcomer_bars(twelve, newcomers(twelve))
    looks = [[(bar.get_facecolor(), bar.get_hatch()) for bar in drawn[0].axes[0].patches[at::2]] for at in (0, 1)]
    assert looks[0] == looks[1] == [(bar.get_facecolor(), bar.get_hatch()) for bar in drawn[0].legends[0].get_patches()]
    assert len(set(looks[0])) == 12
