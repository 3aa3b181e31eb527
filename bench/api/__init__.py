"""Functions of `import bench` that run grids and studies, write reports and verify runs; here what they have in common.

Nothing slow is imported, so that wrong arguments are refused at once.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.config.grid_file import name_problem
from bench.errors import UserError


def refuse_text(**given: Sequence[str]) -> None:
    """Refuse a text where a list of texts is meant, as each of its letters would count as one.

    Args:
        given: arguments by their names.

    Raises:
        UserError: one is a text.
    """
    for name, value in given.items():
        if isinstance(value, str):
            raise UserError(f"{name}: give a list, for instance {name}=[{value!r}]")


def with_name(content: Mapping[str, Any], what: str, out: Path | str | None) -> Mapping[str, Any]:
    """The content of a file, with the name of the run folder if it has none itself.

    Args:
        what: what the content is of, for the message.

    Raises:
        UserError: it has none, and there is no folder.
    """
    return content if "name" in content else {"name": run_name(what, out), **content}


def run_name(what: str, out: Path | str | None) -> str:
    """Name a grid or study by its run folder; `what` it is is said where there is no folder.

    Raises:
        UserError: there is no folder.
    """
    if out is None:
        raise UserError(f"the {what} has no name: give it one (`name`), or say by `out` where its results go")
    name = os.path.basename(os.path.realpath(out))
    return what if name_problem(name) else name
