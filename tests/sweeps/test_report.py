"""Chosen settings, the table of budgets, and the study's part of the report, from trials that were told by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest

from bench.errors import UserError
from reports.published.comparison import published_table
from reports.tables.table import to_markdown
from sweeps import figures
from sweeps.fair import Chosen, budget_table, choose, reported_cells, trials_table
from sweeps.report import STUDY, published_points, run_sections, sections, tuned_for
from sweeps.run import open_studies
from sweeps.study import Study
from sweeps.study_reader import load_study
from tests.sweeps.conftest import Write

NOWHERE = Path("a run folder without cells")
Tell = Callable[[Study], dict[str, Any]]


@pytest.fixture
def tell(tmp_path: Path) -> Tell:
    """Fill a study: the accuracy falls with the distance of the settings from the third trial's."""

    def tell(study: Study) -> dict[str, Any]:
        studies = open_studies(study, f"sqlite:///{tmp_path}/told.db")
        for arm in study.arms:
            asked = studies[arm.name]
            for number in range(arm.trials):
                asked.sampler = optuna.samplers.RandomSampler(seed=number)
                asked.enqueue_trial(arm.points[number] if arm.points else {})
                trial = asked.ask()
                for dimension in arm.dimensions:
                    dimension.suggest(trial)
                if number == 1 and len(study.metrics) == 1:
                    trial.report(0.1, 1)
                    trial.set_user_attr("reason", "poor")
                    asked.tell(trial, state=optuna.trial.TrialState.PRUNED)
                    continue
                found = {"gm": 0.8 - 0.01 * abs(number - 2), "pm": 0.9 + 0.001 * number}
                for metric, value in found.items():
                    trial.set_user_attr(metric, value)
                asked.tell(trial, [found[metric] for metric in study.metrics])
        return studies

    return tell


def test_the_best_trial_is_chosen(write: Write, tell: Tell) -> None:
    study = load_study(str(write(trials=5, objective="gm")), [])
    studies = tell(study)
    (choice,) = choose(study, studies, NOWHERE)
    assert choice.counts == {"complete": 4, "pruned": 1}
    assert choice.best is not None
    assert choice.best.number == 2
    cells = reported_cells(study, [choice])
    assert [(cell.seed, cell.protocol, cell.lr) for cell in cells] == [
        (seed, "honest", choice.best.params["lr"]) for seed in (0, 1)
    ]
    assert trials_table(choice, "t").rows[1][1][-1].note == "poor"
    table = to_markdown(budget_table(study, [choice]))
    assert "| fedprox | blobs alpha=1 | 5 | 1 | 0 | 0 | 0.00 | mu: 0.0001 to 1 (log); lr: 0.01 to 1 (log) |" in table


def test_of_a_front_the_best_mean_is_chosen(write: Write, tell: Tell) -> None:
    study = load_study(str(write(trials=5, objective=["pm", "gm"], sampler="nsga2")), [])
    (choice,) = choose(study, tell(study), NOWHERE)
    assert choice.best is not None
    assert choice.best.number == 2


def test_an_edge_is_flagged(write: Write, tell: Tell) -> None:
    space = {"lr": [0.1, 0.2, 0.3], "fedprox.mu": [0.0, 1.0]}
    study = load_study(str(write(sampler="grid", trials=None, space=space, objective="gm")), [])
    (choice,) = choose(study, tell(study), NOWHERE)
    assert choice.best is not None
    assert choice.best.params == {"fedprox.mu": 0.0, "lr": 0.3}
    assert choice.at_edge == ["mu", "lr"]
    assert "| mu, lr |" in to_markdown(budget_table(study, [choice]))


def test_unequal_budgets_are_said(write: Write, tell: Tell) -> None:
    study = load_study(str(write(grid={"methods": ["fedavg", "fedprox"]})), [])
    studies = tell(study)
    table = budget_table(study, choose(study, studies, NOWHERE))
    assert table.notes[0].startswith("Every method had the same number")
    running = studies[study.arms[0].name].ask()
    running_says = budget_table(study, choose(study, studies, NOWHERE))
    assert running_says.notes[0].startswith("Every method had the same number")  # it has no result yet
    assert [(entries[1].value, entries[3].value) for _, entries in running_says.rows] == [(3, 1), (3, 0)]
    studies[study.arms[0].name].tell(running, 0.5)
    assert budget_table(study, choose(study, studies, NOWHERE)).notes[0].startswith("The budgets differ")


def test_nothing_to_report(write: Write) -> None:
    study = load_study(str(write()), [])
    with pytest.raises(UserError, match="no trial of the study 'small' came to its end"):
        reported_cells(study, [Chosen(study.arms[0], (), None, {})])


def test_a_single_setting_has_no_importance(write: Write, tell: Tell) -> None:
    study = load_study(str(write(trials=6, grid={"methods": ["fedavg"]})), [])
    studies = tell(study)
    assert figures.importances(study, studies, choose(study, studies, NOWHERE)) is None


MU = {"fedprox.mu": [0.01, 0.1, 1]}
PICTURES: list[tuple[dict[str, Any], set[str]]] = [
    ({"trials": 6}, {"history", "importances", "slices_0"}),
    ({"sampler": "grid", "trials": None, "space": MU}, {"history", "curves"}),
    (
        {"sampler": "grid", "trials": None, "space": MU | {"augment": ["none", "crop_flip"]}},
        {"history", "importances", "heat_map_0", "slices_0"},
    ),
    ({"trials": 5, "objective": ["pm", "gm"], "sampler": "nsga2"}, {"front_0"}),
]


@pytest.mark.long
@pytest.mark.parametrize(("changes", "names"), PICTURES)
def test_the_same_trials_give_the_same_pictures(
    write: Write, tell: Tell, changes: dict[str, Any], names: set[str]
) -> None:
    study = load_study(str(write(**changes)), [])
    studies = tell(study)
    first, again = (
        [
            picture
            for section in sections(study, studies, NOWHERE)
            for part in section.all()
            for picture in part.pictures
        ]
        for _ in range(2)
    )
    found = {picture.name for picture in first}
    assert found == names or names == {"front_0"} < found
    assert [(picture.svg, picture.png) for picture in first] == [(picture.svg, picture.png) for picture in again]


def test_points_beside_the_printed_table(tell: Tell) -> None:
    study = load_study("table6", [])
    table = published_points(choose(study, tell(study), NOWHERE), published_table("scd_t6"))
    rows = dict(table.rows)
    assert len(rows) == 16
    gm, ours, pm, _ = rows["digits alpha=1, tau=0"]
    assert (gm.value, pm.value) == (85.35, 91.86)
    assert ours.value == pytest.approx(78)


def test_bench_report_reads_what_was_tuned_for(write: Write, tmp_path: Path) -> None:
    """A run of a grid has no such part."""
    assert run_sections(tmp_path) == []
    assert tuned_for(tmp_path) == []
    path = write(objective="gm")
    described = {"file": str(path), "stem": "small", "source": path.read_text(encoding="utf-8"), "overrides": []}
    (tmp_path / STUDY).write_text(json.dumps({**described, "trials": 3, "storage": None}), encoding="utf-8")
    assert tuned_for(tmp_path) == ["gm"]
