"""A page's HTML from its sections: one file that needs nothing else."""

import base64
from collections.abc import Sequence

from bench.citations import Citation
from reports.page.sections import Section
from reports.tables.html import environment
from reports.tables.table import FILTER_ROWS


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
            filter_rows=FILTER_ROWS,
        )
    )


def _data_uri(svg: bytes) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()
