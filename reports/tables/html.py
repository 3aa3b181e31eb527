"""The template engine of the page and its tables."""

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jinja2
    import markupsafe


@cache
def environment() -> "jinja2.Environment":
    """Templates of `reports/templates`; every value is escaped, an unknown name is an error."""
    import jinja2

    engine = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parents[1] / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    engine.filters["code"] = _code
    return engine


def _code(text: str) -> "markupsafe.Markup":
    """A sentence, escaped, in which what stands in backticks is set as code."""
    import markupsafe

    return markupsafe.Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(markupsafe.escape(text))))
