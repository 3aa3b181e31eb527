"""Check that a recorded path is one that the harness can have written (docs/verify.md).

A cell computed on another path need not have the same bytes, so a path that nobody can have had would excuse any
numbers.
"""

import re
from collections.abc import Callable
from typing import Any, get_args

from bench.engine.device import can_be_kernels
from bench.settings import Executor, Settings

_DEVICE = re.compile(r"cpu|(cuda|xpu|mps)(:\d+)?")
_TORCH = re.compile(r"\d+\.\d+\.\d+(a|b|rc|\.dev)?\d*(\+[\w.]+)?")


def _count(value: Any) -> bool:
    return type(value) is int and 1 <= value <= 1024


_CAN_BE: dict[str, Callable[[Any], bool]] = {
    "device": lambda value: isinstance(value, str) and bool(_DEVICE.fullmatch(value)),
    "models": lambda value: isinstance(value, str) and bool(_DEVICE.fullmatch(value)),
    "executor": lambda value: value in get_args(Executor),
    "precision": lambda value: isinstance(value, str),
    "lanes": _count,
    "intra_op_threads": _count,
    "torch": lambda value: isinstance(value, str) and bool(_TORCH.fullmatch(value)),
    "cpu": lambda value: isinstance(value, str) and can_be_kernels(value),
    "convolutions": lambda value: value == "lane kernels",
}
_ALWAYS = {"device", "executor", "torch"}
"""Cells of earlier versions have these."""


def impossible(path: dict[str, Any], settings: Settings) -> str | None:
    """Return the part of a finished cell's path that no harness can have written, or None."""
    if lacking := sorted(_ALWAYS - path.keys()):
        return f"its path does not say {', '.join(lacking)}"
    for name, value in path.items():
        if name not in _CAN_BE or not _CAN_BE[name](value):
            return f"its path has {name} {value!r}, which no computer is recorded as"
    if path.get("precision", settings.precision) != settings.precision:
        return f"its path has precision {path['precision']}, its settings {settings.precision}"
    return None
