"""What pictures look like: no words over others, none cut off, whatever rows are called and however many they are."""

import itertools
import json
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from bench.store.store import COLUMNS
from reports.decision import page as decision
from reports.decision.verdict import ConsortiumVerdict, SiteGain
from reports.league import method, pictures
from reports.page import changes, client_relations, data_page, further_tests
from reports.pictures import canvas, cases, figures, headline, new_clients, profiles, timeline, tradeoff, trends
from reports.reading.load import HEADLINE, PM, Store, load
from reports.statistics import inference
from reports.statistics.crossed import CrossedMean
from reports.statistics.ranking import Ranked
from reports.tables import cost, fairness
from sweeps import figures as studies
from sweeps.fair import Chosen
from sweeps.space import Dimension
from sweeps.study import Arm
from tests.drawn import faults
from tests.reports.conftest import write_store

LONG = 'method {k}, server={{"name": "trimmed_mean", "share": 0.{k}}}, clip norm=1 noise={k}'


def named(store: Store, count: int, label: str) -> Store:
    """The store with so many rows, copies of its own, called by a label."""
    own, cells, parts = store.rows, [], []
    for k in range(count):
        source, name = own[k % len(own)], label.format(k=k)
        cells += [replace(cell, row=name) for cell in store.cells if cell.row == source]
        parts.append(store.figures[store.figures["row"] == source].assign(row=name))
    return replace(store, cells=tuple(cells), figures=pd.concat(parts, ignore_index=True))


def _ranks(store: Store) -> object:
    scores = np.random.default_rng(0).normal(size=(12, len(store.rows))) + np.arange(len(store.rows))
    return figures.critical_difference(inference.critical_difference(store.rows, scores), PM)


def frame(columns: str, rows: Iterable[tuple[object, ...]]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=columns.split())


def _newcomers(store: Store) -> object:
    bars = itertools.product(store.rows, store.tasks, "01", (0, 1, 5, 10))
    return new_clients.newcomer_bars(
        store, frame("row task seed epochs accuracy", ((*bar, 60.0 + bar[-1]) for bar in bars))
    )


def _further(store: Store) -> object:
    tests = enumerate(("own", "global", "others", "corrupted 3"))
    points = itertools.product(enumerate(store.rows), "01", tests)
    rows = ((row, store.tasks[0], seed, "pm", test, 50 + k + at) for (k, row), seed, (at, test) in points)
    return further_tests.price(store, frame("row task unit metric test value", rows))


def _changing(store: Store) -> object:
    points = itertools.product(store.rows, store.tasks, "01", ((1, 0), (4, 0), (4, 1), (9, 0)))
    rows = ((*place, at, after, 10.0 * at + after) for *place, (at, after) in points)
    return changes.change_curves(store, frame("row task seed round after accuracy", rows))


def _as_tasks(store: Store) -> Store:
    """The store's rows as tasks of one method."""
    first = store.tasks[0]
    cells = tuple(replace(cell, task=cell.row, row="ditto") for cell in store.cells if cell.task == first)
    of_first = store.figures[store.figures["task"] == first]
    return replace(store, cells=cells, figures=of_first.assign(task=of_first["row"], row="ditto"))


def _related(store: Store) -> object:
    """Pictures of matrices by the names of the rows, as a method has one for each layer."""
    matrix = np.random.default_rng(0).normal(size=(20, 20)).tolist()
    content = {"clients": list(range(20)), "n_train": [30] * 20, "matrices": dict.fromkeys(store.rows, matrix)}
    return client_relations._heat_maps(0, "ditto", [(store.cells[0], content)])


def _trends(store: Store) -> object:
    places = itertools.product(store.rows, store.tasks, (0.7, 3.0, 80.0, np.inf))
    points = frame("panel curve x row task", ((task, row, x, row, task) for row, task, x in places))
    measures = {
        f"{figure.name} accuracy (%)": (lambda row, task, of=figure: store.scores(row, task, of)) for figure in HEADLINE
    }
    return trends._trend(store, "epsilon", "Accuracy against ε", "ε of a sample", "", points, measures)


def _league_map(store: Store) -> object:
    values = np.random.default_rng(0).uniform(50, 90, size=(len(store.rows), 2 + len(store.rows) // 2))
    tasks = [f"{name}, task" for name in store.rows][: values.shape[1]]
    return pictures.heat_map(pd.DataFrame(values, index=store.rows, columns=[*tasks, "x", "y"][: values.shape[1]]), PM)


def _league_ranks(store: Store) -> object:
    places = {row: Ranked(-k, max(1, k - 2), k + 3, 1 + k // 4) for k, row in enumerate(store.rows)}
    return pictures.rank_picture(places, PM)


def _task_by_task(store: Store) -> object:
    """A method of the league on tasks by the names of the rows."""
    tasks, rows = _as_tasks(store), ("ditto", "fedavg", "local", "scd")
    cells = tuple(replace(cell, row=row) for row in rows for cell in tasks.cells)
    whole = replace(tasks, cells=cells, figures=pd.concat([tasks.figures.assign(row=row) for row in rows]))
    compared: Any = SimpleNamespace(clones={}, scores=dict.fromkeys(rows), left_out={})
    return method._picture(whole, compared, "ditto", PM)


def _decision(store: Store) -> object:
    gains = [CrossedMean(k - 3.0, k - 5.0, k + 1.0, 100, 3, 1.0, 1.0, 99.0, 0.05) for k in range(len(store.rows))]
    answers = itertools.cycle(("gains", "loses", "no difference", "undecided"))
    sites = tuple(SiteGain(row, gain, next(answers)) for row, gain in zip(store.rows, gains, strict=True))
    return decision._picture(ConsortiumVerdict(1.0, 0.05, judged=store.rows[0], average=gains[0], sites=sites))


def _study(store: Store) -> object:
    """Pictures of a study of the rows, in which two settings were searched."""
    from optuna.distributions import CategoricalDistribution
    from optuna.trial import create_trial

    lists = (Dimension("lr", (0.01, 0.1, 1.0)), Dimension("ditto.lam_of_the_method", ("small", "a longer word")))
    distributions = {d.key: CategoricalDistribution(d.choices) for d in lists}
    ended = []
    for k in range(4):
        attrs, params = {"gm": 0.1 * k, "pm": 0.9 - 0.1 * k}, {d.key: d.choices[k % 2] for d in lists}
        ended.append(create_trial(value=0.5, user_attrs=attrs, params=params, distributions=distributions))
    settings = (store.cells[0].view.settings,)
    arms = [Arm(row, row, "digits alpha=0.1", settings, lists, (), 4, (), ()) for row in store.rows]
    choices = [Chosen(arm, tuple(ended), None, {}) for arm in arms]
    study: Any = SimpleNamespace(metrics=("pm", "gm"))
    studies.history(study, choices)
    studies.slices(choices[0], "slices")
    studies.curves([replace(choice, arm=replace(choice.arm, dimensions=lists[:1])) for choice in choices])
    studies.heat_map(choices[0], "map")
    return studies.front(choices[0], "front")


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
    "headline": lambda store: headline.headline(store),
    "convergence": lambda store: figures.convergence(store, cost.curves(store)),
    "tradeoff": lambda store: tradeoff.tradeoff(store),
    "profiles": lambda store: profiles.performance_profiles(store),
    "map of cases": lambda store: list(cases.heat_maps(_in_cases(store), {})),
    "clients": lambda store: figures.distribution(store, fairness.client_accuracies(store)),
    "partitions": figures.partitions,
    "ranks": _ranks,
    "new clients": _newcomers,
    "further tests": _further,
    "data page": _sites,
    "convergence of tasks": lambda store: figures.convergence(_as_tasks(store), cost.curves(_as_tasks(store))),
    "partitions of tasks": lambda store: figures.partitions(_as_tasks(store)),
    "timeline": timeline.timelines,
    "gains": lambda store: figures.gain_by_size(store, fairness.gains(fairness.client_accuracies(store), store)),
    "relations": _related,
    "changes": _changing,
    "trends": _trends,
    "league's map": _league_map,
    "league's ranks": _league_ranks,
    "task by task": _task_by_task,
    "decision": _decision,
    "study": _study,
}


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Store:
    """Three methods, of which each trains other models, on three tasks."""
    folder = tmp_path_factory.mktemp("drawn")
    run = write_store(folder, seeds=2, alphas=(1.0, 0.3, 0.1), methods=("fedavg", "local", "ditto"))
    kinds = ("download", "training", "personal training", "upload")
    lines = [(1 + k // 40, k % 10, kinds[k % 4], 7.5 * k, 7.5 * k + 30) for k in range(80)]
    for cell in json.loads((run / "run.json").read_text(encoding="utf-8"))["cells"]:
        pd.DataFrame(lines, columns=list(COLUMNS["timeline"])).to_csv(run / cell["id"] / "timeline.csv", index=False)
    return load([run])


@pytest.fixture
def drawn(monkeypatch):
    """What is drawn, before it is laid out."""
    kept: list[Figure] = []
    for module in list(sys.modules.values()):
        if getattr(module, "finish", None) is canvas.finish and module is not canvas:
            monkeypatch.setattr(module, "finish", lambda page, *_: kept.append(page))
    return kept


PANELS = ("convergence of tasks", "partitions of tasks", "timeline", "relations")
"""Figures with a panel for each name: ten fill several lines."""
QUICK = [("headline", 10, True), ("tradeoff", 10, True), ("convergence", 2, False), ("decision", 2, True)]
ALL = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.long)
    for case in itertools.product(FIGURES, (2, 10, 40), (False, True))
    if case[1] < 40 or case[0] not in PANELS
]


@pytest.mark.parametrize(("figure", "methods", "long"), ALL)
def test_no_two_texts_overlap(small, drawn, figure, methods, long):
    """Labels of the rows, numbers of axes, titles, legends and notes."""
    store = named(small, methods, LONG if long else "method{k}")
    with warnings.catch_warnings(), canvas.style_context():
        warnings.simplefilter("error")
        FIGURES[figure](store)
        assert drawn
        for page in drawn:
            canvas.lay_out(page)
            assert faults(page) == []


def test_any_test_that_draws_words_over_others_fails():
    """All reports of all tests are looked at, in this process and in commands."""
    with canvas.drawing([""], 1) as (page, (axis,)):
        axis.plot([0, 1], [0, 1])
        page.text(0.5, 0.5, "one")
        page.text(0.5, 0.5, "two")
        with pytest.raises(AssertionError, match="'one' over 'two'"):
            canvas.finish(page, "x", "X", "")


def test_names_that_are_cut_differ():
    names = [LONG.format(k=k) for k in range(10)] + ["plain"]
    short = canvas.shortened(names, 1.0)
    assert len(set(short.values())) == len(names)
    assert all(canvas.inches(text) <= 1.0 for text in short.values())
    assert short["plain"] == "plain"
