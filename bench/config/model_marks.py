"""Marks in the ids of cells whose own models compute other numbers than in earlier versions, by what their code calls.

A model is not built for an id, as its samples need not be there. So its code is read, file by file as for its digest.
"""

import ast
import functools
import inspect
from collections.abc import Iterator
from pathlib import Path

from bench.config.code_digests import is_own, sources
from bench.config.file_digests import version
from bench.plugin import MODELS
from bench.settings import Settings


def model_marks(settings: Settings) -> list[str]:
    """Marks of a cell's own models, sorted.

    - `statistics`: the code registers a persistent buffer, or asks InstanceNorm for statistics. Since the mark, what a
      network assigns to a buffer is kept, and batches that move it are not padded.
    - `padding`: the code gives an embedding a `padding_idx`. Since the mark, the row of that token starts at zero.

    The code of other packages is not read: a network of theirs that the user's code wraps has no mark.
    """
    marks: set[str] = set()
    for name in {settings.model, *settings.architectures}:
        item = MODELS.get(name)
        if is_own(MODELS, name) and (file := inspect.getsourcefile(item)):
            for path in sources(item.__module__, Path(file)).values():
                marks |= _marks(*version(path))
    return sorted(marks)


@functools.cache
def _marks(path: Path, mtime: int, size: int) -> frozenset[str]:
    calls = (node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Call))
    return frozenset(mark for call in calls for mark in _marks_of(call))


def _marks_of(call: ast.Call) -> Iterator[str]:
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    options, count = {keyword.arg for keyword in call.keywords}, len(call.args)
    buffer = {"register_buffer": 2, "Buffer": 1}.get(name)  # positional arguments before `persistent`
    statistics = name.startswith("InstanceNorm") and ("track_running_stats" in options or count > 4)
    if statistics or (buffer is not None and count <= buffer and "persistent" not in options):
        yield "statistics"
    if "padding_idx" in options or (name == "Embedding" and len(call.args) > 2):
        yield "padding"
