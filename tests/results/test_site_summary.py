"""Summaries of a site's table: what a row may change, the noise that hides it, and what is not in the file."""

import json
import math
import random
import secrets
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from bench.cli.app import app
from bench.errors import UserError
from bench.results.site_summary import discrete_laplace, read_bounds, sensitivity, summarise, totals
from reports.decision.summaries import compare, read_summaries

BOUNDS: dict[str, Any] = {
    "outcome": ["ill", "well"],
    "age": (18.0, 100.0),
    "ward": ["a", "b", "c"],
    "sodium": (-1.0, 2.0),
}
ROW = st.fixed_dictionaries(
    {
        "outcome": st.sampled_from(["ill", "well", "dead", None]),
        "age": st.one_of(st.none(), st.floats(-1e30, 1e30)),
        "ward": st.sampled_from(["a", "b", "c", "Erdheim-Chester", None]),
        "sodium": st.one_of(st.none(), st.floats(-3, 3)),
    }
)


def columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in BOUNDS}


@given(st.lists(ROW, min_size=1, max_size=8), st.data())
def test_a_row_changes_totals_by_no_more_than_the_noise_is_made_for(rows: list[dict[str, Any]], data: Any) -> None:
    gone = data.draw(st.integers(0, len(rows) - 1))
    with_it, without = totals(columns(rows), BOUNDS), totals(columns(rows[:gone] + rows[gone + 1 :]), BOUNDS)
    for column, bound in BOUNDS.items():
        change = sum(abs(with_it[column][name] - without[column][name]) for name in with_it[column])
        assert 0 < change <= sensitivity(bound)


def test_the_noise_is_that_of_the_stated_epsilon() -> None:
    scales: list[Fraction] = []

    def none(scale: Fraction) -> int:
        scales.append(scale)
        return 0

    rows = [{"outcome": "ill", "age": 40.0, "ward": "a", "sodium": 1.0}] * 30
    found = summarise(columns(rows), "outcome", BOUNDS, Fraction(2), noise=none)
    spent = {}
    for column, counted in totals(columns(rows), BOUNDS).items():
        of_column = {scales.pop(0) for _ in counted}
        assert len(of_column) == 1
        spent[column] = sensitivity(BOUNDS[column]) / of_column.pop()
    assert not scales
    assert sum(spent.values()) == 2
    assert found["rows"] == 30
    assert found["columns"]["age"]["mean"] == pytest.approx(40, abs=0.05)
    assert found["columns"]["sodium"]["deviation"] is None  # of 0, which noise would hide


def test_without_noise_means_and_deviations_are_those_of_the_clipped_values() -> None:
    rng = np.random.default_rng(0)
    age = rng.normal(60, 25, 4000)
    rows = [{"outcome": "ill", "age": value, "ward": "a", "sodium": None} for value in age]
    entry = summarise(columns(rows), "outcome", BOUNDS, Fraction(1), noise=lambda scale: 0)["columns"]
    clipped = np.clip(age, 18, 100)
    assert entry["age"]["mean"] == pytest.approx(clipped.mean(), abs=0.05)
    assert entry["age"]["deviation"] == pytest.approx(clipped.std(), rel=0.01)
    assert entry["sodium"] | {"range": ""} == {
        "range": "", "mean": None, "deviation": None, "missing": 1.0, "noise of the mean": None,
    }  # fmt: skip


@pytest.mark.parametrize("scale", [Fraction(1, 3), Fraction(5, 2), Fraction(3000)])
def test_noise_is_discrete_laplace(scale: Fraction, monkeypatch: pytest.MonkeyPatch) -> None:
    """P(k) = (e - 1) / (e + 1) exp(-|k| / scale) with e = exp(1 / scale): its variance and the chance of each sign."""
    monkeypatch.setattr(secrets, "randbelow", random.Random(0).randrange)
    count = 8000
    drawn = np.array([discrete_laplace(scale) for _ in range(count)], float)
    e = math.exp(1 / scale)
    zero = (e - 1) / (e + 1)
    assert np.mean(drawn == 0) == pytest.approx(zero, abs=5 * math.sqrt(zero * (1 - zero) / count) + 1e-9)
    assert np.mean(drawn > 0) == pytest.approx((1 - zero) / 2, abs=0.03)
    assert np.var(drawn) == pytest.approx(2 * e / (e - 1) ** 2, rel=0.15)


def hospital(seed: int, rows: int, unit: float = 1.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    ill = rng.random(rows) < 0.4
    return pd.DataFrame({
        "name": [f"Patient {seed} {row}" for row in range(rows)], "glucose": rng.normal(6, 1, rows) * unit,
        "diagnosis": "Erdheim-Chester", "smoker": rng.choice(["yes", "no"], rows),
        "outcome": np.where(ill, "ill", "well"),
    })  # fmt: skip


def bench(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=True)
    if isinstance(done.exception, UserError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_from_tables_to_what_can_be_said_before_anything_is_shared(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    bounds = tmp_path / "bounds.yaml"
    bounds.write_text("outcome: [ill, well]\nglucose: 0 to 150\nsmoker: [yes, no]\ndiagnosis: [flu, cold]\n")
    for name, seed, rows, unit in (("A", 1, 900, 1), ("B", 2, 900, 1), ("C", 3, 900, 18), ("D", 4, 40, 1)):
        hospital(seed, rows, unit).to_csv(tmp_path / f"{name}.csv", index=False)
        out = tmp_path / "all" / f"{name}.json"
        said = bench(
            "data", tmp_path / f"{name}.csv", "--label", "outcome", "--summary", out, "--epsilon", 8, "--bounds", bounds
        )
        assert "left out: name" in said
        text = out.read_text()
        assert not any(secret in text for secret in ("Patient", "Erdheim", 'name"'))
        assert abs(json.loads(text)["rows"] - rows) < 30
    said = bench("decide", "--from-summaries", tmp_path / "all")
    assert "C (glucose (+" in said
    assert "model by itself): D." in said
    assert "Not known without training" in said
    other = json.loads((tmp_path / "all" / "A.json").read_text())
    other["columns"]["glucose"]["range"] = "0 to 100"
    (tmp_path / "all" / "E.json").write_text(json.dumps(other))
    with pytest.raises(UserError, match="A and E have other columns or bounds"):
        read_summaries(tmp_path / "all")


def test_noise_that_hides_everything_is_said_and_no_difference_is_made_of_it() -> None:
    rows = [{"outcome": "ill", "age": 40.0, "ward": "a", "sodium": 1.0}] * 30
    draws = random.Random(1)

    def noise(scale: Fraction) -> int:
        return draws.randint(-int(scale), int(scale))

    noisy = [summarise(columns(rows), "outcome", BOUNDS, Fraction(1, 10), noise=noise) for _ in range(4)]
    _, sentences = compare(dict(zip("ABCD", noisy, strict=True)))
    assert "beyond noise: no site" in sentences[0]
    assert "Too noisy to say whether they could gain: A, B, C, D" in sentences[2]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("age: 100 to 18", "age: 100 to 18"),
        ("age: 18", "age: 18"),
        ("age: -inf to 3", "age: -inf to 3"),
        ("ward: [a, a]", "ward: "),
        ("- age", "should name columns"),
        ("", "should name columns"),
    ],
)
def test_bounds_that_are_none_are_refused(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "bounds.yaml").write_text(text)
    with pytest.raises(UserError, match=problem):
        read_bounds(tmp_path / "bounds.yaml")


def test_a_summary_needs_all_its_options(tmp_path: Path) -> None:
    hospital(0, 30).to_csv(tmp_path / "A.csv", index=False)
    (tmp_path / "b.yaml").write_text("outcome: [ill, well]\nsmoker: 0 to 1")
    start = "data", tmp_path / "A.csv", "--summary", tmp_path / "A.json", "--label", "outcome"
    for more, problem in (
        ((), "needs --epsilon"),
        (("--epsilon", 1), "needs --epsilon"),
        (("--epsilon", 0, "--bounds", tmp_path / "b.yaml"), "needs --epsilon"),
        (("--epsilon", 1, "--bounds", tmp_path / "b.yaml"), "'smoker' holds what is no number"),
        (("--epsilon", 1, "--bounds", tmp_path / "none.yaml"), "none.yaml"),
        (("--epsilon", 1, "--bounds", tmp_path / "b.yaml", "--subject", "who"), "no column 'who'"),
    ):
        with pytest.raises(UserError, match=problem):
            bench(*start, *more)
    assert not (tmp_path / "A.json").exists()
