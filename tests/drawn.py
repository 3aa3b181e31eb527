"""What a picture looks like once it is drawn: which of its words lie over others, and which reach over its edge."""

import itertools
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from matplotlib.figure import Figure
from matplotlib.text import Text

from reports.pictures import canvas


@contextmanager
def noted() -> Iterator[list[tuple[str, Any]]]:
    """Every text that is drawn meanwhile, with its box in pixels."""
    boxes: list[tuple[str, Any]] = []
    draw = Text.draw

    def note(text: Text, renderer: Any) -> None:
        if text.get_visible() and text.get_text().strip():
            boxes.append((text.get_text(), text.get_window_extent(renderer)))
        draw(text, renderer)

    with mock.patch.object(Text, "draw", note):
        yield boxes


def faults_of(texts: list[tuple[str, Any]], width: float, height: float) -> list[str]:
    """Texts that lie over others by more than a pixel, and texts that reach over the edge of a picture."""
    over = [
        f"{first!r} over {second!r}"
        for (first, a), (second, b) in itertools.combinations(texts, 2)
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1
    ]
    inside = [min(box.p0) > -2 and box.x1 < width + 2 and box.y1 < height + 2 for _, box in texts]
    return over + [f"{text!r} over the edge" for (text, _), fits in zip(texts, inside, strict=True) if not fits]


def faults(page: Figure) -> list[str]:
    """Faults of a picture as it is laid out."""
    with noted() as texts:
        page.draw_without_rendering()
    assert texts
    return faults_of(texts, *page.bbox.size)


def look_at_pictures() -> None:
    """Look at every picture of every report that this process makes, or one forked from it: faults are errors, and so
    are matplotlib's warnings, which would reach a user's terminal."""
    write = canvas._svg

    def look(page: Figure) -> bytes:
        with noted() as texts:
            content = write(page)
        found = faults_of(texts, *(72 * page.get_size_inches()))  # the dots of SVG
        assert not found, found
        return content

    canvas._svg = look
    warnings.filterwarnings("error", module=r"matplotlib|reports\.")
    logging.getLogger("matplotlib").addHandler(_Refusal(logging.WARNING))


class _Refusal(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise AssertionError(f"matplotlib warns: {record.getMessage()}")
