"""What the site's pages take from the command line: `<!-- bench datasets -->` becomes what that command prints.

A page in the repository has only the command, so that no copy of its output grows old.
"""

import re
from typing import Any

import typer
from typer.testing import CliRunner

from bench.cli.app import app


def on_page_markdown(markdown: str, **_: object) -> str:
    """Fill in a page's outputs; `COMMAND --help` stands for the help of all commands. MkDocs calls it for each page."""
    return re.sub(r"^<!-- bench (.+) -->$", lambda found: _printed(found[1]), markdown, flags=re.MULTILINE)


def _printed(command: str) -> str:
    """What a command prints, as a block.

    Raises:
        RuntimeError: it fails.
    """
    commands = [[*path, "--help"] for path in _paths()] if command == "COMMAND --help" else [command.split()]
    outputs = []
    for words in commands:
        done = CliRunner().invoke(app, words, prog_name="bench")
        if done.exit_code:
            raise RuntimeError(f"bench {command}: {done.output}")
        outputs.append(done.output.strip())
    return "\n\n".join(f"```text\n{output}\n```" for output in outputs)


def _paths() -> list[list[str]]:
    """The words of each command, such as `league run`."""
    commands: Any = typer.main.get_command(app)
    return [
        [name, *inner]
        for name, command in commands.commands.items()
        for inner in ([[part] for part in command.commands] if hasattr(command, "commands") else [[]])
    ]
