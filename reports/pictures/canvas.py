"""The parts that all pictures have in common: panels, colours, legends, and the two widths in which a picture is kept.

A picture is drawn once and laid out twice: for a page, with the legend beside the panels, and for a phone, with few
panels side by side and the legend below. Same bytes every time; colours of Okabe and Ito (2008) for colour-blind
readers.
"""

import io
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure as MatplotlibFigure
from matplotlib.ticker import LogFormatterMathtext, LogFormatterSciNotation

from reports.reading.load import PM, Store
from reports.tables.accuracy import reference

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
DASHES = ("-", "--", "-.", ":")
"""Line styles: seven colours by four styles tell 28 methods apart, neighbours even without colour."""
MARKERS = "osD^vP*X<>ph"
HATCHES = ("", "/////")
"""Of bars: seven colours plain, then the same hatched."""
QUIET = "#b9c0c8"
"""The colour of methods that are many and not among the best."""

MOST_COLOURED = 12
"""Of more methods than these, the best and the reference have colours, and the others are one grey."""
_MAPS = ("Blues", "Oranges", "Greens", "Purples", "Reds", "Greys")

STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555b63",
    "xtick.color": "#333a42",
    "ytick.color": "#333a42",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e6ea",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "figure.facecolor": "white",
    "text.parse_math": False,  # labels are somebody else's, and a dollar in one is a dollar
    "svg.fonttype": "none",  # text stays text: a third of the size, and it can be searched and edited
    "svg.hashsalt": "pfleague",  # else names inside the SVG are random
}
PANEL = (3.1, 2.3)  # inches
_ACROSS = 4  # panels side by side at most
_PAGE, _PHONE = 11.0, 4.0  # inches
_LINE = 0.19  # inches of a legend's entry
_LETTER = 0.078  # inches of a letter in a legend, about
_BOLD = 0.072  # inches of a letter in a panel's title, about
_TICKS = 0.45  # inches of the numbers and words beside the first panel of a row


@dataclass(frozen=True)
class Picture:
    """A figure on its way to files and page.

    Attributes:
        name: of its files.
        title, caption: words around it.
        svg, png: as laid out for a page; `narrow`: SVG for a phone.
        share: of the page's width that it takes.
    """

    name: str
    title: str
    caption: str
    svg: bytes
    png: bytes
    narrow: bytes = b""
    share: float = 1.0


class PlainNumbers(LogFormatterSciNotation):
    """Numbers of a logarithmic axis without a formula: matplotlib says which ticks have one."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        """The number, or nothing."""
        return f"{x:g}" if super().__call__(x, pos) else ""


class Canvas(MatplotlibFigure):
    """A figure that knows its panels, so that they can be laid out twice.

    Attributes:
        blocks, panel, shared: arguments of `drawing`.
        key: styles of the legend's entries, by label (`legend`).
        least: inches that it must have, on a phone too: there it is scaled down.
    """

    blocks: list[list["Axes"]]
    panel: tuple[float, float]
    shared: bool
    key: dict[str, dict[str, Any]]
    least: float

    def arrange(self, width: float, across: int, *, beside: bool) -> None:
        """Lay the panels out, `across` side by side at most, on `width` inches at most, and put the legend there."""
        self.set_layout_engine("constrained")
        self._number_logarithms()
        width = max(width, self.least)
        for old in list(self.legends):
            old.remove()
        one_row = sum(map(len, self.blocks)) <= across
        lines = [math.ceil(len(block) / across) for block in self.blocks]
        columns = sum(map(len, self.blocks)) if one_row else max(map(_columns, self.blocks, lines))
        rows = 1 if one_row else sum(lines)
        aside = 0.5 + _LETTER * max(map(len, self.key), default=0)
        beside = beside and bool(self.key) and _LINE * (len(self.key) + 1) <= rows * self.panel[1] and aside < width / 3
        room = (width - (aside if beside else 0)) / columns
        self._fold_titles(int((room - _TICKS / columns) / _BOLD))
        scale = min(1.35, max(0.85, room / self.panel[0]))
        total = columns * min(room, 1.7 * self.panel[0]) + (aside if beside else 0)
        below = 0.0
        handles, labels = self._handles(), list(self.key)
        if beside:
            self.legend(handles, labels, loc="outside right upper")
        elif labels:
            beside_each_other = max(1, int(total / aside))
            below = 0.1 + _LINE * math.ceil(len(labels) / beside_each_other)
            self.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), beside_each_other))
        self.set_size_inches(total, rows * self.panel[1] * (scale if self.shared else 1) + 0.25 + below)
        self._place(rows, columns, lines, one_row=one_row)
        engine = self.get_layout_engine()
        assert engine is not None
        engine.execute(self)
        self.set_layout_engine(None)  # "none" would leave a placeholder, for which each file is drawn twice

    def _number_logarithms(self) -> None:
        for side in (side for axis in self.axes for side in (axis.xaxis, axis.yaxis)):
            if isinstance(side.get_major_formatter(), LogFormatterMathtext):
                side.set_major_formatter(PlainNumbers())
            if isinstance(side.get_minor_formatter(), LogFormatterMathtext):
                side.set_minor_formatter(PlainNumbers())

    def _fold_titles(self, letters: int) -> None:
        """Break titles that are wider than their panels, which would run into each other."""
        for axis in (axis for block in self.blocks for axis in block):
            axis.set_title(textwrap.fill(axis.get_title().replace("\n", " "), max(letters, 12)))

    def _place(self, rows: int, columns: int, lines: list[int], *, one_row: bool) -> None:
        grid = self.add_gridspec(rows, columns)
        top = left = 0
        for block, deep in zip(self.blocks, lines, strict=True):
            wide = len(block) if one_row else columns
            for k, axis in enumerate(block):
                line, place = divmod(k, wide)
                axis.set_subplotspec(grid[top + line, left + place])
                if self.shared:
                    axis.tick_params(labelleft=place == 0)
                    axis.yaxis.label.set_visible(place == 0)
                    below = block[k + wide] if k + wide < len(block) else None
                    axis.xaxis.label.set_visible(below is None or below.get_xlabel() != axis.get_xlabel())
            if one_row:
                left += wide
            else:
                top += deep

    def _handles(self) -> list[Any]:
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        return [Patch(**style) if "hatch" in style else Line2D([], [], **style) for style in self.key.values()]


def style_context() -> AbstractContextManager[None]:
    """Matplotlib's settings under which every picture is drawn and kept: a reader's matplotlibrc changes no byte."""
    values: Any = {**mpl.rcParamsDefault, **STYLE}
    return mpl.rc_context(values)


@contextmanager
def drawing(
    panels: Sequence[str], blocks: int, panel: tuple[float, float] = PANEL, *, share: bool = True
) -> "Iterator[tuple[Canvas, list[Axes]]]":
    """Axes for `blocks` x `panels`, a block after the other, at most four side by side.

    Args:
        panels: what stands in them.
        blocks: how often.
        panel: width and height of one, in inches, about.
        share: whether the panels of a block have the same y axis.
    """
    with style_context():
        canvas = Canvas(layout="constrained")
        canvas.panel, canvas.shared, canvas.least = panel, share, 0.6 * panel[0]
        canvas.key, canvas.blocks = {}, []
        places = iter(range(1, 1 + blocks * len(panels)))
        for _ in range(blocks):
            block: list[Axes] = []
            # Below each other at first: a colour bar as high as the sheet would be too wide to lay out.
            for _ in panels:
                sharey = block[0] if share and block else None
                block.append(canvas.add_subplot(blocks * len(panels), 1, next(places), sharey=sharey))
            canvas.blocks.append(block)
        yield canvas, [axis for block in canvas.blocks for axis in block]


def finish(canvas: Canvas, name: str, title: str, caption: str) -> Picture:
    """Finish a drawing and keep it in both formats and both widths."""
    small = 2 if canvas.panel[0] <= PANEL[0] and sum(map(len, canvas.blocks)) > 2 else 1
    canvas.arrange(_PHONE, small, beside=False)
    narrow = _svg(canvas)
    canvas.arrange(_PAGE, _ACROSS, beside=True)
    return saved(canvas, name, title, caption, narrow)


def saved(canvas: MatplotlibFigure, name: str, title: str, caption: str, narrow: bytes = b"") -> Picture:
    """Keep a drawing as it is laid out, in both formats."""
    png = io.BytesIO()
    canvas.savefig(png, format="png", metadata={"Software": None}, dpi=160)
    share = min(1.0, canvas.get_figwidth() / _PAGE)
    return Picture(name, title, caption, _svg(canvas), png.getvalue(), narrow, round(share, 3))


def legend(canvas: Canvas, entries: dict[str, dict[str, Any]]) -> None:
    """Give all panels one legend, by label; what is grey is one entry.

    Args:
        canvas: the drawing.
        entries: styles of lines, of points or of bars.
    """
    quiet = [style for style in entries.values() if QUIET in style.values()]
    canvas.key = {label: style for label, style in entries.items() if QUIET not in style.values()}
    if quiet:
        canvas.key[f"{len(quiet)} others"] = quiet[0]


def style_of(k: int) -> dict[str, Any]:
    """The k-th colour and dash."""
    return {"color": COLOURS[k % len(COLOURS)], "linestyle": DASHES[k % len(DASHES)]}


def styles(store: Store) -> dict[str, dict[str, Any]]:
    """Every row's line, the same in all pictures; of many rows only the best and the reference have colours."""
    quiet = {"color": QUIET, "linestyle": "-", "linewidth": 0.7, "zorder": 1.5}
    return {row: quiet if colour == QUIET else style_of(k) for row, (k, colour) in _coloured(store).items()}


def point_styles(store: Store) -> dict[str, dict[str, Any]]:
    """Every row's point: the colour of its line, and a marker that no other row with a colour has."""
    return {
        row: {"color": colour, "marker": "." if colour == QUIET else MARKERS[k], "ls": ""}
        for row, (k, colour) in _coloured(store).items()
    }


def bar_styles(store: Store) -> dict[str, dict[str, Any]]:
    """Every row's bar: the colour of its line, hatched where that colour comes again."""
    return {
        row: {"facecolor": colour, "hatch": HATCHES[k // len(COLOURS)], "edgecolor": "white", "linewidth": 0}
        for row, (k, colour) in _coloured(store).items()
    }


def _coloured(store: Store) -> dict[str, tuple[int, str]]:
    """Number and colour of every row; those in grey are not counted, and have 0."""
    rows = store.rows
    means = {row: _mean(store, row) for row in rows}
    first = sorted(rows, key=lambda row: -means[row])[: MOST_COLOURED - 1]
    chosen = [row for row in rows if len(rows) <= MOST_COLOURED or row in (*first, reference(store))]
    numbers = {row: (k, COLOURS[k % len(COLOURS)]) for k, row in enumerate(chosen)}
    return {row: numbers.get(row, (0, QUIET)) for row in rows}


def task_colours(store: Store) -> dict[str, str]:
    """A colour per task; tasks that differ in alpha only are shades of one map, the darker the smaller alpha.

    There are six maps: of more kinds of tasks, each task has a colour by itself.
    """
    groups: dict[str, list[str]] = {}
    for task in sorted(store.tasks, key=lambda task: -_alpha(task)):
        groups.setdefault(re.sub(r", α=[^,]*", "", task), []).append(task)
    if all(len(group) == 1 for group in groups.values()) or len(groups) > len(_MAPS):
        return dict(zip(store.tasks, _unordered(len(store.tasks)), strict=True))
    colours: dict[str, str] = {}
    for k, group in enumerate(groups.values()):
        shades = mpl.colormaps["viridis_r" if len(groups) == 1 else _MAPS[k]]
        low, high = (0.22, 0.97) if len(groups) == 1 else (0.4, 0.95)
        places = np.linspace(low, high, len(group)) if len(group) > 1 else [high]
        colours |= {task: mpl.colors.to_hex(shades(x)) for task, x in zip(group, places, strict=True)}
    return {task: colours[task] for task in store.tasks}


def _unordered(count: int) -> list[str]:
    if count <= len(COLOURS):
        return list(COLOURS[:count])
    return [mpl.colors.to_hex(mpl.colormaps["turbo"](x)) for x in np.linspace(0.05, 0.95, count)]


def _alpha(task: str) -> float:
    match = re.search(r"α=([^,]*)", task)
    return float(match[1]) if match else math.inf


def _mean(store: Store, row: str) -> float:
    scores = [store.scores(row, task, PM, "last") for task in store.tasks]
    return float(np.mean([np.mean(list(units.values())) for units in scores])) if all(scores) else -math.inf


def _columns(block: Sequence[Any], lines: int) -> int:
    return math.ceil(len(block) / lines) if lines else 1


def _svg(canvas: MatplotlibFigure) -> bytes:
    file = io.BytesIO()
    canvas.savefig(file, format="svg", metadata={"Date": None, "Creator": None}, dpi=160)
    return file.getvalue()
