"""What pictures look like: no words over others, none cut off, whatever rows are called and however many they are."""

import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from reports.page import data_page, further_tests
from reports.pictures import canvas, cases, figures, headline, new_clients, profiles, tradeoff
from reports.reading.load import HEADLINE, PM, Store, load
from reports.statistics import inference
from reports.tables import cost, fairness
from tests.reports.conftest import write_store

WIDTHS = {400: (4.0, False), 1000: (10.0, True), 1400: (14.0, True)}
"""Inches of a picture by pixels of a window, and whether its legend may stand beside it."""
LONG = 'method {k}, server={{"name": "trimmed_mean", "share": 0.{k}}}, clip norm=1 noise={k}'


def named(store: Store, count: int, label: str) -> Store:
    """The store with so many rows, copies of its own, called by a label."""
    own, cells, parts = store.rows, [], []
    for k in range(count):
        source, name = own[k % len(own)], label.format(k=k)
        cells += [replace(cell, row=name) for cell in store.cells if cell.row == source]
        parts.append(store.figures[store.figures["row"] == source].assign(row=name))
    return replace(store, cells=tuple(cells), figures=pd.concat(parts, ignore_index=True))


def _curves(store: Store) -> dict[str, pd.DataFrame]:
    metrics, costs = store.table("metrics"), cost.totals(store)
    return {figure.name: cost.curves(metrics, costs, figure) for figure in HEADLINE}


def _ranks(store: Store) -> object:
    scores = np.random.default_rng(0).normal(size=(12, len(store.rows))) + np.arange(len(store.rows))
    return figures.critical_difference(inference.critical_difference(store.rows, scores), PM)


def _newcomers(store: Store) -> object:
    columns = ["row", "task", "seed", "epochs", "accuracy"]
    lines = [
        (row, task, seed, epochs, 60.0 + epochs)
        for row, task, seed, epochs in itertools.product(store.rows, store.tasks, "01", (0, 1, 5, 10))
    ]
    return new_clients.newcomer_bars(store, pd.DataFrame(lines, columns=columns))


def _further(store: Store) -> object:
    columns = ["row", "task", "unit", "metric", "test", "value"]
    tests = ("own", "global", "others", "corrupted 3")
    lines = [
        (row, store.tasks[0], seed, "pm", test, 50 + k + at)
        for k, row in enumerate(store.rows)
        for seed in "01"
        for at, test in enumerate(tests)
    ]
    return further_tests.price(store, pd.DataFrame(lines, columns=columns))


def _sites(store: Store) -> object:
    rng = np.random.default_rng(0)
    sites = [
        {
            "name": row, "train": 10 * k + 5, "validation": 3, "test": 4, "within": 9.0, "missing": 0.1,
            "label_distance": rng.uniform(), "feature_score": rng.uniform(0.5, 1), "classes": [3, 10 * k + 2],
        }
        for k, row in enumerate(store.rows)
    ]  # fmt: skip
    classes = ["one class", "a class with a name of sixty letters, as tables from clinics h"]
    described = {"sites": sites, "classes": classes, "coarse": 10, "remarks": [], "features": []}
    return data_page.data_sections(described)


def _in_cases(store: Store) -> Store:
    """The store with its tasks as cases of one task."""
    cells = tuple(replace(cell, case=cell.task, base="digits") for cell in store.cells)
    return replace(store, cells=cells, reference_case=store.tasks[0])


FIGURES: dict[str, Callable[[Store], object]] = {
    "headline": lambda store: headline.headline(store, "validation"),
    "convergence": lambda store: figures.convergence(store, _curves(store)),
    "megabytes": lambda store: figures.convergence(store, _curves(store), "megabytes"),
    "tradeoff": lambda store: tradeoff.tradeoff(store, cost.totals(store), "validation"),
    "profiles": lambda store: profiles.performance_profiles(store, "validation"),
    "map of cases": lambda store: list(cases.heat_maps(_in_cases(store), "validation", {})),
    "clients": lambda store: figures.distribution(store, fairness.client_accuracies(store, "validation")),
    "partitions": figures.partitions,
    "ranks": _ranks,
    "new clients": _newcomers,
    "further tests": _further,
    "data page": _sites,
}


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Store:
    """Three methods, of which each trains other models, on three tasks: two panels stand side by side on a phone."""
    folder = tmp_path_factory.mktemp("drawn")
    return load([write_store(folder, seeds=2, alphas=(1.0, 0.3, 0.1), methods=("fedavg", "local", "ditto"))])


@pytest.fixture
def drawn(monkeypatch):
    """What is drawn, before it is laid out."""
    kept: list[canvas.Canvas] = []
    for module in (cases, figures, headline, new_clients, profiles, tradeoff, further_tests, data_page):
        monkeypatch.setattr(module, "finish", lambda page, *_: kept.append(page))
    return kept


def words_of(page: canvas.Canvas) -> Iterator[tuple[str, object]]:
    """Every text that is drawn, with its box in pixels."""
    boxes: list[tuple[str, object]] = []
    draw = Text.draw

    def note(text, renderer):
        if text.get_visible() and text.get_text().strip():
            boxes.append((text.get_text(), text.get_window_extent(renderer)))
        draw(text, renderer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", note)
        page.draw_without_rendering()
    yield from boxes


def faults(page: canvas.Canvas) -> list[str]:
    """Texts that lie over others by more than a pixel, and texts that reach over the edge."""
    texts = list(words_of(page))
    assert texts
    over = [
        f"{first!r} over {second!r}"
        for (first, a), (second, b) in itertools.combinations(texts, 2)
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1
    ]
    edge = page.bbox
    inside = [edge.x0 - 2 < box.x0 and box.x1 < edge.x1 + 2 and edge.y0 - 2 < box.y0 and box.y1 < edge.y1 + 2
              for _, box in texts]  # fmt: skip
    return over + [f"{text!r} over the edge" for (text, _), fits in zip(texts, inside, strict=True) if not fits]


QUICK = [
    ("headline", 400, 10, True),
    ("tradeoff", 1000, 10, True),
    ("megabytes", 1000, 2, False),
]
ALL = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.long)
    for case in itertools.product(FIGURES, WIDTHS, (2, 10, 40), (False, True))
]


@pytest.mark.parametrize(("figure", "pixels", "methods", "long"), ALL)
def test_no_two_texts_overlap(small, drawn, figure, pixels, methods, long):
    """Labels of the rows, numbers of axes, titles, legends and notes."""
    store = named(small, methods, LONG if long else "method{k}")
    with warnings.catch_warnings(), canvas.style_context():
        warnings.simplefilter("error")
        FIGURES[figure](store)
        assert drawn
        for page in drawn:
            width, beside = WIDTHS[pixels]
            few = 2 if page.panel[0] <= canvas.PANEL[0] and sum(map(len, page.blocks)) > 2 else 1
            page.arrange(width, few if pixels == 400 else 4, beside=beside)
            assert faults(page) == []


def test_names_that_are_cut_differ_and_are_told_in_full():
    names = [LONG.format(k=k) for k in range(10)] + ["plain"]
    short = canvas.shortened(names, 1.0)
    assert len(set(short.values())) == len(names)
    assert all(canvas.inches(text) <= 1.0 for text in short.values())
    assert short["plain"] == "plain"
    with canvas.drawing([names[0]], 1) as (page, (axis,)):
        axis.plot([0, 1], [0, 1])
        axis.set_yticks(range(len(names)), names)
        picture = canvas.finish(page, "x", "X", "")
    told = dict(picture.names)
    assert set(names[:10]) <= set(told.values())
    assert "plain" not in told.values()
    assert all(f">{text}<" in (picture.svg + picture.narrow).decode() for text in told if "server" not in text)
