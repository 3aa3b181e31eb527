"""What pictures draw."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from reports.pictures import canvas, figures, headline, profiles, tradeoff, trends
from reports.reading.load import HEADLINE, PM, load
from tests.reports.conftest import cell_id


def test_the_band_is_mean_and_standard_deviation_where_all_seeds_were_evaluated():
    from matplotlib.figure import Figure

    rows = [("0", 1, 50.0), ("1", 1, 60.0), ("0", 2, 70.0), ("1", 2, 90.0), ("1", 3, 95.0)]
    axis = Figure().subplots()
    figures.band(axis, pd.DataFrame(rows, columns=["seed", "round", "accuracy"]), "round", canvas.style_of(0))
    (line,), (band,) = axis.lines, axis.collections
    assert line.get_xydata().tolist() == [[1, 55], [2, 80]]
    edges = {(x, round(y, 3)) for x, y in band.get_paths()[0].vertices}
    assert {(1, 47.929), (1, 62.071), (2, 65.858), (2, 94.142)} <= edges


def test_sensitivity_is_drawn_for_settings_with_three_values(store_writer, tmp_path, drawn):
    """Of stragglers, who are given by client, their number: Figure 2 of the SPFL paper."""
    common = {"seeds": 1, "alphas": (1.0,), "methods": ("scd",)}
    runs = [
        store_writer(tmp_path / case, stragglers=late, case=case, prefix=case, **common)
        for case, late in (("a", {}), ("b", {0: 1, 3: 2}), ("c", {0: 1, 3: 2, 4: 3}))
    ]
    assert list(trends.sensitivity(load(runs[:2]))) == []
    store = load(runs)
    [picture] = trends.sensitivity(store)
    assert picture.name == "sensitivity_stragglers"
    generic, personal = drawn[0].axes[:2]
    assert (generic.get_title(), generic.get_xlabel()) == ("digits, α=1", "stragglers")
    (line,) = personal.lines
    assert line.get_xdata().tolist() == [0, 2, 3]
    assert line.get_ydata().tolist() == [store.scores(cell.row, cell.task, PM)["0"] for cell in store.cells]


def test_of_more_tasks_than_colours_each_task_has_its_own(store):
    names = [f"data {k}, α={alpha}" for k in range(7) for alpha in (1, 0.1)]
    tasks = replace(store, cells=tuple(replace(store.cells[0], task=name) for name in names))
    assert len(set(canvas.task_colours(tasks).values())) == 14


def test_of_many_methods_only_the_best_and_the_reference_have_colours(store, monkeypatch):
    """Eighty colours tell nothing apart."""
    monkeypatch.setattr(canvas, "MOST_COLOURED", 3)
    styles = canvas.styles(store)
    coloured = [row for row, style in styles.items() if style["color"] != canvas.QUIET]
    assert coloured == ["fedavg", "local", "scd"]
    with canvas.drawing([""], 1) as (figure, _):
        canvas.legend(figure, styles)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["fedavg", "local", "scd", "2 others"]


def test_with_one_seed_the_headline_shows_all_trained_models(store_writer, tmp_path, drawn):
    """A standard deviation of one seed is nan: the axis ended at 100 and began there, and every dot was an arrow."""
    store = load([store_writer(tmp_path, seeds=1, alphas=(1.0,))])
    headline.headline(store)
    personal = drawn[0].axes[1]
    low, high = personal.get_xlim()
    dots = [line.get_xdata()[0] for line in personal.lines if line.get_marker() == "o"]
    assert len(dots) == 5
    assert all(low < dot < high for dot in dots)
    assert high - low < 1.5 * (max(dots) - min(dots))


def test_the_headline_has_every_method_once_a_panel_and_the_best_on_top(store, drawn):
    headline.headline(store)
    for axis, figure in zip(drawn[0].axes, HEADLINE, strict=True):
        names = [label.get_text() for label in axis.get_yticklabels()]
        means = [[np.mean(list(scores.values())) for task in store.tasks
                  if (scores := store.scores(row, task, figure))]
                 for row in names]  # fmt: skip
        assert sorted(names) == sorted(store.rows)
        places = [(len(of_row) == len(store.tasks), np.mean(of_row)) for of_row in means]
        assert places == sorted(places)


def test_the_profile_is_the_share_of_runs_above():
    tasks = [np.array([50.0, 60.0]), np.array([80.0, 90.0, 100.0])]
    share, low, high = profiles.profile(tasks, np.array([40.0, 50.0, 85.0, 100.0]))
    assert share == pytest.approx([1, 3 / 4, 1 / 3, 0])
    assert np.all(low <= share)
    assert np.all(share <= high)


def test_bytes_and_steps_have_a_point_per_method(store_writer, tmp_path, drawn):
    run = store_writer(tmp_path, seeds=1, alphas=(1.0,), methods=("fedavg", "ditto"))
    for method, steps in (("fedavg", 10), ("ditto", 20)):
        columns = ["round", "steps", "samples", "server_steps", "server_samples"]
        work = pd.DataFrame([(k, steps, 100, 0, 0) for k in range(1, 13)], columns=columns)
        work.to_csv(run / cell_id(f"{method}-1-0") / "work.csv", index=False)
    store = load([run])
    tradeoff.tradeoff(store)
    steps = [line.get_xdata()[0] for axis in drawn[0].axes if "steps" in axis.get_xlabel() for line in axis.lines]
    sent = [line.get_xdata()[0] for axis in drawn[0].axes if "mega" in axis.get_xlabel() for line in axis.lines]
    assert steps == [10, 20, 20]  # GM of both; FedAvg trains no personalized model of its own
    assert sent == pytest.approx([0.8] * 3)
    assert len({line.get_marker() for line in drawn[0].axes[0].lines}) == 2, "points of one colour differ otherwise"


def test_a_dollar_in_a_label_is_a_dollar():
    """Two of them began and ended a formula, which failed where it was none."""
    name = "cost $^5$"
    with canvas.drawing([name], 1) as (page, (axis,)):
        axis.plot([0, 1], [2, 3])
        axis.text(0, 2, name)
        axis.set(title=name, xlabel=name, ylabel=name)
        axis.set_xticks([0, 1], [name, "x"])
        canvas.legend(page, {name: canvas.style_of(0)})
        picture = canvas.finish(page, "x", "X", "")
    assert picture.svg.decode().count(f">{name}<") == 6


def test_a_logarithmic_axis_has_plain_numbers():
    """What matplotlib writes there is a formula, 10^-2."""
    with canvas.drawing(["wide", "narrow"], 1) as (page, (wide, narrow)):
        for axis in (wide, narrow):
            axis.plot(1, 1)
        wide.set(xscale="log", xlim=(0.01, 10))
        narrow.set(xscale="log", xlim=(0.011, 0.039))
        canvas.lay_out(page)
        assert [label.get_text() for label in wide.get_xticklabels()][1:-1] == ["0.01", "0.1", "1", "10"]
        assert {"0.02", "0.03", "0.04"} <= {label.get_text() for label in narrow.get_xticklabels()}
