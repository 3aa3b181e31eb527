"""Pictures: the same bytes every time, and what they draw."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pandas as pd
import pytest

from reports import accuracy, cost, fairness, figures, portraits, statistics
from reports.load import load


@pytest.fixture(scope="module")
def curves(store):
    metrics, costs = store.table("metrics"), cost.totals(store)
    return {figure.name: cost.curves(metrics, costs, figure) for figure in accuracy.HEADLINE}


def test_a_picture_has_the_same_bytes_every_time(store, curves):
    first, second = (figures.convergence(store, curves) for _ in range(2))
    assert first.svg == second.svg
    assert first.png == second.png
    assert b"<dc:date>" not in first.svg
    assert first.png.startswith(b"\x89PNG")


def test_the_band_is_mean_and_standard_deviation_where_all_seeds_were_evaluated():
    from matplotlib.figure import Figure

    rows = [("0", 1, 50.0), ("1", 1, 60.0), ("0", 2, 70.0), ("1", 2, 90.0), ("1", 3, 95.0)]
    axis = Figure().subplots()
    figures.band(axis, pd.DataFrame(rows, columns=["trial", "round", "accuracy"]), "round", figures._style(0))
    (line,), (band,) = axis.lines, axis.collections
    assert line.get_xydata().tolist() == [[1, 55], [2, 80]]
    edges = {(x, round(y, 3)) for x, y in band.get_paths()[0].vertices}
    assert {(1, 47.929), (1, 62.071), (2, 65.858), (2, 94.142)} <= edges


def test_methods_are_told_apart_by_colour_and_style():
    styles = [tuple(figures._style(k).values()) for k in range(28)]
    assert len(set(styles)) == 28


def test_one_panel_per_figure_and_task(store, curves):
    """The y labels name the figure, the titles the task; text is drawn as shapes named after its font."""
    picture = figures.convergence(store, curves)
    tree = ElementTree.fromstring(picture.svg)
    panels = [element for element in tree.iter() if element.get("id", "").startswith("axes_")]
    assert len(panels) == 2 * len(store.tasks)


def test_sensitivity_is_drawn_for_settings_with_three_values(store_writer, tmp_path):
    two = load([store_writer(tmp_path / "two", seeds=1, methods=("scd",))])
    three = load([store_writer(tmp_path / "three", seeds=1, methods=("scd",), alphas=(1.0, 0.5, 0.1))])
    assert figures.varied(two) == []
    assert figures.varied(three) == ["alpha"]
    points = figures._points(three, "alpha")
    assert {key: sorted(values) for key, values in points.items()} == {("scd", "digits"): [0.1, 0.5, 1.0]}
    assert figures.sensitivity(three, "alpha", "validation").name == "sensitivity_alpha"


def test_sensitivity_counts_the_clients_of_a_setting_by_client(store_writer, tmp_path):
    """Figure 2 of the SPFL paper: accuracy against the number of stragglers."""
    runs = [
        store_writer(tmp_path / str(len(late)), seeds=1, alphas=(1.0,), methods=("scd",), stragglers=late, case=case)
        for case, late in (("a", {}), ("b", {0: 1, 3: 2}), ("c", {0: 1, 3: 2, 4: 3}))
    ]
    for k, run in enumerate(runs):  # the writer does not know of stragglers: give every run cells of its own
        (run / "scd-1-0").rename(run / f"scd-{k}")
        (run / "run.json").write_text((run / "run.json").read_text().replace("scd-1-0", f"scd-{k}"))
    store = load(runs)
    assert figures.varied(store) == ["stragglers"]
    points = figures._points(store, "stragglers")
    assert {key: sorted(values) for key, values in points.items()} == {("scd", "digits"): [0, 2, 3]}


def test_ranks_are_drawn_with_their_groups():
    scores = np.arange(30.0).reshape(10, 3) % 7
    result = statistics.critical_difference(["a", "b", "c"], scores)
    assert result.too_few == ""
    assert b"</svg>" in figures.critical_difference(result, accuracy.PM).svg


def test_client_pictures(store):
    clients = fairness.client_accuracies(store, "validation")
    names = [figures.distribution(store, clients).name]
    names.append(figures.gain_by_size(store, fairness.gains(clients, store)).name)
    names.append(figures.partitions(store).name)
    assert names == ["clients", "gain", "partitions"]


@pytest.fixture
def drawn(monkeypatch):
    """What is drawn, laid out, as it is handed to `finish`."""
    found = []

    def keep(canvas, name, title, caption):
        canvas.draw_without_rendering()
        found.append(canvas)

    monkeypatch.setattr(figures, "finish", keep)
    monkeypatch.setattr(portraits, "finish", keep)
    return found


def test_no_dot_of_a_partition_is_cut(store, drawn):
    figures.partitions(store)
    for axis in drawn[0].axes:
        (dots,) = axis.collections
        radius = np.sqrt(dots.get_sizes()[:, None] / np.pi) * drawn[0].dpi / 72
        centres = axis.transData.transform(dots.get_offsets())
        assert np.all(centres - radius >= axis.bbox.min)
        assert np.all(centres + radius <= axis.bbox.max)
        assert "dot area" in axis.get_xlabel()


def test_rounds_of_a_method_are_whole_numbers(store, curves, drawn):
    clients = fairness.client_accuracies(store, "validation")
    list(portraits.portraits(store, curves, clients))
    rounds = [axis for canvas in drawn for axis in canvas.axes if axis.get_xlabel() == "rounds"]
    ticks = [axis.get_xticks() for axis in rounds]
    assert rounds
    assert all(np.all(at == at.round()) for at in ticks)
