"""Two small methods and a server rule with fixed hyperparameters, so that messages can be compared in full."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

import bench.plugin
from bench.config.grid import Grid, load_grid
from bench.method import Hyperparameters, Method, ServerRule, hp
from bench.plugin import ATTACKS, CHANNELS, METHODS, SERVER_RULES


class Toy(Method):
    mixes_models = True

    class Hyper(Hyperparameters):
        tau: float = hp(0.2, gt=0, le=1)
        phases: int = hp(1, ge=1, static=True)
        personal: tuple[str, ...] = hp(("head",), static=True)
        mode: Literal["fast", "slow"] = hp("fast", static=True)


class Plain(Method):
    mixes_models = True


class Buffered(ServerRule):
    class Hyper(Hyperparameters):
        buffer: int = hp(10, ge=1, static=True)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for registry, items in ((METHODS, {"toy": Toy, "plain": Plain}), (SERVER_RULES, {"buffered": Buffered})):
        registry.names()  # load all methods first: one that is loaded during the test would stay registered after it
        for name, item in items.items():
            monkeypatch.setitem(registry._items, name, item)


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Grid]:
    """Load a grid from its text."""

    def from_text(text: str, *overrides: str) -> Grid:
        file = tmp_path / "grid.yaml"
        file.write_text(text, encoding="utf-8")
        return load_grid(str(file), list(overrides))

    return from_text


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Load a text as a plug-in, which is forgotten after the test."""
    for registry in (METHODS, CHANNELS, ATTACKS):
        assert registry.names()  # the built-in ones are not to be forgotten
        monkeypatch.setattr(registry, "_items", dict(registry._items))
    monkeypatch.setattr(bench.plugin, "_FILES", dict(bench.plugin._FILES))

    def load(text: str) -> Path:
        file = tmp_path / "mine.py"
        file.write_text(text)
        bench.plugin.load_file(file)
        return file

    return load
