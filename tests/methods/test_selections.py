"""How clients are selected: by p_k without replacement as COMET does, in turn, or by a function of one's own."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.config.grid import load_grid
from bench.config.identity import cell_id
from bench.errors import UserError
from bench.method import SELECTIONS
from tests.engine.problems import run, toy

IDS, SIZES = [1, 4, 6, 9], [1, 2, 3, 14]


def _drawn(name: str, count: int, rounds: int) -> list[list[int]]:
    select = SELECTIONS.get(name)
    return [select(IDS, SIZES, count, k, np.random.default_rng(k)) for k in range(rounds)]


@pytest.mark.parametrize("name", ["uniform", "by_size", "round_robin"])
@pytest.mark.parametrize("count", [1, 3, 4])
def test_as_many_different_clients_as_are_wanted(name: str, count: int) -> None:
    for found in _drawn(name, count, 20):
        assert len(found) == len(set(found)) == count
        assert set(found) <= set(IDS)


def test_by_size_draws_one_after_the_other_by_p_k() -> None:
    """Of two clients, k is among them with p_k + sum_j p_j p_k / (1 - p_j), counted out by hand."""
    p = np.array(SIZES) / sum(SIZES)
    wanted = [p[k] + sum(p[j] * p[k] / (1 - p[j]) for j in range(4) if j != k) for k in range(4)]
    found = _drawn("by_size", 2, 4000)
    shares = [np.mean([i in one for one in found]) for i in IDS]
    assert shares == pytest.approx(wanted, abs=0.03)  # four standard errors
    even = [np.mean([i in one for one in _drawn("uniform", 2, 4000)]) for i in IDS]
    assert even == pytest.approx([0.5] * 4, abs=0.03)


def test_in_turn_nobody_comes_twice_before_everybody_has_come_once() -> None:
    found = [i for one in _drawn("round_robin", 3, 4) for i in one]
    assert found == IDS * 3


def test_comet_s_small_clients_are_half_of_those_drawn_uniformly_and_hardly_ever_drawn_by_size() -> None:
    """In the grid of its Table III, which draws by size; docs/methods/comet.md quotes the shares."""
    example = importlib.import_module("docs.examples.comet_selection")
    cell = example.cells()[0]
    assert cell.selection == "by_size"
    partition = example.load_partition(cell, example.labels())
    assert example.share_of_small(cell, partition, "uniform") == pytest.approx(0.529, abs=0.001)
    assert example.share_of_small(cell, partition, cell.selection) == pytest.approx(0.024, abs=0.001)


def test_one_s_own_selection_is_a_name_in_a_grid_and_part_of_the_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def largest(ids: Sequence[int], sizes: Sequence[int], count: int, round: int, rng: object) -> list[int]:
        return [i for _, i in sorted(zip(sizes, ids, strict=True), reverse=True)[:count]]

    SELECTIONS.names()
    monkeypatch.setitem(SELECTIONS._items, "largest", largest)
    file = tmp_path / "own.yaml"
    file.write_text("{methods: [fedavg], alpha: 1, vary: {selection: [uniform, by_size, largest]}}")
    cells = load_grid(str(file), []).cells
    assert len({cell_id(cell, "") for cell in cells}) == 3
    federation = toy("fedavg", participation=0.4, selection="largest")
    run(federation, 1)
    sizes = federation.server.sizes
    assert {sizes[i] for i in federation.server.selected} == set(sorted(sizes.values())[-2:])


def test_a_selection_that_does_not_exist_and_a_server_that_selects_nobody(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("{methods: [fedavg], alpha: 1,\nselection: by_sise}")
    with pytest.raises(UserError, match=r"wrong.yaml:2: unknown selection 'by_sise'. Did you mean 'by_size'\?"):
        load_grid(str(file), [])
    with pytest.raises(UserError, match="clients start one by one"):
        toy("fedavg", selection="by_size", server={"name": "fedbuff"})


@pytest.mark.parametrize(
    "wrong",
    [
        lambda ids, count: [ids[0]] * count,
        lambda ids, count: ids[: count - 1],
        lambda ids, count: ids[: count + 1],
        lambda ids, count: [*ids[: count - 1], 999],
        lambda ids, count: [*ids[: count - 1], ids[count] + 0.5],
    ],
    ids=["one twice", "too few", "too many", "unknown", "fraction"],
)
def test_other_than_as_many_different_clients_is_refused(
    wrong: Callable[[Sequence[int], int], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(ids: Sequence[int], sizes: Any, count: int, round: int, rng: np.random.Generator) -> list[int]:
        return wrong(ids, count) if round else [*np.array(ids[:count])]

    SELECTIONS.names()
    monkeypatch.setitem(SELECTIONS._items, "careless", careless)
    federation = toy("fedavg", participation=0.6, selection="careless")
    run(federation, 1)
    assert [type(i) for i in federation.server.selected] == [int, int, int]
    with pytest.raises(UserError, match=r"careless` returned .* in round 2, .* got: return 3 different ids of these"):
        federation.advance()
