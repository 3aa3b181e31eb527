"""Protocols: built-in grids beside published numbers, with a source for every setting (`protocols/*.yaml`).

A cell's settings are the protocol's if they are those of the built-in grid: only then does its result stand beside the
published number.
"""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bench.config.grid import load_grid
from bench.errors import UserError, did_you_mean
from bench.settings import PRESENTATION, Settings
from reports.reading.names import flat

FOLDER = Path(__file__).parent / "protocols"

SettingStanding = Literal["known", "assumed", "deviating"]
STANDINGS: tuple[SettingStanding, ...] = ("known", "assumed", "deviating")

FREE = PRESENTATION | {"seed"}
"""Settings in which a cell may differ from the protocol's: names, scores, and which trial it is."""


class Point(BaseModel):
    """A statement of some settings: their source, or in what ours is not the published code.

    Attributes:
        of: names of settings (`rounds`, `ditto.lam`), or words for what no setting changes.
        standing: known, assumed or deviating.
        source: from where the values are, or what the deviation is.
        only: settings and their values in the scenarios that it is about; empty: all.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    of: list[str] = Field(min_length=1)
    standing: SettingStanding = Field(alias="is")
    source: str
    only: dict[str, list[Any]] = Field(default_factory=dict)

    def concerns(self, cell: Settings) -> bool:
        """Whether it is about this cell's scenario."""
        return all(getattr(cell, name) in values for name, values in self.only.items())


class Short(BaseModel):
    """A small part of a protocol, on one data set, quick to run, which stands beside no published number."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    grid: str
    set: list[str]


class Protocol(BaseModel):
    """A published protocol.

    Attributes:
        name, title: its id and what it is.
        of: version and place of what was published.
        grids: the built-in grids that are its settings, by the id of their printed table.
        points: the sources of settings, and the deviations.
        short: the part that a small machine can run.
        verdict: what a number of ours can say beside a published one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    title: str
    of: str
    grids: dict[str, str]
    points: list[Point]
    short: Short
    verdict: str

    def standings(self, cell: Settings, *, local: bool) -> dict[SettingStanding, list[str]]:
        """The names of the points about all scenarios, or of the `local` ones about this cell's, by standing."""
        points = [point for point in self.points if bool(point.only) is local and point.concerns(cell)]
        return {
            standing: [name for point in points if point.standing == standing for name in point.of]
            for standing in STANDINGS
        }


def protocols() -> dict[str, Protocol]:
    """All protocols, by name."""
    return {path.stem: _read(path) for path in sorted(FOLDER.glob("*.yaml"))}


def protocol(name: str) -> Protocol:
    """The protocol of that name.

    Raises:
        UserError: there is none.
    """
    known = protocols()
    if name not in known:
        raise UserError(f"unknown protocol {name!r}.{did_you_mean(name, list(known))} Known: {', '.join(known)}")
    return known[name]


def differences(cell: dict[str, Any], frozen: dict[str, Any]) -> Iterator[str]:
    """Settings of a cell that are not the protocol's, each as text.

    Args:
        cell, frozen: settings of ours and of the grid's cell for the same number (`reports.reading.names.flat`).
    """
    for name, value in frozen.items():
        if name not in FREE and _text(cell.get(name)) != _text(value):
            yield f"{name.removeprefix('hp.')} {_text(cell.get(name))} (protocol: {_text(value)})"


def _text(value: Any) -> str:
    """A setting as text, the same whether it comes from a grid or from a run's file."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


@cache
def frozen_cells(table: str) -> list[dict[str, Any]]:
    """The settings of all cells of the protocol's grid for a printed table; none if it is of no protocol."""
    names = [known.grids[table] for known in protocols().values() if table in known.grids]
    return [flat(cell) for name in names for cell in load_grid(name).cells]


@cache
def _read(path: Path) -> Protocol:
    try:
        return Protocol(**yaml.safe_load(path.read_text(encoding="utf-8")))
    except (ValidationError, TypeError) as error:
        raise UserError(f"{path}: not a file of a protocol: {error}") from None
