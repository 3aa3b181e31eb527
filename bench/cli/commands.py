"""The commands' class: an option that means one thing is given once."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperOption

from bench.errors import UserError, refusing_exits


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
        with refusing_exits():  # commands themselves raise `typer.Exit`
            return super().invoke(ctx)


class Commands(typer.Typer):
    """A group of such commands."""

    def command(self, name: str | None = None, **options: Any) -> Callable[..., Any]:
        return super().command(name, **{"cls": _Command, **options})
