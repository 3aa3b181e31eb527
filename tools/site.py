"""What the site's pages take from elsewhere: `<!-- bench datasets -->` becomes what that command prints.

A page in the repository has only the command, or the name of a file with a table, so that no copy grows old.
"""

import re
from pathlib import Path
from typing import Any

import typer
import yaml
from typer.testing import CliRunner

from bench.cli.app import app


def on_page_markdown(markdown: str, **_: object) -> str:
    """Fill in a page's outputs and tables; MkDocs calls it for each page.

    `<!-- bench COMMAND --help -->` stands for the help of all commands, `<!-- table FILE KEY -->` for one of a file.
    """
    markdown = re.sub(r"(?m)^<!-- table (\S+) (\w+) -->$", lambda mark: _table(*mark.groups()), markdown)
    return re.sub(r"(?m)^<!-- bench (.+) -->$", lambda mark: _printed(mark[1]), markdown)


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


def _table(file: str, key: str) -> str:
    """The mistakes and messages under a key of a file in docs/."""
    text = (Path(__file__).parents[1] / "docs" / file).read_text(encoding="utf-8")
    rows = [("mistake", "message"), ("---", "---"), *yaml.safe_load(text)[key].items()]
    return "\n".join(f"| {mistake} | {_as_text(message)} |" for mistake, message in rows)


def _as_text(text: str) -> str:
    """Escape outside code what Markdown would take for a link or for bold text."""
    parts = text.split("`")
    return "`".join(part if i % 2 else re.sub(r"([\[_])", r"\\\1", part) for i, part in enumerate(parts))


def _paths() -> list[list[str]]:
    """The words of each command, such as `league run`."""
    commands: Any = typer.main.get_command(app)
    return [
        [name, *inner]
        for name, command in commands.commands.items()
        for inner in ([[part] for part in command.commands] if hasattr(command, "commands") else [[]])
    ]
