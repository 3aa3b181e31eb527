"""A module that is imported when a test first uses it: collecting imports no library that takes seconds."""

import importlib
from typing import Any


class Later:
    """Stands for the module of a name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        """Return an attribute of the module."""
        return getattr(importlib.import_module(self._name), attribute)
