"""The ids of cells whose data only reading them tells: those of the user's own code. `test_cell_data` has files."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bench.cluster.requirements import check_node, needs_of
from bench.config.identity import UNVERIFIED, cell_id, declared_checksum
from bench.data import Dataset
from bench.federation.cell_identity import Identities
from bench.plugin import DATASETS, MODELS
from bench.rng import generator
from bench.runs.plan import plan
from bench.settings import Settings
from datasets.assemble import assemble
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


class Pretrained(nn.Module):
    """A model whose constructor reads a body from a file and draws a head."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.body = nn.Linear(4, 3)
        self.gain = nn.Parameter(torch.ones(3))
        self.head = nn.Linear(3, 3)
        if file.exists():
            self.load_state_dict(torch.load(file), strict=False)

    def features(self, x: Tensor) -> Tensor:
        out: Tensor = torch.relu(self.body(x)) * self.gain
        return out

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x))
        return out


def test_weights_that_a_constructor_reads_are_part_of_the_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, register: Callable[[str, Dataset], None]
) -> None:
    """By content: the same weights in another file are the same cell, one number more is another. A model without
    such weights keeps its id, and so does a cell of our own models."""
    file = [tmp_path / "first.pt"]
    register("notes", notes())
    monkeypatch.setitem(MODELS._items, "read", lambda shape, classes: Pretrained(file[0]))
    cell = CELL.model_copy(update={"model": "read"})
    mixed = CELL.model_copy(update={"model": "mlp", "client_models": ("mlp", "read")})

    def ids() -> tuple[str, str, str]:
        return tuple(planned.id for planned in plan([cell, mixed, CELL], Path(), download=False))  # type: ignore[return-value]

    drawn = ids()
    assert drawn[0] == cell_id(cell, " ".join([declared_checksum(cell), *Identities(Path()).content(CELL)]))
    torch.save({"body.weight": torch.arange(12.0).reshape(3, 4)}, file[0])
    read = ids()
    shutil.copy(file[0], tmp_path / "second.pt")
    file[0] = tmp_path / "second.pt"
    assert ids() == read
    needs = needs_of([cell], tmp_path)
    assert check_node(needs)[0] == ""
    torch.save({"body.weight": torch.arange(12.0).reshape(3, 4) + torch.eye(3, 4) / 8}, file[0])
    other = ids()
    assert "model 'read' starts with other weights" in check_node(needs)[0]  # as a node that has this file
    torch.save({"gain": torch.tensor([1.0, 2.0, 1.0])}, file[0])
    gained = ids()
    assert [len(set(of_cell)) for of_cell in zip(drawn, read, other, gained, strict=True)] == [4, 4, 1]


def test_every_set_that_the_user_puts_there_is_known_by_content_and_its_folders_are_watched() -> None:
    assert {name for name, source in SOURCES.items() if source.place} <= set(UNVERIFIED) <= set(SOURCES)
    for name, folders in UNVERIFIED.items():
        pattern = SOURCES[name].place
        assert not pattern or all(
            f"{folder}/".startswith(pattern.partition("*")[0]) or pattern.startswith(f"{folder}/") for folder in folders
        )
