"""Parts that commands share: their class, their beginning, arguments that several have, and tables in a terminal."""

import contextlib
import functools
import inspect
import shlex
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from bench.errors import UserError, refusing_exits
from bench.runs.interrupts import end_at_once
from bench.runs.options import SessionOptions

if TYPE_CHECKING:
    import pandas as pd

    from bench.results.results import CellView

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
PluginFiles = Annotated[
    list[Path] | None,
    typer.Option("--plugin", metavar="FILE.py", help="Load methods, data sets, partitions or models; repeatable."),
]
Only = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE[,...]", help="These cells only, e.g. method=scd,seed=0; repeatable."),
]
DryRun = Annotated[bool, typer.Option(help="Only count the cells and estimate their cost.")]
MeasureRounds = Annotated[bool, typer.Option(help="In a dry run: time rounds, for a minute at most.")]


class _Command(TyperCommand):
    """A command that refuses an option given twice, of which Typer would silently take the last."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for option, count in Counter(order).items():
            if count == 1 or not isinstance(option, TyperOption) or option.multiple:
                continue
            if not option.is_flag or option.secondary_opts:  # a switch without its opposite says the same twice
                raise UserError(f"{option.opts[0]} is given {count} times, and only one can count: give it once")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        if signal.getsignal(signal.SIGINT) is end_at_once:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with refusing_exits():  # commands themselves raise `typer.Exit`
                return super().invoke(ctx)
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)
            raise typer.Exit(130) from None


class Commands(typer.Typer):
    """A group of such commands."""

    def command(self, name: str | None = None, **options: Any) -> Callable[..., Any]:
        return super().command(name, **{"cls": _Command, **options})


class CommandGroups(TyperGroup):
    """The whole command, whose help lists its commands under the headings that they were registered with."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, self.commands))
        lines: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            line = name.ljust(width), command.get_short_help_str(formatter.width - width - 6)
            lines.setdefault(getattr(command, "rich_help_panel", ""), []).append(line)
        for heading, commands in lines.items():
            with formatter.section(heading):
                formatter.write_dl(commands)


def with_session_options(without: Collection[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a session, which it gets as its argument `options`; Typer reads its signature.

    Args:
        without: names of those that the command does not have.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        declared = [field for field in fields(SessionOptions) if field.name not in without]
        signature = inspect.signature(command)
        parameters = {name: each for name, each in signature.parameters.items() if name != "options"}
        for field in declared:
            kind = _as_typer_reads(field.type)
            default = None if field.default == () else field.default
            parameters[field.name] = inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
            )

        @functools.wraps(command)
        def call(**given: Any) -> None:
            options = SessionOptions.of({field.name: given.pop(field.name, None) for field in declared})
            command(**given, options=options)

        call.__signature__ = signature.replace(parameters=list(parameters.values()))  # type: ignore[attr-defined]
        return call

    return decorate


def _as_typer_reads(declared: Any) -> Any:
    """The declared type, but for a list as Typer has them, and text for words: `SessionOptions` refuses wrong ones, in
    the same words as from Python."""
    kind, *notes = get_args(declared)
    if get_origin(kind) is Literal:
        kind = str
    elif get_origin(kind) is tuple:
        kind = list[str] | None
    return Annotated[kind, *notes]


def required(kind: str, option: str = "") -> Any:
    """A callback that refuses a missing grid or study with the names of those that the working folder has."""

    def refuse(context: typer.Context, name: str) -> str:
        if not name and not context.resilient_parsing:
            from bench.config.named_files import missing_option

            raise missing_option(kind, option, str(context.info_name))
        return name

    return refuse


@contextlib.contextmanager
def starting(text: str, *, quiet: bool) -> Iterator[None]:
    """Print `text`, and inside the block let Ctrl-C kill the process directly, as no work can be lost yet.

    Python's own handler would react only after the current C call, and loading a library takes seconds.
    """
    handler = signal.getsignal(signal.SIGINT)
    handled = threading.current_thread() is threading.main_thread() and callable(handler)
    if handled:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if not quiet:
        print(text, file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if handled:
            signal.signal(signal.SIGINT, handler)


def load_plugins(files: list[Path] | None) -> None:
    """Load the files of `--plugin`.

    Raises:
        UserError: one is not there, or cannot be imported.
    """
    from bench.plugin import load_file

    for file in files or []:
        load_file(file)


def one_cell(run: Path, cell: str) -> "CellView":
    """The cell of a run whose id begins with a text.

    Raises:
        UserError: there is none, or several.
    """
    from bench.results.results import load_run

    views = {view.id: view for view in load_run(run).cells if view.id.startswith(cell)}
    if len(views) != 1:
        problem = f"{run} has no cell {cell!r}"
        if views:
            problem = f"{run} has {len(views)} cells" + (f" that begin with {cell!r}" if cell else "; name one of them")
        raise UserError(f"{problem}. `bench status {shlex.quote(str(run))}` lists them.")
    return next(iter(views.values()))


def given(arguments: dict[str, Any], *others: str) -> dict[str, Any]:
    """Arguments for the Python function of a command's name: those that the user gave; a list not given is None.

    Args:
        arguments: all of the command.
        others: names of those that the function does not have.
    """
    return {name: value for name, value in arguments.items() if value is not None and name not in others}


def start_early(ray: str | None) -> None:
    """Start the server of the local workers before the command imports torch, because its start takes seconds."""
    from bench.runs.workers import start_server

    if ray is None:
        start_server()


def command_line() -> str:
    """The command as the user gave it."""
    return shlex.join(["bench", *sys.argv[1:]])


def print_table(table: "pd.DataFrame", *, index: bool = True) -> None:
    """Print a table for people, in parts that fit into the terminal, each with the table's index if that is shown."""
    width = shutil.get_terminal_size((160, 24)).columns  # in a pipe there is no terminal
    print(table.to_string(index=index, line_width=width))
