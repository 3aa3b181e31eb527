"""The parts that all pictures have in common: panels, colours, legends, and the two widths in which a picture is kept.

A picture is drawn once and laid out twice: for a page, with the legend beside the panels, and for a phone, with few
panels side by side and the legend below. Same bytes every time; colours of Okabe and Ito (2008) for colour-blind
readers.
"""

import io
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure as MatplotlibFigure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from matplotlib.ticker import (
    FixedFormatter,
    FixedLocator,
    FuncFormatter,
    LogFormatterMathtext,
    LogLocator,
    MaxNLocator,
    NullFormatter,
)

from reports.reading.load import PM, Store
from reports.tables.accuracy import reference

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.text import Text

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
_PAGE, _PHONE = 11.0, 4.0  # inches
_LINE = 0.19  # inches of a legend's entry
_TICKS = 0.45  # inches of the numbers and words beside the first panel of a row
_NAMES = 0.42  # of a panel's width that names beside it may take
_BETWEEN = 0.12  # inches between two columns of a legend
UPRIGHT = 1.6  # inches of a name that stands upright, at most
_FOOT, _BAR = 0.6, 0.65  # inches of a bar of colours below all panels, and beside one
_TITLE_LINES = 3  # at most
_BOLD = "bold"
SMALL = 7.5  # points: notes inside a panel
_GAP = 4  # pixels between two numbers of an axis
_ALL = 1_000_000  # numbers of an axis: no limit
_NUMBERS = 8  # of an axis on which more would touch
_LOG_NUMBERS = 6  # of a logarithmic axis, at most
_LOG_STEPS = ((1, 2, 3, 4, 5, 6, 8), (1, 2, 5), (1, 3), (1,))  # in each decade, of which the first that fits is taken
_LEAST_LETTERS = 3  # of a name, however narrow its place


@dataclass(frozen=True)
class Picture:
    """A figure on its way to files and page.

    Attributes:
        name: of its files.
        title, caption: words around it.
        svg, png: as laid out for a page; `narrow`: SVG for a phone.
        share: of the page's width that it takes.
        how: how what is drawn was computed; on a page it opens on a click.
        names, narrow_names: the whole names of what had to be cut on a page and on a phone, by what stands there.
    """

    name: str
    title: str
    caption: str
    svg: bytes
    png: bytes
    narrow: bytes = b""
    share: float = 1.0
    how: str = ""
    names: tuple[tuple[str, str], ...] = ()
    narrow_names: tuple[tuple[str, str], ...] = ()


class Canvas(MatplotlibFigure):
    """A figure that knows its panels, so that they can be laid out twice.

    Attributes:
        blocks: the panels, a block after the other (`drawing`).
        panel, shared: about the inches of a panel's width and height, and whether those of a block have one y axis.
        key: styles of the legend's entries, by label (`legend`).
        named: texts in panels that have names in them (`name`).
        least: inches that it must have, on a phone too: there it is scaled down.
        foot, bar: inches of colours that are explained below all panels, and beside each.
        cut: whole names, by what stands for them where they had to be cut in the last layout.
    """

    def __init__(self, panel: tuple[float, float] = PANEL, *, shared: bool = True) -> None:
        super().__init__(layout="constrained")
        self.panel, self.shared, self.least = panel, shared, 0.6 * panel[0]
        self.blocks: list[list[Axes]] = []
        self.key: dict[str, dict[str, Any]] = {}
        self.named: list[tuple[Text, str, tuple[str, ...], float]] = []
        self.cut: dict[str, str] = {}
        self.foot = self.bar = 0.0
        self._given: list[tuple[Axes, str, str, str, list[str], list[str]]] = []

    def name(self, text: "Text", pattern: str, names: Iterable[str], share: float) -> None:
        """Have names written into a panel that are cut where they would be wider than a share of it.

        Args:
            text: where they are written.
            pattern: what is written, with `{}` for each name.
            names: in full.
            share: of the panel's width that the text may take.
        """
        self.named.append((text, pattern, tuple(names), share))

    def colour_bar(self, image: Any, axes: "Axes | list[Axes]", label: str = "") -> None:
        """Explain an image's colours beside its panel, or below all panels, whose titles have more room so."""
        if isinstance(axes, list):
            self.foot = _FOOT
            self.colorbar(image, ax=axes, location="bottom", shrink=0.8, aspect=40, pad=0.02, label=label)
        else:
            self.bar = _BAR
            self.colorbar(image, ax=axes, shrink=0.8)

    def arrange(self, width: float, across: int, *, beside: bool) -> None:
        """Lay the panels out, `across` side by side at most, on `width` inches at most, and put the legend there."""
        if not self._given:
            self._begin()
        self.set_layout_engine("constrained")
        width = max(width, self.least)
        self.cut = {}
        for old in list(self.legends):
            old.remove()
        one_row = sum(map(len, self.blocks)) <= across
        lines = [math.ceil(len(block) / across) for block in self.blocks]
        columns = (
            sum(map(len, self.blocks))
            if one_row
            else max(math.ceil(len(block) / count) for block, count in zip(self.blocks, lines, strict=True))
        )
        rows = 1 if one_row else sum(lines)
        labels = self._cut(self.key, width - 0.7)
        aside = 0.5 + max(map(inches, labels), default=0.0)
        room, panel_height = self._panel_size((width - aside) / columns)
        beside = beside and bool(labels) and _LINE * (len(labels) + 1) <= rows * panel_height and aside < width / 3
        if not beside:
            room, panel_height = self._panel_size(width / columns)
        total = columns * room + (aside if beside else 0)
        if total < aside:
            total = min(width, aside + _BETWEEN)
        folded = self._write_words(room, rows * panel_height)
        below = 0.0
        handles = self._handles()
        if beside:
            self.legend(handles, labels, loc="outside right upper")
        elif labels:
            beside_each_other = max(1, int(total / (aside + _BETWEEN)))
            below = 0.1 + _LINE * math.ceil(len(labels) / beside_each_other)
            self.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), beside_each_other))
        height = rows * (panel_height + folded) + 0.25 + self.foot + below
        self.set_size_inches(total, height)
        self._place(rows, columns, lines, one_row=one_row)
        engine = self.get_layout_engine()
        assert engine is not None
        engine.execute(self)
        if self._thin_out() or self.foot:  # before, the bar has no size
            engine.execute(self)
        self.set_layout_engine(None)  # not "none": for its placeholder each file is drawn twice

    def _panel_size(self, room: float) -> tuple[float, float]:
        """Inches of a panel's width and height where so many inches are its share of the width."""
        scale = min(1.35, max(0.85, room / self.panel[0])) if self.shared else 1
        widest = 1.15 if self.bar else 1.7  # a matrix is square, and its bar stands close to it
        return min(room, widest * self.panel[0]), scale * self.panel[1]

    def _begin(self) -> None:
        """Take panels away in which nothing is drawn, and keep the words as they were given: a layout may cut them."""
        panels = [axis for block in self.blocks for axis in block]
        empty = [axis for axis in panels if not axis.has_data()]
        for axis in empty if len(empty) < len(panels) else []:
            axis.remove()
        self.blocks = [drawn for block in self.blocks if (drawn := [axis for axis in block if axis.figure is self])]
        self._given = [
            (axis, axis.get_title(), axis.get_xlabel(), axis.get_ylabel(), _fixed(axis.xaxis), _fixed(axis.yaxis))
            for axis in self.axes
        ]
        for side in (side for axis in self.axes for side in (axis.xaxis, axis.yaxis)):
            if isinstance(side.get_major_formatter(), LogFormatterMathtext):  # what it writes is a formula
                side.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
                side.set_minor_formatter(NullFormatter())

    def _cut(self, names: Iterable[str], room: float, size: float = _SIZE) -> list[str]:
        short = shortened(names, room, size)
        self.cut |= {text: name for name, text in short.items() if text != name}
        return list(short.values())

    def _write_words(self, room: float, height: float) -> float:
        """Fold titles and labels, and cut names, to panels of a width; return the inches that folded ones take.

        Two neighbours' titles would run into each other, and long names leave no room for what is drawn.
        """
        lines = below_lines = 1
        for axis, title, below, beside, ticks, names in self._given:
            short = self._name_ticks(axis.yaxis, names, _NAMES * room)
            inner = room - self.bar - max([_TICKS, *(0.25 + inches(name) for name in short)])
            upright = any(label.get_rotation() == 90 for label in axis.get_xticklabels())
            self._name_ticks(axis.xaxis, ticks, UPRIGHT if upright else inner / max(1, len(ticks)))
            titles = self._folded(title, inner, _BOLD)
            lines = max(lines, len(titles))
            labels = self._folded(below, inner)
            below_lines = max(below_lines, len(labels))
            axis.set(title="\n".join(titles), xlabel="\n".join(labels))
            axis.set_ylabel("\n".join(self._folded(beside, max(1.2, height - 0.6))))
        for text, pattern, whole, share in self.named:
            most = (share * (room - _TICKS) - inches(pattern.replace("{}", ""), SMALL)) / len(whole)
            text.set_text(pattern.format(*self._cut(whole, most, SMALL)))
        return 0.15 * (lines + below_lines - 2)

    def _name_ticks(self, side: "Axis", names: list[str], room: float) -> list[str]:
        if not names:
            return []
        short = self._cut(names, room, float(side.get_major_ticks()[0].label1.get_fontsize()))
        side.set_major_formatter(FixedFormatter(short))
        return short

    def _folded(self, text: str, room: float, weight: str = "normal") -> list[str]:
        lines = folded(text, room, weight)
        if len(lines) > _TITLE_LINES:
            rest = " ".join(lines[_TITLE_LINES - 1 :])
            (last,) = shortened([rest], room, weight=weight).values()
            lines = [*lines[: _TITLE_LINES - 1], last]
            self.cut["\n".join(lines).replace("\n", " ")] = text
        return lines

    def _thin_out(self) -> bool:
        """Leave out numbers of axes and words in panels that would lie over others; whether any axis was changed."""
        changed = False
        for axis in self.axes:
            for side in (axis.xaxis, axis.yaxis):
                changed |= _thin_ticks(side)
            seen: list[Any] = []
            for text in axis.texts:
                text.set_visible(True)
                box = text.get_window_extent()
                text.set_visible(not any(box.overlaps(other) for other in seen))
                seen += [box] if text.get_visible() else []
        return changed

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


@cache
def inches(text: str, size: float = _SIZE, weight: str = "normal") -> float:
    """Width of a text as it is drawn."""
    width: float = text_to_path.get_text_width_height_descent(text, FontProperties(size=size, weight=weight), False)[0]
    return width / 72


def shortened(names: Iterable[str], room: float, size: float = _SIZE, weight: str = "normal") -> dict[str, str]:
    """Names that take `room` inches at most, by the whole ones: cut in their middle if need be, and no two alike."""
    short: dict[str, str] = {}
    for name in names:
        signs = itertools.chain([""], (f" #{k}" for k in itertools.count(2)))
        texts = (_cut_middle(name, sign, room, size, weight) for sign in signs)
        short[name] = next(text for text in texts if text not in short.values())
    return short


def _cut_middle(name: str, sign: str, room: float, size: float, weight: str) -> str:
    text, kept = name + sign, len(name)
    while inches(text, size, weight) > room and kept > _LEAST_LETTERS:
        kept = min(kept - 1, int(kept * room / inches(text, size, weight)) + 1)
        head = math.ceil(0.6 * kept)
        text = f"{name[:head].rstrip(' ,')}…{name[len(name) - kept + head :].lstrip(' ,')}{sign}"
    return text


def folded(text: str, room: float, weight: str = "normal") -> list[str]:
    """The lines of a text in so many inches; a word that is wider has a line of its own, and is cut."""
    lines: list[str] = []
    for word in text.split():
        (word,) = shortened([word], room, weight=weight).values()
        longer = f"{lines[-1]} {word}" if lines else ""
        if lines and inches(longer, weight=weight) <= room:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _fixed(side: "Axis") -> list[str]:
    """The words at an axis' ticks, where it has words and not numbers."""
    locator, formatter = side.get_major_locator(), side.get_major_formatter()
    if not isinstance(locator, FixedLocator) or not isinstance(formatter, FuncFormatter):
        return []
    return [formatter(place) for place in locator.tick_values(0, 1)]


def _thin_ticks(side: "Axis") -> bool:
    """Take numbers away until they do not touch, and leave a logarithmic axis six at most; whether any had to go."""
    locator, again = side.get_major_locator(), False
    if isinstance(locator, LogLocator):
        for subs in _LOG_STEPS:
            locator.set_params(subs=subs)
            if len(_boxes(side)) <= _LOG_NUMBERS and not _touch(side):
                break
    elif isinstance(locator, MaxNLocator | FixedLocator) and not isinstance(side.get_major_formatter(), FixedFormatter):
        most: Any = "auto" if isinstance(locator, MaxNLocator) else _ALL
        locator.set_params(nbins=most)
        for count in range(_NUMBERS, 0, -1):
            if not _touch(side):
                break
            locator.set_params(nbins=count)
            again = True
    return again


def _boxes(side: "Axis") -> list[Any]:
    """The places of the numbers of an axis, within what it shows."""
    low, high = sorted(side.get_view_interval())
    side.get_ticklabels()  # brings the ticks up to date
    shown = [tick for tick in side.get_major_ticks() if low <= tick.get_loc() <= high]
    labels = [tick.label1 if tick.label1.get_visible() else tick.label2 for tick in shown]
    return [label.get_window_extent() for label in labels if label.get_visible() and label.get_text()]


def _touch(side: "Axis") -> bool:
    """Whether two numbers of an axis lie closer than a letter."""
    from matplotlib.axis import XAxis

    ends = [(box.x0, box.x1) if isinstance(side, XAxis) else (box.y0, box.y1) for box in _boxes(side)]
    return any(a[1] + _GAP > b[0] for a, b in itertools.pairwise(sorted(ends)))


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
        canvas = Canvas(panel, shared=share)
        places = iter(range(1, 1 + blocks * len(panels)))
        for _ in range(blocks):
            block: list[Axes] = []
            # Below each other at first: a colour bar as high as the sheet would be too wide to lay out.
            for _ in panels:
                sharey = block[0] if share and block else None
                block.append(canvas.add_subplot(blocks * len(panels), 1, next(places), sharey=sharey))
            canvas.blocks.append(block)
        yield canvas, [axis for block in canvas.blocks for axis in block]


def finish(canvas: Canvas, name: str, title: str, caption: str, how: str = "") -> Picture:
    """Finish a drawing and keep it in both formats and both widths."""
    small = 2 if canvas.panel[0] <= PANEL[0] and sum(map(len, canvas.blocks)) > 2 else 1
    canvas.arrange(_PHONE, small, beside=False)
    narrow, narrow_names = _svg(canvas), tuple(sorted(canvas.cut.items()))
    canvas.arrange(_PAGE, _ACROSS, beside=True)
    picture = saved(canvas, name, title, caption, how)
    return replace(picture, narrow=narrow, narrow_names=narrow_names, names=tuple(sorted(canvas.cut.items())))


def saved(canvas: MatplotlibFigure, name: str, title: str, caption: str, how: str = "") -> Picture:
    """Keep a drawing as it is laid out, in both formats."""
    png = io.BytesIO()
    canvas.savefig(png, format="png", metadata={"Software": None}, dpi=160)
    share = min(1.0, canvas.get_figwidth() / _PAGE)
    return Picture(name, title, caption, _svg(canvas), png.getvalue(), share=round(share, 3), how=how)


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
        many = [mpl.colors.to_hex(mpl.colormaps["turbo"](x)) for x in np.linspace(0.05, 0.95, len(store.tasks))]
        return dict(zip(store.tasks, COLOURS if len(store.tasks) <= len(COLOURS) else many, strict=False))
    colours: dict[str, str] = {}
    for k, group in enumerate(groups.values()):
        shades = mpl.colormaps["viridis_r" if len(groups) == 1 else _MAPS[k]]
        low, high = (0.22, 0.97) if len(groups) == 1 else (0.4, 0.95)
        places = np.linspace(low, high, len(group)) if len(group) > 1 else [high]
        colours |= {task: mpl.colors.to_hex(shades(x)) for task, x in zip(group, places, strict=True)}
    return {task: colours[task] for task in store.tasks}


def _alpha(task: str) -> float:
    match = re.search(r"α=([^,]*)", task)
    return float(match[1]) if match else math.inf


def _mean(store: Store, row: str) -> float:
    scores = [store.scores(row, task, PM) for task in store.tasks]
    return float(np.mean([np.mean(list(units.values())) for units in scores])) if all(scores) else -math.inf


def _svg(canvas: MatplotlibFigure) -> bytes:
    file = io.BytesIO()
    canvas.savefig(file, format="svg", metadata={"Date": None, "Creator": None}, dpi=160)
    return file.getvalue()
