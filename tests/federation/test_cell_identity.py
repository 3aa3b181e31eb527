"""The ids of cells whose data only reading them tells: the user's own code, and files without published checksums."""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.config.identity import NORMALISED, UNVERIFIED, cell_id, declared_checksum
from bench.data import Dataset
from bench.federation.cell_identity import Identities
from bench.plugin import DATASETS, PARTITIONS
from bench.rng import generator
from bench.runs.plan import plan
from bench.settings import Settings
from datasets.assemble import assemble
from datasets.partitions import Split
from datasets.sources import SOURCES

Change = Callable[[Dataset], Dataset]
CELL = Settings(method="fedavg", dataset="notes", model="logistic", partition="dirichlet", clients=3, alpha=1.0)


def notes(groups: bool = True) -> Dataset:
    y = np.arange(60) % 3
    x = generator("tests", "identity").normal(size=(60, 4)).astype(np.float32)
    people = np.array([f"person {i % 5}" for i in range(60)]) if groups else None
    return assemble("notes", x, y, 45, mean=None, std=None, groups=people)


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Dataset], None]:
    """Register a data set of the user's own under a name, in place of an earlier one."""

    def register(name: str, dataset: Dataset) -> None:
        def load(*, data_root: Path, download: bool) -> Dataset:
            return dataset

        monkeypatch.setitem(DATASETS._items, name, load)

    return register


CHANGES: dict[str, Change] = {
    "samples": lambda data: assemble("notes", data.x + 1, data.y, 45, mean=None, std=None, groups=data.groups),
    "labels": lambda data: assemble("notes", data.x, data.y[::-1], 45, mean=None, std=None, groups=data.groups),
    "people": lambda data: replace(data, groups=None if data.groups is None else data.groups[::-1].copy()),
    "names of people": lambda data: replace(data, group_names=tuple(f"{name}'" for name in data.group_names)),
}


@pytest.mark.parametrize("place", ["clients", "public"])
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_the_user_s_samples_makes_another_cell(
    change: str, place: str, register: Callable[[str, Dataset], None]
) -> None:
    cell = CELL
    if place == "public":
        register("notes", notes(groups=False))
        cell = Settings(**(CELL.model_dump() | {"public": {"name": "others", "size": 5}}))
    ids = []
    for data in (notes(), notes(), CHANGES[change](notes())):
        register("notes" if place == "clients" else "others", data)
        ids.append(Identities(Path()).of(cell))
    assert ids[0] == ids[1] != ids[2]


def test_plan_and_identities_agree_and_groups_alone_are_new(register: Callable[[str, Dataset], None]) -> None:
    register("notes", data := notes(groups=False))
    (planned,) = plan([CELL], Path(), download=False)
    assert (
        planned.id
        == Identities(Path()).of(CELL)
        == cell_id(CELL, f"{declared_checksum(CELL)} {data.checksum} {NORMALISED}")
    )


def test_what_the_user_s_partition_makes_is_part_of_the_id(
    register: Callable[[str, Dataset], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    register("notes", notes())
    sizes = [15, 15, 15]

    def dealt(dataset: Dataset, *, clients: int, alpha: float, seed: int) -> Split:
        return Split([np.arange(first, last) for first, last in itertools.pairwise(np.cumsum([0, *sizes]))])

    monkeypatch.setitem(PARTITIONS._items, "dealt", dealt)
    cell = CELL.model_copy(update={"partition": "dealt"})
    ids = [Identities(Path()).of(cell)]
    sizes[:] = [5, 20, 20]
    ids += [Identities(Path()).of(cell), Identities(Path()).of(cell)]
    assert ids[0] != ids[1] == ids[2]


def test_files_without_a_published_checksum_are_known_by_their_content(tmp_path: Path) -> None:
    def leaf(shift: float) -> None:
        for part in ("train", "test"):
            folder = tmp_path / "femnist" / "data" / part
            folder.mkdir(parents=True, exist_ok=True)
            x = (generator("tests", part).random((6, 784)) * shift).round(3).tolist()
            user: dict[str, Any] = {"x": x, "y": list(range(6))}
            (folder / "all.json").write_text(json.dumps({"users": ["a", "b"], "user_data": {"a": user, "b": user}}))

    cell = Settings(method="fedavg", dataset="femnist", partition="natural", model="logistic", clients=2)
    ids = []
    for shift in (0.9, 0.9, 0.8):
        leaf(shift)
        ids.append(Identities(tmp_path).of(cell))
    assert ids[0] == ids[1] != ids[2]


def test_every_set_that_the_user_puts_there_is_among_them() -> None:
    placed = {name for name, source in SOURCES.items() if source.place}
    assert placed <= set(UNVERIFIED) <= set(SOURCES)


def test_the_files_of_such_a_set_lie_in_the_folders_that_are_watched() -> None:
    for name, folders in UNVERIFIED.items():
        pattern = SOURCES[name].place
        assert not pattern or all(
            f"{folder}/".startswith(pattern.partition("*")[0]) or pattern.startswith(f"{folder}/") for folder in folders
        )
