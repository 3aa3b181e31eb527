"""The parts that a page is made of, and its HTML: one file that needs nothing else."""

import base64
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from bench.citations import Citation
from reports.pictures.canvas import Picture
from reports.tables.table import Table

if TYPE_CHECKING:
    import jinja2
    import markupsafe

_TEMPLATES = Path(__file__).parents[1] / "templates"
_FILTER_ROWS = 8
"""Longer tables get a field on the page to filter their rows by."""


@dataclass(frozen=True)
class Section:
    """A part of the page; `points` are a list; what stands in `more` and in `parts` is folded away at first."""

    id: str
    title: str
    text: str = ""
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()
    more: tuple[Table, ...] = ()
    parts: tuple["Section", ...] = ()
    points: tuple[str, ...] = ()

    def named(self, suffix: str) -> "Section":
        """Copy of the section whose names, with `suffix`, clash with no other protocol's."""
        return replace(
            self,
            id=self.id + suffix,
            tables=tuple(replace(table, id=table.id + suffix) for table in self.tables),
            pictures=tuple(replace(picture, name=picture.name + suffix) for picture in self.pictures),
            more=tuple(replace(table, id=table.id + suffix) for table in self.more),
            parts=tuple(part.named(suffix) for part in self.parts),
        )

    def all(self) -> Iterator["Section"]:
        """The section itself and all parts below it."""
        yield self
        for part in self.parts:
            yield from part.all()


def rendered(
    title: str,
    summary: str,
    sections: Sequence[Section],
    remarks: Sequence[str] = (),
    provenance: Sequence[Sequence[tuple[str, str]]] = (),
    citation: Citation | None = None,
) -> str:
    """The HTML of a page.

    Args:
        title, summary: words at its top, and `remarks` below them, each a note.
        sections: the parts, in their order.
        provenance: of each run, where it comes from, as names and texts; empty: the page has no such part.
        citation: what to cite; None: the page has no such part.
    """
    return (
        environment()
        .get_template("page.html")
        .render(
            title=title,
            summary=summary,
            remarks=remarks,
            sections=sections,
            provenance=provenance,
            citation=citation,
            data_uri=_data_uri,
            filter_rows=_FILTER_ROWS,
        )
    )


def _data_uri(svg: bytes) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()


@cache
def environment(folder: Path = _TEMPLATES, *, escaped: bool = True) -> "jinja2.Environment":
    """Templates of a folder; an unknown name is an error. In those of pages every value is escaped."""
    import jinja2

    engine = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=escaped,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=escaped,
        keep_trailing_newline=not escaped,
    )
    engine.filters["code"] = _code
    return engine


def _code(text: str) -> "markupsafe.Markup":
    """A sentence, escaped, in which what stands in backticks is set as code."""
    import markupsafe

    return markupsafe.Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(markupsafe.escape(text))))
