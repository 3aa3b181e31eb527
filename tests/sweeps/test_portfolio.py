"""Which methods a decision compares, and how many rounds, trials and seeds fit in its minutes."""

import inspect
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.plugin import METHODS
from bench.settings import Settings
from sweeps.budget import SEEDS, MethodTime, Timing, fitting, least_seconds, seconds_of
from sweeps.portfolio import portfolio, study_of_decision
from sweeps.study_reader import load_study


def sites(labels: float, features: float | None) -> list[dict[str, object]]:
    return [{"train": 40, "label_distance": labels, "feature_score": features} for _ in range(3)]


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (sites(0.5, 0.5), {"fedrep", "fedrod"}),
        (sites(0.1, 0.9), {"fedper", "lgfedavg"}),
        (sites(0.1, None), {"fedper", "fedprox"}),
        # a large site counts more
        ([{"train": 1000, "label_distance": 0.0, "feature_score": 0.5}, *sites(0.5, 0.5)], {"fedprox"}),
    ],
)
def test_methods_follow_from_how_sites_differ(measured: list[dict[str, object]], expected: set[str]) -> None:
    """Eight, all known, and those for conflicts that no measure shows are always there."""
    chosen = portfolio(measured)
    assert len(chosen) == 8
    assert list(chosen)[:3] == ["local", "fedavg", "finetune"]
    assert chosen.keys() > {"ditto", "ifca", "apfl"} | expected
    assert all(METHODS.get(name) for name in chosen)


def test_no_method_chooses_by_validation_samples_itself() -> None:
    """As kNN-Per and FedFomo do, in the samples `holdout`."""
    names = {name for labels in (0.1, 0.5) for features in (None, 0.9) for name in portfolio(sites(labels, features))}
    files = {name: Path(inspect.getfile(METHODS.get(name))) for name in names}
    assert [name for name, file in files.items() if '"holdout"' in file.read_text(encoding="utf-8")] == []


def test_the_study_has_the_data_of_its_cell() -> None:
    """All that is no default: data, division and training; and it is a study that can be read."""
    shares = [0.6, 0.15, 0.25]
    division = {"partition": "dirichlet", "partition_options": {"shares": shares}, "partition_seed": 0}
    training = {"clients": 4, "batch_size": 7, "lr": 0.05, "normalise": "pooled"}
    cell = Settings.model_validate({"method": "local", "dataset": "digits", "alpha": 0.3, **division, **training})
    study = load_study(study_of_decision("d", cell, ["local", "fedavg"], rounds=3, trials=2, seeds=range(5)), [])
    assert [arm.label for arm in study.arms] == ["local", "fedavg"]
    (made,) = study.arms[1].reported({}, [0])
    assert made.partition_options["shares"] == shares
    same = ("dataset", "partition", "alpha", "clients", "batch_size", "lr", "normalise")
    assert {name: getattr(made, name) for name in same} == {name: getattr(cell, name) for name in same}
    assert (made.rounds, made.partition_seed, made.protocol) == (3, 0, "honest")


def timing(seconds: float) -> Timing:
    """Eight methods of which each round takes so long."""
    return Timing({f"m{k}": MethodTime(1.0, seconds) for k in range(8)}, first=10.0)


def test_times_are_of_recorded_cells() -> None:
    """The first cell of a method records its steps, which the process pays once."""
    known = Timing.of({"a": [9.0, 1.0], "b": [4.0, 2.0]}, short=0.4)
    assert known.first == pytest.approx(8 + 2)
    assert known.methods["a"].start + 8 * known.methods["a"].round == pytest.approx(1.0)
    assert known.methods["a"].start + 2 * known.methods["a"].round == pytest.approx(0.4)
    assert known.methods["b"].start + 8 * known.methods["b"].round == pytest.approx(2.0)


@given(st.floats(0.001, 5), st.integers(1, 16), st.floats(10, 4000), st.integers(1, 60))
def test_a_plan_fits_in_its_time(seconds: float, jobs: int, time: float, rounds: int) -> None:
    plan = fitting(timing(seconds), jobs, time, rounds)
    if plan is None:
        assert time < least_seconds(timing(seconds), jobs, rounds)
        return
    assert seconds_of(plan, timing(seconds), jobs) < 0.75 * time
    assert plan.rounds <= rounds
    longer = fitting(timing(seconds), jobs, 2 * time, rounds)
    assert longer is not None
    assert (longer.rounds, len(longer.methods)) >= (plan.rounds, len(plan.methods))


def test_with_little_time_there_are_fewer_methods_and_seeds() -> None:
    least = least_seconds(timing(0.1), 2, 60)
    plan = fitting(timing(0.1), 2, least + 1e-6, 60)
    assert plan is not None
    assert plan.methods == ("m0", "m1", "m2", "m3", "m4")
    assert plan.seeds < SEEDS
