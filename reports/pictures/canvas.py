"""The parts that all pictures have in common: panels, colours and legends.

Same bytes every time; colours of Okabe and Ito (2008) for colour-blind readers.
"""

import io
import itertools
import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FixedLocator, FuncFormatter, LogFormatterMathtext, LogLocator, NullFormatter

from reports.reading.load import PM, Store
from reports.tables.accuracy import reference

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

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

_SIZE = 9.0  # points
STYLE: dict[str, Any] = {
    "font.size": _SIZE,
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
_PAGE = 11.0  # inches
_WIDEST = 1.3  # of the width that is asked for
_LINE = 0.19  # inches of a legend's entry
_TITLE_LINE = 0.15  # inches
_TITLE_LINES = 3  # at most
_TICKS = 0.45  # inches of the numbers beside a panel
_NAMES = 0.42  # of a panel's width that names beside it may take
UPRIGHT = 1.6  # inches of a name that stands upright, at most
_FOOT = 0.6  # inches of a bar of colours below all panels
SMALL = 7.5  # points: notes inside a panel
_NUMBERS = 5  # of an axis, about
_LEAST_LETTERS = 3  # of a name, however narrow its place


@dataclass(frozen=True)
class Picture:
    """A figure on its way to files and page.

    Attributes:
        name: of its files.
        title, caption: words around it.
        svg, png: its files.
        share: of the page's width that it takes.
        how: how what is drawn was computed; on a page it opens on a click.
    """

    name: str
    title: str
    caption: str
    svg: bytes
    png: bytes
    share: float = 1.0
    how: str = ""


@cache
def inches(text: str, size: float = _SIZE, weight: str = "normal") -> float:
    """Width of a text as it is drawn."""
    width: float = text_to_path.get_text_width_height_descent(text, FontProperties(size=size, weight=weight), False)[0]
    return width / 72


def shortened(names: Iterable[str], room: float, size: float = _SIZE) -> dict[str, str]:
    """Names that take `room` inches at most, by the whole ones: cut in their middle if need be, and no two alike."""
    short: dict[str, str] = {}
    for name in names:
        signs = itertools.chain([""], (f" #{k}" for k in itertools.count(2)))
        texts = (_cut_middle(name, sign, room, size) for sign in signs)
        short[name] = next(text for text in texts if text not in short.values())
    return short


def _cut_middle(name: str, sign: str, room: float, size: float) -> str:
    text, kept = name + sign, len(name)
    while inches(text, size) > room and kept > _LEAST_LETTERS:
        kept = min(kept - 1, int(kept * room / inches(text, size)) + 1)
        head = math.ceil(0.6 * kept)
        text = f"{name[:head].rstrip(' ,')}…{name[len(name) - kept + head :].lstrip(' ,')}{sign}"
    return text


def style_context() -> AbstractContextManager[None]:
    """Matplotlib's settings under which every picture is drawn and kept: a reader's matplotlibrc changes no byte."""
    values: Any = {**mpl.rcParamsDefault, **STYLE}
    return mpl.rc_context(values)


@contextmanager
def drawing(
    panels: Sequence[str], blocks: int, panel: tuple[float, float] = PANEL, *, share: bool = True
) -> "Iterator[tuple[Figure, list[Axes]]]":
    """Axes for `blocks` x `panels`, a block after the other, at most four side by side.

    Args:
        panels: what stands in them.
        blocks: how often.
        panel: width and height of one, in inches, about.
        share: whether the panels of a block have the same y axis.
    """
    count = blocks * len(panels)
    lines = 1 if count <= _ACROSS else math.ceil(len(panels) / _ACROSS)  # of a block
    across = math.ceil(len(panels) / lines)
    rows, columns = (1, count) if count <= _ACROSS else (blocks * lines, across)
    width = min(_WIDEST * panel[0], _PAGE / columns)
    with style_context():
        canvas = Figure((columns * width, rows * panel[1] + 0.25), layout="constrained")
        grid = canvas.add_gridspec(rows, columns)
        axes: list[Axes] = []
        for block, k in itertools.product(range(blocks), range(len(panels))):
            place = divmod(block * lines * across + k, columns)
            axis = canvas.add_subplot(grid[place], sharey=axes[-k] if share and k else None)
            axis.locator_params(nbins=_NUMBERS)
            if share and k % across:
                axis.tick_params(labelleft=False)
                axis.yaxis.label.set_visible(False)
            axes.append(axis)
        yield canvas, axes


def legend(canvas: Figure, entries: dict[str, dict[str, Any]]) -> None:
    """Give all panels one legend below them, by label; what is grey is one entry.

    Args:
        canvas: the drawing.
        entries: styles of lines, of points or of bars.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    quiet = [style for style in entries.values() if QUIET in style.values()]
    shown = {label: style for label, style in entries.items() if QUIET not in style.values()}
    if quiet:
        shown[f"{len(quiet)} others"] = quiet[0]
    handles = [Patch(**style) if "hatch" in style else Line2D([], [], **style) for style in shown.values()]
    labels = shortened(shown, canvas.get_figwidth() - 0.7).values()
    columns = max(1, int(canvas.get_figwidth() / (0.65 + max(map(inches, labels), default=0.0))))
    canvas.set_figheight(canvas.get_figheight() + 0.1 + _LINE * math.ceil(len(labels) / columns))
    canvas.legend(handles, labels, loc="outside lower center", ncols=min(columns, max(1, len(labels))))


def colour_bar(canvas: Figure, image: Any, axes: "list[Axes]", label: str) -> None:
    """Explain an image's colours below all panels."""
    canvas.set_figheight(canvas.get_figheight() + _FOOT)
    canvas.colorbar(image, ax=axes, location="bottom", shrink=0.8, aspect=40, pad=0.02, label=label)


def finish(canvas: Figure, name: str, title: str, caption: str, how: str = "") -> Picture:
    """Lay a drawing out and keep it in both formats."""
    lay_out(canvas)
    return saved(canvas, name, title, caption, how)


def saved(canvas: Figure, name: str, title: str, caption: str, how: str = "") -> Picture:
    """Keep a drawing as it is laid out, in both formats."""
    png = io.BytesIO()
    canvas.savefig(png, format="png", metadata={"Software": None}, dpi=160)
    share = min(1.0, canvas.get_figwidth() / _PAGE)
    return Picture(name, title, caption, _svg(canvas), png.getvalue(), round(share, 3), how)


def lay_out(canvas: Figure) -> None:
    """Fold titles, cut names and leave out notes that would lie over others."""
    panels = {axis: place for axis in canvas.axes if (place := axis.get_subplotspec())}  # others are bars of colours
    rows, columns = next(iter(panels.values())).get_gridspec().get_geometry()
    lines = max(_fit_words(axis, canvas.get_figwidth() / columns) for axis in panels)
    for bar in (axis for axis in canvas.axes if axis not in panels):
        _fit_ticks(bar.xaxis, canvas.get_figwidth())
    canvas.set_figheight(canvas.get_figheight() + _TITLE_LINE * lines * rows)
    canvas.draw_without_rendering()
    canvas.set_layout_engine(None)  # not "none": for its placeholder each file is drawn twice
    for axis in canvas.axes:
        seen: list[Any] = []
        for text in axis.texts:
            box = text.get_window_extent()
            text.set_visible(not any(box.overlaps(other) for other in seen))
            seen += [box] if text.get_visible() else []


def _fit_words(axis: "Axes", width: float) -> int:
    """Make the words at a panel fit into so many inches, or neighbours' would run into each other; return the number
    of lines that they take beyond two."""
    names = _fit_ticks(axis.yaxis, _NAMES * width)
    inner = width - max([_TICKS, *(0.25 + inches(name) for name in names)])
    upright = any(label.get_rotation() == 90 for label in axis.get_xticklabels())
    _fit_ticks(axis.xaxis, UPRIGHT if upright else inner / max(1, len(axis.get_xticks())))
    title, below = _folded(axis.get_title(), inner, "bold"), _folded(axis.get_xlabel(), inner)
    axis.set(title=title, xlabel=below, ylabel=_folded(axis.get_ylabel(), 1.8))
    return title.count("\n") + below.count("\n")


def _fit_ticks(side: "Axis", room: float) -> list[str]:
    """Cut the words at an axis' ticks to so many inches, and return them; numbers stay, but none is a formula."""
    locator, formatter = side.get_major_locator(), side.get_major_formatter()
    if isinstance(formatter, LogFormatterMathtext):
        if isinstance(locator, LogLocator):
            low, high = sorted(side.get_view_interval())
            locator.set_params(subs=(1,) if high > 50 * low else (1, 2, 5) if high > 5 * low else range(1, 9))
        side.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        side.set_minor_formatter(NullFormatter())
    elif isinstance(locator, FixedLocator) and isinstance(formatter, FuncFormatter):
        places = locator.tick_values(0, 1)
        names = [formatter(place) for place in places]
        short = shortened(names, room, float(side.get_major_ticks()[0].label1.get_fontsize()))
        side.set_ticks(places, [short[name] for name in names])
        return list(short.values())
    return []


def _folded(text: str, room: float, weight: str = "normal") -> str:
    """A text on at most three lines of about so many inches."""
    if inches(text, weight=weight) <= room:
        return text
    letters = max(_LEAST_LETTERS, int(0.9 * len(text) * room / inches(text, weight=weight)))
    return "\n".join(textwrap.wrap(text, letters, max_lines=_TITLE_LINES, placeholder="…"))


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
    """A colour per task."""
    many = [mpl.colors.to_hex(mpl.colormaps["turbo"](x)) for x in np.linspace(0.05, 0.95, len(store.tasks))]
    return dict(zip(store.tasks, COLOURS if len(store.tasks) <= len(COLOURS) else many, strict=False))


def _mean(store: Store, row: str) -> float:
    scores = [store.scores(row, task, PM) for task in store.tasks]
    return float(np.mean([np.mean(list(units.values())) for units in scores])) if all(scores) else -math.inf


def _svg(canvas: Figure) -> bytes:
    file = io.BytesIO()
    canvas.savefig(file, format="svg", metadata={"Date": None, "Creator": None}, dpi=160)
    return file.getvalue()
