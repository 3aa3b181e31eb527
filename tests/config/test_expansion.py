"""Order, counts and precedence of cells."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bench.config.grid import Grid, load_grid
from bench.config.grid_file import name_problem
from bench.config.listed import write_listed
from bench.errors import UserError
from bench.profiles import Profile, resolve
from bench.settings import Settings

CLOCK = Path(__file__).parents[2] / "docs" / "clock.md"

Load = Callable[..., Grid]


def rows(grid: Grid, *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(getattr(cell, key) for key in keys) for cell in grid.cells]


def test_order_is_dataset_case_alpha_method_seed(load: Load, tmp_path: Path) -> None:
    grid = load(
        f"""
        methods: [toy, plain]
        datasets: [digits, {{name: npz, path: {tmp_path}/a.npz}}]
        cases: [{{name: few, clients: 2}}, {{name: many, clients: 9}}]
        alphas: [1, 0.1]
        seeds: [3, 4]
        """
    )
    names = ("digits", "npz"), (("few", 2), ("many", 9)), (1.0, 0.1), ("toy", "plain"), (3, 4)
    expected = [(d, *case, alpha, method, seed) for d, case, alpha, method, seed in itertools.product(*names)]
    assert rows(grid, "dataset", "case", "clients", "alpha", "method", "seed") == expected


def test_a_data_set_with_cases_of_its_own(load: Load) -> None:
    text = """
        methods: [plain]
        datasets:
          - digits
          - {name: synthetic, set: {lr: 0.3, clients: 4}, cases: [{name: one, alpha: 0.1}, {partition: natural}]}
        cases: [{name: few, clients: 2, alpha: 1}]
        """
    own = [("synthetic", "one", 4, 0.1, 0.3), ("synthetic", "partition=natural", 4, None, 0.3)]
    keys = ("dataset", "case", "clients", "alpha", "lr")
    assert rows(load(text), *keys) == [("digits", "few", 2, 1.0, 0.01), *own]
    overridden = rows(load(text, "clients=3"), *keys)
    assert [row[2] for row in overridden] == [3, 3, 3]


def test_hyperparameters_and_options_are_complete_and_all_else_has_its_default(load: Load) -> None:
    (cell,) = load("{methods: [{name: toy, tau: 1}], alpha: 1, model_options: {hidden: 7}, server: buffered}").cells
    assert cell == Settings(
        method="toy",
        label="toy",
        hp={"tau": 1.0, "phases": 1, "personal": ["head"], "mode": "fast"},
        server={"name": "buffered", "buffer": 10},
        alpha=1.0,
        model_options={"hidden": 7, "layers": 1},
        dataset_options={"mean": None, "std": None},
        partition_options={"balanced": False, "min_samples": 0, "top_up": 0, "shares": None},
    )


def test_clocks_of_the_documentation_load_from_a_file_and_an_override(load: Load) -> None:
    """Every value that docs/clock.md gives to `clock`, one key at a time, and what its comments say besides."""
    block = CLOCK.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]
    names = re.findall(r"^clock: (\w+) ", block, re.MULTILINE)
    keys = re.findall(r"^  (\w+: [^#\n]*[^#\s])", block, re.MULTILINE)
    assert (len(names), len(keys)) == (1, 11)
    keys += ["slow_clients: {clients: [0, 3], factor: 5}", "uplink: [1, 2]", "downlink: {median: 2.5}"]
    for clock in [*names, "uniform", "datacenter", *(f"{{{key}}}" for key in keys)]:
        (written,) = load(f"methods: [plain]\nalpha: 1\nclock: {clock}").cells
        (overridden,) = load("methods: [plain]\nalpha: 1", f"clock={clock}").cells
        assert written.clock == overridden.clock == Profile(**resolve(yaml.safe_load(clock)))
        assert Settings(**written.model_dump()) == Settings.model_validate_json(written.model_dump_json()) == written


LAYERS = {  # weakest first: every one raises lr above the one before it
    "common": "lr: 0.1",
    "dataset": "datasets: [{name: digits, set: {lr: 0.2}}]",
    "case": "cases: [{name: c, lr: 0.3}]",
    "method": "methods: [{name: plain, set: {lr: 0.4}}]",
}


@pytest.mark.parametrize("first", range(4))
def test_precedence(load: Load, first: int) -> None:
    names = list(LAYERS)
    for last in range(first, 4):
        lines = ["alpha: 1", *(LAYERS[name] for name in names[first : last + 1])]
        if last < 3:
            lines.append("methods: [plain]")
        assert load("\n".join(lines)).cells[0].lr == pytest.approx(0.1 * (last + 1))
    assert load("{methods: [plain], alpha: 1}").cells[0].lr == 0.01


def test_precedence_of_hyperparameters(load: Load) -> None:
    text = "{methods: [{name: toy, label: a}, {name: toy, tau: 0.9, label: b}, plain], alpha: 1, toy.tau: 0.5}"
    assert [cell.hp.get("tau") for cell in load(text).cells] == [0.5, 0.9, None]
    text = "{methods: [toy], alpha: 1, toy.tau: 0.5, cases: [{name: c, toy.tau: 0.6}]}"
    assert [cell.hp["tau"] for cell in load(text).cells] == [0.6]
    entries = "[toy, {name: plain, server: null}, {name: plain, server: {name: buffered, buffer: 3}, label: b3}]"
    cells = load(f"{{methods: {entries}, server: buffered, alpha: 1}}").cells
    assert [cell.server and cell.server["buffer"] for cell in cells] == [10, None, 3]


def test_a_varied_hyperparameter_leaves_other_methods_alone(load: Load) -> None:
    grid = load("{methods: [toy, plain], alpha: 1, seeds: [0, 1], vary: {toy.tau: [0.1, 0.2], rounds: [5, 6]}}")
    found = [(cell.method, cell.case, cell.hp.get("tau"), cell.rounds) for cell in grid.cells if cell.seed == 0]
    assert found == [
        ("toy", "toy.tau=0.1, rounds=5", 0.1, 5),
        ("plain", "rounds=5", None, 5),
        ("toy", "toy.tau=0.1, rounds=6", 0.1, 6),
        ("plain", "rounds=6", None, 6),
        ("toy", "toy.tau=0.2, rounds=5", 0.2, 5),
        ("toy", "toy.tau=0.2, rounds=6", 0.2, 6),
    ]
    assert len(grid.cells) == 2 * len(found)


def test_labels_tell_entries_apart(load: Load) -> None:
    text = """
    methods:
      [plain, toy, {name: toy, tau: 0.4}, {name: toy, tau: 0.4, set: {lr: 1}}, {name: toy, tau: 0.5, label: ours}]
    alpha: 1
    """
    assert [cell.label for cell in load(text).cells] == ["plain", "toy", "toy tau=0.4", "toy tau=0.4 lr=1", "ours"]
    assert load("{methods: [{name: toy, tau: 0.4}], alpha: 1}").cells[0].label == "toy"


def test_datasets_of_one_name_are_told_apart(load: Load) -> None:
    grid = load("{methods: [plain], alpha: 1, datasets: [digits, {name: npz, path: a}, {name: npz, path: b}]}")
    assert rows(grid, "dataset", "case") == [("digits", ""), ("npz", "path=a"), ("npz", "path=b")]
    grid = load(
        "{methods: [plain], alpha: 1, datasets: [{name: npz, path: a, label: A}, {name: npz, path: b, label: B}]}"
    )
    assert [(cell.case, cell.dataset_options["name"]) for cell in grid.cells] == [("A", "A"), ("B", "B")]
    two = "{name: npz, path: a, label: A}, {name: npz, path: b, label: A}"  # the label is in `name`, once
    assert rows(load(f"{{methods: [plain], alpha: 1, datasets: [{two}]}}"), "case") == [("path=a",), ("path=b",)]
    grid = load(  # what else an entry says tells the cells apart
        "{methods: [plain], alpha: 1, datasets: [{name: npz, path: a, label: A, set: {rounds: 5}},"
        "{name: npz, path: a, label: A, set: {rounds: 9}}, {name: npz, path: b, label: B}]}"
    )
    assert rows(grid, "rounds", "case") == [(5, "path=a rounds=5"), (9, "path=a rounds=9"), (30, "B")]


def test_cases_without_a_name_say_what_they_set(load: Load) -> None:
    grid = load("{methods: [plain], cases: [{clients: 5, alpha: 1}, {clients: 10, alpha: 0.1}]}")
    assert rows(grid, "case", "alpha") == [("clients=5 alpha=1", 1.0), ("clients=10 alpha=0.1", 0.1)]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("rounds=5", {"rounds": 5}),
        ("lr=1e-3", {"lr": 0.001}),
        ("toy.tau=0.3", {"hp": {"tau": 0.3, "phases": 2, "personal": ["head"], "mode": "fast"}}),
        ("model_options={hidden: 3}", {"model_options": {"hidden": 3, "layers": 1}}),
        ("seed=7", {"seed": 7}),
        ("alpha=0.5", {"alpha": 0.5}),
        ("alphas=[0.5]", {"alpha": 0.5}),
        ("server=null", {"server": None}),
        ("datasets=[{name: digits, set: {epochs: 2}}]", {"epochs": 2}),
        ("batch_size=7", {"batch_size": 7}),
        ("batch_size=0x1F", {"batch_size": 31}),
        ("batch_size=0o17", {"batch_size": 15}),
    ],
)
def test_an_override_wins_over_the_whole_file(load: Load, override: str, expected: dict[str, Any]) -> None:
    text = """
    methods: [{name: toy, tau: 0.9, server: buffered, set: {lr: 0.8}}]
    datasets: [{name: digits, set: {lr: 0.7}}]
    alphas: [1]
    seeds: [0]
    cases: [{name: c, toy.phases: 2, batch_size: 3}]
    vary: {rounds: [6], model_options: [{hidden: 9}]}
    """
    (cell,) = load(text, override).cells
    assert {key: getattr(cell, key) for key in expected} == expected


def test_methods_chosen_by_an_override_leave_what_the_file_says_of_others(load: Load) -> None:
    text = "methods: [toy, plain]\nalpha: 1\ntoy.tau: 0.5\nvary: {toy.phases: [1, 2]}"
    assert rows(load(text, "methods=[plain]"), "method", "case") == [("plain", "")]


def test_name_and_published_come_from_file_or_override(load: Load) -> None:
    text = "{methods: [plain], alpha: 1, description: d, published: scd_t5}"
    grid = load(text)
    assert (grid.name, grid.description, grid.published, grid.source) == ("grid", "d", "scd_t5", text)
    assert load(text, "name=mine").name == "mine"


def test_the_example_in_the_documentation_loads(load: Load) -> None:
    page = Path(__file__).parents[2] / "docs" / "grids.md"
    example = page.read_text().partition("```yaml\n")[2].partition("```")[0]
    grid = load(example)
    assert len(grid.cells) == 2 * 2 * 2 * 2 * 3 * 3
    assert {cell.label for cell in grid.cells} == {"fedavg", "ours", "ditto"}
    assert {cell.hp["lambda_g"] for cell in grid.cells if cell.label == "ours"} == {0.5}


def test_a_file_goes_before_a_built_in_grid(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "quickstart.yaml").write_text("{methods: [plain], alpha: 1}")
    monkeypatch.chdir(tmp_path)
    assert len(load_grid("quickstart.yaml", []).cells) == 1


@given(st.text(max_size=90))
def test_names_are_safe_in_tables_and_paths(name: str) -> None:
    if not name_problem(name):
        assert Path("runs", name).parent == Path("runs")
        assert len(name.splitlines()) == 1


def test_varied_mappings_have_different_cases_in_the_words_of_the_file(load: Load) -> None:
    """What is filled in would take the place of what differs; long texts that are cut alike have a number."""
    grid = load(
        "{methods: [plain], alpha: 1, vary: {timeline: [[{round: 2, add_classes: 1}], [{round: 2, add_classes: 5}]]}}"
    )
    texts = [f'timeline=[{{"round": 2, "add_classes": {count}}}]' for count in (1, 5)]
    assert rows(grid, "case") == [(text,) for text in texts]
    frozen = [["a" * 80, "b"], ["a" * 80, "c"], ["d"]]
    cases = [cell.case for cell in load(f"{{methods: [plain], alpha: 1, vary: {{frozen: {frozen}}}}}").cells]
    assert [case[-3:] for case in cases] == [" #1", " #2", 'd"]']


def test_listed_cells_of_one_name_say_in_the_case_how_they_differ(load: Load) -> None:
    text = "{alpha: 1, rounds: 5, seeds: [0, 1], cells: [{method: plain, lr: 0.1}, {method: plain, lr: 0.5}, %s]}"
    grid = load(text % "{method: toy, hp: {tau: 0.4}}, {method: toy, hp: {tau: 0.5}, case: b}, {method: toy}")
    assert rows(grid, "label", "case", "seed")[::2] == [
        ("", "lr=0.1", 0),
        ("", "lr=0.5", 0),
        ("", "hp.tau=0.4", 0),
        ("", "b", 0),
        ("", "", 0),
    ]
    of_draws = load("{alpha: 1, cells: [{method: plain, lr: 0.1, seed: 0}, {method: plain, lr: 0.5, seed: 1}]}")
    assert rows(of_draws, "case") == [("",), ("",)]


@pytest.mark.parametrize(
    ("text", "override", "expected"),
    [
        ("datasets: [{name: digits, cases: [{alpha: 1}, {alpha: 0.1}]}]", "alpha=0.5", [("toy", "", 0.5, 0.2)]),
        ("cases: [{alpha: 1}, {alpha: 2}, {alpha: 2, toy.tau: 0.4}]", "alpha=0.5",
         [("toy", "default", 0.5, 0.2), ("toy", "toy.tau=0.4", 0.5, 0.4)]),
        ("cases: [{name: a, alpha: 1}, {name: b, alpha: 2}]", "alpha=0.5", [("toy", "", 0.5, 0.2)]),
        ("cases: [{name: a, alpha: 1, toy.tau: 0.4}, {name: b, alpha: 2, toy.tau: 0.4}, {name: c, alpha: 1}]",
         "alphas=[0.5]", [("toy", "a", 0.5, 0.4), ("toy", "c", 0.5, 0.2)]),
        ("methods: [{name: toy, tau: 0.4}, {name: toy, tau: 0.1}, toy]\nalpha: 1", "toy.tau=0.3",
         [("toy", "", 1.0, 0.3)]),
        ("methods: [{name: toy, set: {lr: 1}}, {name: toy, tau: 0.1, set: {lr: 1}}, toy]\nalpha: 1", "lr=2",
         [("toy", "", 1.0, 0.2), ("toy tau=0.1", "", 1.0, 0.1)]),
        ("methods: [{name: toy, tau: 0.4, label: a}, {name: toy, label: b}]\nalpha: 1", "toy.tau=0.3",
         [("a", "", 1.0, 0.3), ("b", "", 1.0, 0.3)]),
        ("datasets: [{name: digits, set: {rounds: 2}}, {name: digits, set: {rounds: 3}}]\nalpha: 1", "rounds=4",
         [("toy", "", 1.0, 0.2)]),
        ("cells: [{method: toy, alpha: 1}, {method: toy, alpha: 2}]", "alpha=0.5", [("toy", "", 0.5, 0.2)]),
    ],
)  # fmt: skip
def test_entries_that_differed_only_in_what_is_overridden_become_one(
    load: Load, text: str, override: str, expected: list[tuple[str, str, float, float]]
) -> None:
    start = "" if "methods" in text or "cells" in text else "methods: [toy]\n"
    assert [(c.name, c.case, c.alpha, c.hp["tau"]) for c in load(start + text, override).cells] == expected


def test_entries_keep_their_lines_when_one_before_them_is_merged(load: Load) -> None:
    text = "alpha: 1\nmethods:\n- {name: toy, tau: 0.4}\n- {name: toy, tau: 0.1}\n- {name: toy, tauu: 1}\n"
    with pytest.raises(UserError, match=re.escape("grid.yaml:5: unknown hyperparameter 'tauu'")):
        load(text, "toy.tau=0.3")


def test_every_kind_of_setting_is_read_again_from_listed_cells(load: Load) -> None:
    """Written and read, cells are equal: the strict types of a grid that lists its cells are those of its writer."""
    grid = load(
        """
        methods: [plain, {name: toy, tau: 1, server: buffered}]
        alphas: [1, 0.1]
        seeds: [0, 3]
        shifts: [rotation]
        channel: [{name: top_k, share: 0.1}]
        optimizer: {name: adam, betas: [0.9, 0.99]}
        clock: {uplink: [1, 2], slow_clients: {clients: [0, 3], factor: 5}}
        stragglers: {0: 1, 1: [2, 0]}
        client_models: {by: size, models: [mlp, logistic]}
        metrics: [auroc]
        tests: [global, {name: corrupted, severity: 3, kinds: [fog]}]
        timeline: [{round: 2, add_classes: 1}]
        """
    )
    again = load(write_listed("again", "", [*grid.cells, *grid.cells])).cells
    assert sorted(map(str, again)) == sorted(map(str, grid.cells))
