"""Study files: what they amount to, and what is refused before the first trial."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.config import yaml_lines
from bench.config.identity import cell_id, declared_checksum
from bench.errors import UserError
from bench.settings import Settings
from reports.reading.names import TASK_FIELDS
from sweeps.space import NOT_SEARCHED, Dimension, own_dimensions, read_dimension
from sweeps.study import Study, parts
from sweeps.study_reader import builtin_studies, load_study, read_study
from tests.sweeps.conftest import Write


@pytest.mark.parametrize("name", builtin_studies())
def test_built_in_studies_are_fair(name: str) -> None:
    """At least two tuning seeds, fresh reporting seeds, no test split, one budget for all."""
    study = load_study(name, [])
    assert len(study.file.seeds) >= 2
    assert not set(study.file.seeds) & set(study.file.report_seeds)
    assert {cell.protocol for cell in study.grid.cells} == {"tuning"}
    for task in {arm.task for arm in study.arms}:
        assert len({(arm.trials, arm.cells[0].rounds) for arm in study.arms if arm.task == task}) == 1
    of_draws = parts(study.file.seeds, study.file.draws)
    assert [[cell.seed for cell in arm.cells] for arm in study.arms] == of_draws * (len(study.arms) // len(of_draws))


DRAWS = {"draws": 2, "final_seeds": [], "report_seeds": [0, 1, 10, 11]}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"space": {"fedprox.mu": {"low": -1, "high": 1}}}, r"mu = -1 should be greater than or equal to 0"),
        ({"space": {"lr": [0.1, 0]}}, r"lr = 0 should be greater than 0"),
        ({"space": {"lr": "own"}}, r"'lr' is no method's own, so its range has to be given"),
        ({"space": {"lr": {"low": 1, "high": 0.1}}}, r"`low` should be below `high`"),
        ({"space": {"momentum": {"low": 0, "high": 0.9, "log": True}}}, r"above 0 for `log`"),
        ({"space": {"lr": {"low": 0.1}}}, r"should be \{low: ..., high: ...\}"),
        ({"space": {"lr": [0.1]}}, r"two or more different values"),
        ({"space": {"lr": 0.1}}, r"should be `own`, a list of values"),
        ({"space": {"rounds": [1, 2]}}, r"'rounds' poses the problem"),
        ({"space": {"alpha": [1, 2]}}, r"'alpha' poses the problem"),
        ({"space": {"lrr": [1, 2]}}, r"unknown setting 'lrr'. Did you mean 'lr'"),
        ({"space": {"fedprox.nu": "own"}}, r"unknown hyperparameter 'nu' of 'fedprox'"),
        ({"space": {"ditto.lam": "own"}}, r"'ditto.lam' concerns none of the grid's methods"),
        ({"grid": {"methods": ["fedavg"]}, "space": {}}, r"'fedavg' has no ranges of its own"),
        ({"sampler": "grid"}, r"sampler `grid` needs a list of values for 'fedprox.mu'"),
        ({"sampler": "tpee"}, r"sampler = \"tpee\" should be 'tpe'"),
        ({"seeds": [1]}, r"seeds = \[1\] should have 2 or more values"),
        ({"seeds": [1, 1]}, r"has a seed twice"),
        ({"report_seeds": [100]}, r"report_seeds has tuning seeds \(\[100\]\)"),
        ({"report_seeds": []}, r"report_seeds = \[\]"),
        ({"trials": 0}, r"trials = 0"),
        ({"trials": None}, r"`trials` is missing"),
        ({"objective": ["pm", "gm"]}, r"two objectives are \[pm, gm\], searched by `sampler: nsga2`"),
        ({"sampler": "nsga2"}, r"nsga2 is for two objectives"),
        ({"objective": ["pm", "gm"], "sampler": "nsga2", "pruner": "median"}, r"no trial can be pruned"),
        ({"prunner": "none"}, r"unknown key 'prunner'. Did you mean 'pruner'"),
        ({"own_ranges": False, "space": {}}, r"'fedprox' has no ranges of its own"),
        (DRAWS | {"seeds": [100, 101, 102]}, r"seeds: 2 draws cannot share 3 seeds evenly"),
        (DRAWS | {"report_seeds": [0, 1, 2]}, r"report_seeds: 2 draws cannot share 3 seeds evenly"),
        (DRAWS | {"final_seeds": [7]}, r"final_seeds: 2 draws cannot share 1 seeds evenly"),
        ({"draws": 0}, r"draws = 0"),
        (DRAWS | {"default_seeds": [100]}, r"default_seeds has tuning seeds \(\[100\]\); results need fresh ones"),
        (DRAWS | {"default_seeds": [0, 0]}, r"default_seeds = .* has a seed twice"),
        ({"final_seeds": [100]}, r"final_seeds has seeds of the trials"),
        ({"final_seeds": [0]}, r"seeds has (seeds of the trials|tuning seeds)"),
        ({"space": {"participation": [0.5, 1.0]}}, r"'participation' poses the problem"),
        ({"space": {"model": ["mlp", "logistic"]}}, r"'model' poses the problem"),
        ({"grid": {"lrr": 0.1}}, r"unknown key 'lrr'"),
        ({"grid": {"methods": ["fedproxx"]}}, r"unknown method 'fedproxx'"),
    ],
)
def test_refused(write: Write, changes: dict[str, object], problem: str) -> None:
    with pytest.raises(UserError, match=problem) as refused:
        load_study(str(write(**changes)), [])
    assert "small.yaml:" in str(refused.value)


def read_text(text: str) -> Study:
    return read_study(yaml_lines.parse(text, "file.yaml"), text, "file", [], None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("space:\n  scd.tau: own\n  lr: [1, 0]\ngrid: quickstart\n", r"6: lr = 0 should be greater than 0$"),
        ("grid:\n  methods: [scd]\n  alphas: [1]\n  rounds: 0\n", r"7: rounds = 0 "),
    ],
)
def test_a_problem_names_its_line(text: str, problem: str) -> None:
    with pytest.raises(UserError, match=rf"^file\.yaml:{problem}"):
        read_text(f"seeds: [8, 9]\nreport_seeds: [0]\ntrials: 2\n{text}")


def test_what_is_no_study(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Did you mean 'table6'"):
        load_study("tabel6", [])
    with pytest.raises(UserError, match=r"file\.yaml:1: a study is keys with values"):
        read_text("[1, 2]")
    (tmp_path / "mine.yaml").write_bytes("description: überall\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"mine\.yaml: not text in UTF-8 \(byte 13\)"):
        load_study(str(tmp_path / "mine.yaml"), [])


def test_one_arm_for_each_method_and_task(write: Write) -> None:
    study = load_study(str(write(grid={"methods": ["fedavg", "fedprox"], "alphas": [1.0, 0.1]})), [])
    assert [(arm.label, arm.task) for arm in study.arms] == [
        ("fedavg", "blobs alpha=1"), ("fedprox", "blobs alpha=1"),
        ("fedavg", "blobs alpha=0.1"), ("fedprox", "blobs alpha=0.1"),
    ]  # fmt: skip
    assert [[one.key for one in arm.dimensions] for arm in study.arms[:2]] == [["lr"], ["fedprox.mu", "lr"]]


def test_own_ranges_and_narrower_ones(write: Write) -> None:
    def keys(**changes: Any) -> list[str]:
        return [one.key for one in load_study(str(write(**changes)), []).arms[0].dimensions]

    assert keys() == ["fedprox.mu", "lr"]
    assert keys(own_ranges=False) == ["lr"]
    (own,) = own_dimensions("fedprox")
    assert own == Dimension("fedprox.mu", low=1e-4, high=1, log=True)
    narrow = load_study(str(write(space={"fedprox.mu": {"low": 0.1, "high": 0.2}})), []).arms[0].dimensions
    assert narrow == (Dimension("fedprox.mu", low=0.1, high=0.2),)
    assert read_dimension("fedrep.head_epochs", "own").choices == (1, 5, 10)
    assert read_dimension("epochs", {"low": 1, "high": 4}) == Dimension("epochs", low=1, high=4)


def test_set_is_stronger_than_the_study_and_given_once(write: Write) -> None:
    study = load_study(str(write()), ["seeds=[5, 6]", "rounds=9", "alpha=0.5"], trials=7)
    assert [(cell.seed, cell.rounds, cell.alpha) for cell in study.grid.cells] == [(5, 9, 0.5), (6, 9, 0.5)]
    assert study.arms[0].trials == 7
    study = load_study(str(write(set={"rounds": 7, "alphas": [0.3]})), ["alpha=0.5"])
    assert {(cell.rounds, cell.alpha) for cell in study.grid.cells} == {(7, 0.5)}
    for twice, said in (
        (["trials=2", "trials=3"], "trials=... is given twice"),
        (["lr=1", "lr=2"], "lr=... sets the same"),
    ):
        with pytest.raises(UserError, match=said):
            load_study(str(write()), twice)
    with pytest.raises(UserError, match=r"--trials 2: --set trials=... is given, too"):
        load_study(str(write()), ["trials=3"], trials=2)
    with pytest.raises(UserError, match="`protocol` is the study's"):
        load_study(str(write()), ["protocol=honest"])


def test_the_name_of_a_search_tells_it_from_others(write: Write) -> None:
    """More trials go on with the same search; whatever else changes makes another one."""
    name = load_study(str(write()), []).arms[0].name
    assert load_study(str(write(trials=9)), []).arms[0].name == name
    others = [{"space": {"lr": [0.1, 0.2]}}, {"seeds": [8, 9]}, {"sampler": "random"}, {"objective": "gm"}]
    assert name not in {load_study(str(write(**one)), []).arms[0].name for one in [*others, {"grid": {"rounds": 6}}]}


def test_points_of_a_grid(write: Write) -> None:
    space = {"lr": [0.1, 0.2], "fedprox.mu": [0, 1, 2]}
    (arm,) = load_study(str(write(space=space, sampler="grid", trials=None)), []).arms
    assert arm.trials == 6
    assert arm.points[1] == {"fedprox.mu": 0.0, "lr": 0.2}
    assert len({tuple(point.items()) for point in arm.points}) == 6


def test_a_trial_is_the_cell_of_its_settings(write: Write) -> None:
    """Written out in the grid, the same settings give the same cell ids."""
    (arm,) = load_study(str(write()), []).arms
    cells = arm.trial(4, {"fedprox.mu": 0.5, "lr": 0.3})
    same = load_study(str(write(grid={"lr": 0.3, "fedprox.mu": 0.5})), []).arms[0].cells
    assert [_id(cell) for cell in cells] == [_id(cell) for cell in same]
    assert cells[0].case == "trial 4: mu=0.5, lr=0.3"
    reported = arm.reported({"lr": 0.3}, [7])
    assert [(cell.seed, cell.protocol, cell.lr, cell.case) for cell in reported] == [(7, "honest", 0.3, "")]


@given(st.floats(0.001, 10), st.floats(1.5, 1e4), st.floats(0, 1))
def test_the_edge_of_a_logarithmic_range(low: float, ratio: float, share: float) -> None:
    dimension = Dimension("lr", low=low, high=low * ratio, log=True)
    assert (
        dimension.at_edge(low * ratio**share) == (share <= 0.05 or share >= 0.95) or 0.04 < min(share, 1 - share) < 0.06
    )


def _id(cell: Settings) -> str:
    return cell_id(cell, declared_checksum(cell))


def test_the_edge_of_a_list() -> None:
    dimension = Dimension("lr", choices=(0.2, 0.1, 0.3))
    assert [dimension.at_edge(value) for value in dimension.choices] == [False, True, True]
    assert not Dimension("augment", choices=("none", "crop_flip")).at_edge("none")


def test_what_names_a_task_cannot_be_searched() -> None:
    """Else trials of one arm would be answers to different questions."""
    assert set(TASK_FIELDS) <= NOT_SEARCHED


def test_the_defaults_are_within_the_space_or_not_tried(write: Write) -> None:
    space = {"fedprox.mu": "own", "lr": {"low": 0.01, "high": 1.0, "log": True}}
    (arm,) = load_study(str(write(space=space)), []).arms
    assert arm.defaults == {"fedprox.mu": arm.cells[0].hp["mu"], "lr": 0.1}
    assert load_study(str(write(space={"lr": [0.2, 0.3]})), []).arms[0].defaults is None


def test_further_tuning_seeds_follow_those_of_the_trials(write: Write) -> None:
    assert load_study(str(write()), []).file.further_seeds == [102, 103]
    assert load_study(str(write(final_seeds=[7])), []).file.further_seeds == [7]
