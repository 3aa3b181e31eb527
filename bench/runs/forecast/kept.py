"""Counts and speeds that one dry run keeps for the next, in files of the user's cache folder.

Nothing rests on them: one that cannot be read or written costs time.
"""

import contextlib
import functools
import json
import os
from pathlib import Path
from typing import Any

import torch

import bench
from bench.config.digests import code_digest, digest, versions
from bench.errors import UserError
from bench.plugin import METHODS

_MOST = 500  # entries of a file


def read_kept(name: str) -> dict[str, Any]:
    """The content of a file; empty if it cannot be read."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # RuntimeError: there is no home
        known = json.loads(_file(name).read_text(encoding="utf-8"))
        return known if isinstance(known, dict) else {}
    return {}


def keep(name: str, content: dict[str, Any]) -> None:
    """Write a file with the last of these entries, if that is possible."""
    with contextlib.suppress(OSError, RuntimeError):
        file = _file(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        scratch = file.with_name(f".{file.name}-{os.getpid()}")
        scratch.write_text(json.dumps(dict(list(content.items())[-_MOST:]), indent=1), encoding="utf-8")
        scratch.replace(file)


def method_key(method: str, *more: str) -> str | None:
    """A key of all that decides the counts of a method: its code, the harness's and torch's; None if it has no file."""
    try:
        return digest(" ".join([code_digest(METHODS, method), _harness(), torch.__version__, *more]))
    except UserError:
        return None


@functools.cache
def _harness() -> str:
    """The versions of the harness's files."""
    files = versions(Path(str(bench.__file__)).parent, 4)
    return digest(repr([file for file in files if file[0].suffix == ".py"]))


def _file(name: str) -> Path:
    """Raises RuntimeError: there is no home."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pfleague" / f"{name}.json"
