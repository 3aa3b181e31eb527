"""The commands in tables, group by group: `python docs/examples/commands_table.py > docs/commands.md`."""

import re

import typer

from bench.cli.app import app

HEAD = """# Commands

*For users of the terminal. You can find the command for a task here; `bench COMMAND --help` says what it takes.*

A `GRID` is a file or a built-in grid's name; a `RUN` is the folder that `bench run --out` wrote. Exit status 0 means
done, 1 that something failed or is damaged, 2 that the command was refused before it began, 130 that you stopped it; 3
of `bench verify`, that no cell could be confirmed.
`python docs/examples/commands_table.py` makes this page.
"""


def sentence(text: str) -> str:
    """The first sentence of a command's help."""
    return " ".join(text.split()).partition(". ")[0].removesuffix(".")


def argument(parameter: typer.core.TyperArgument | typer.core.TyperOption) -> str:
    """What a command needs beside its name; empty for options that may be left out."""
    metavar = re.sub(r" *\| *", " or ", re.sub(r"[\[\]]", "", parameter.metavar or parameter.name.upper()))
    if isinstance(parameter, typer.core.TyperOption):
        needed = parameter.required or parameter.name in ("grid", "study")
        return f"{parameter.opts[0]} {metavar}" if needed else ""
    return "" if parameter.hidden else metavar


def main() -> None:
    """Print the page."""
    whole = typer.main.get_command(app)
    groups: dict[str, list[str]] = {}
    for name, command in whole.commands.items():
        lines = groups.setdefault(command.rich_help_panel, [])
        for inner, part in getattr(command, "commands", {"": command}).items():
            usage = " ".join(filter(None, ["bench", name, inner, *map(argument, part.params)]))
            lines.append(f"| `{usage}` | {sentence(part.help)} |")
    print(HEAD)
    for heading, lines in groups.items():
        print("\n".join([f"## {heading}", "", "| command | what it does |", "|---|---|", *lines, ""]))


if __name__ == "__main__":
    main()
