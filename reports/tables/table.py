"""One table object, its formats: Markdown, CSV, LaTeX, and on a page HTML. All print the same digits."""

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np

from reports.statistics.inference import summarise

Mark = Literal["", "best", "equal", "near"]

SYMBOLS: dict[Mark, str] = {"equal": "≈", "near": "†"}
MEANINGS: dict[Mark, str] = {"best": "best", "equal": "equivalent to the best", "near": "undecided"}
LEGEND = "Bold: best of its column; ≈: equivalent to the best; †: undecided; [ ]: derived, not trained by the method."
MARKED = (
    "Best: the highest mean. Equivalent: the simultaneous 95 % interval of the difference from the best lies within "
    "the margin. Undecided: neither worse nor equivalent. No sign: worse than the best, or not compared. Derived "
    "models, and bounds such as `centralized`, which sees all clients' data, are shown and not compared. A dash: a "
    "mean of models whose loss is larger than that of any guess."
)


@dataclass(frozen=True)
class TableEntry:
    """One cell of a table: a number, a text, or both.

    Attributes:
        value: the number in the column's unit; None: nothing was measured.
        spread: standard deviation, printed after the number.
        note: printed after the number, or alone.
        mark: `best` is bold; `equal` is equivalent to it, `near` undecided.
        derived: printed in brackets.
        decimals: digits after the point.
        signed: print the sign of positive numbers too (differences).
        n: runs that the value and its spread are of; 0: not a mean over runs. Not printed.
        least: standard deviation that intervals suppose of a run at least. Not printed.
        link: anchor on the page that the number leads to; on the page only.
    """

    value: float | None = None
    spread: float | None = None
    note: str = ""
    mark: Mark = ""
    derived: bool = False
    decimals: int = 2
    signed: bool = False
    n: int = 0
    least: float = 0.0
    link: str = ""

    @property
    def number(self) -> str:
        """The value as printed; empty where there is none."""
        return "" if self.value is None else self._digits(self.value, "+" if self.signed else "")

    @property
    def spread_text(self) -> str:
        """The spread as printed; empty where there is none."""
        return "" if self.spread is None else self._digits(self.spread)

    @property
    def figure(self) -> str:
        """Number and spread, bracketed where derived."""
        text = f"{self.number} ± {self.spread_text}" if self.spread is not None else self.number
        return f"[{text}]" if self.derived and text else text

    @property
    def symbol(self) -> str:
        """The mark's sign after the number; none for the best."""
        return SYMBOLS.get(self.mark, "")

    @property
    def meaning(self) -> str:
        """The marks in words."""
        return ", ".join(filter(None, [MEANINGS.get(self.mark, ""), "derived" if self.derived else ""]))

    def _digits(self, number: float, sign: str = "") -> str:
        text = f"{number:{sign}.{self.decimals}f}"
        return text.lstrip("+-") if float(text) == 0 else text  # no "-0.00"


@dataclass(frozen=True)
class Column:
    """A column; neighbours of one group share a heading above theirs."""

    name: str
    group: str = ""


@dataclass(frozen=True)
class Table:
    """A table for people.

    Attributes:
        id: file name and anchor.
        title: what it is, in a few words; caption: what the numbers are, in two sentences at most.
        corner: heading of the row labels.
        columns, rows: `(label, entries)`, as many entries as columns.
        notes: further sentences, printed below.
        anchors: of each row, where something on the page leads to them.
        how: how the numbers were computed; on a page it opens on a click, in other formats it is the last note.
    """

    id: str
    title: str
    caption: str
    corner: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, tuple[TableEntry, ...]], ...]
    notes: tuple[str, ...] = ()
    anchors: tuple[str, ...] = ()
    how: str = ""

    @property
    def remarks(self) -> tuple[str, ...]:
        """Notes, and how the numbers were computed, for formats that fold nothing away."""
        return (*self.notes, *filter(None, [self.how]))

    @property
    def heading(self) -> str:
        """The title as a sentence before the caption."""
        return sentence(self.title)

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Group headings and the number of columns under each; empty where no column has a group."""
        if not any(column.group for column in self.columns):
            return []
        return [(name, len(list(members))) for name, members in groupby(column.group for column in self.columns)]


def sentence(text: str) -> str:
    """The text with a full stop, unless a sign that ends a sentence is there."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def listed(names: Sequence[str], last: str = "and") -> str:
    """Names as a sentence lists them: `a, b and c`."""
    return f"{', '.join(names[:-1])} {last} {names[-1]}" if len(names) > 1 else "".join(names)


def words(text: str) -> TableEntry:
    """An entry without a number."""
    return TableEntry(note=text)


def number(value: float, *, decimals: int = 2, signed: bool = False) -> TableEntry:
    """An entry without a spread; a dash for nan."""
    return words("–") if math.isnan(value) else TableEntry(float(value), decimals=decimals, signed=signed)


def amount(value: float) -> TableEntry:
    """An entry of what is spent, with two digits of what is small: 0.0028 hours are not none."""
    return number(value, decimals=max(2, 1 - math.floor(math.log10(value))) if value > 0 else 2)


def mean_entry(values: Iterable[float], *, decimals: int = 2, note: str = "", derived: bool = False) -> TableEntry:
    """An entry of the mean of runs with their standard deviation (ddof 1); a dash without runs, or where one is nan."""
    summary = summarise(np.array([*values], dtype=float))
    if math.isnan(summary.mean):
        return words("–")
    spread = None if math.isnan(summary.std) else summary.std
    return TableEntry(summary.mean, spread, note, derived=derived, decimals=decimals, n=summary.n)


def probability(p: float) -> TableEntry:
    """An entry of a p value."""
    return words("<0.001") if p < 0.001 else number(p, decimals=3)


def to_markdown(table: Table) -> str:
    """GitHub-flavoured Markdown: caption, table, notes. Group and column name share one heading line.

    A table without rows is its caption and notes.
    """
    heads = [table.corner, *(f"{column.group} {column.name}".strip() for column in table.columns)]
    caption = f"**{markdown_text(table.heading)}** {markdown_text(table.caption)}"
    lines = [caption]
    if table.rows:
        lines += ["", _pipe(map(markdown_text, heads)), _pipe(["---", *("---:" for _ in table.columns)])]
    for label, entries in table.rows:
        lines.append(_pipe([markdown_text(label), *(_markdown(entry) for entry in entries)]))
    if table.remarks:
        lines += ["", *(f"- {markdown_text(note)}" for note in table.remarks)]
    return "\n".join(lines) + "\n"


def to_csv(table: Table) -> str:
    """One line per entry, for programs: row, group, column, value, spread, mark, derived, note."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["row", "group", "column", "value", "spread", "mark", "derived", "note"])
    for label, entries in table.rows:
        for column, entry in zip(table.columns, entries, strict=True):
            derived = "derived" if entry.derived else ""
            names = map(_no_formula, (label, column.group, column.name))
            numbers = entry.number, entry.spread_text
            writer.writerow([*names, *numbers, entry.mark, derived, _no_formula(entry.note)])
    return file.getvalue()


def _no_formula(text: str) -> str:
    """A text that no spreadsheet runs as a formula: an apostrophe stands before what would begin one.

    Signed numbers, and our own notes with a space after the sign, stay as they are.
    """
    return f"'{text}" if re.match(r"[=@](?!\s)|[+-](?![\d.\s])|[+-][\d.]+[^\d.\s)%]|[\t\r]", text) else text


def to_latex(table: Table) -> str:
    r"""A `table` environment with booktabs rules; the document needs `\usepackage{booktabs}`."""
    caption = _tex(f"{table.heading} {table.caption}")
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{caption}}}", rf"\label{{tab:{table.id}}}"]
    lines += [rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}", r"\toprule"]
    if table.groups:
        lines += _group_heads(table.groups)
    lines.append(_tex_row([_tex(table.corner), *(_tex(column.name) for column in table.columns)]))
    lines.append(r"\midrule")
    lines += [_tex_row([_tex(label), *(_latex(entry) for entry in entries)]) for label, entries in table.rows]
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\par\smallskip\footnotesize {_tex(note)}" for note in table.remarks]
    lines.append(r"\end{table}")
    return "\n".join(lines) + "\n"


def _pipe(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _markdown(entry: TableEntry) -> str:
    figure = f"**{entry.figure}**" if entry.mark == "best" else entry.figure
    return " ".join(part for part in (figure, entry.symbol, markdown_text(entry.note)) if part)


def markdown_text(text: str) -> str:
    """A text as Markdown that shows it as it is: labels and names may be somebody else's, who must not add markup.

    What stands in backticks stays code, but for HTML.
    """
    parts = re.split(r"((?<!`)`[^`<]+`(?!`))", " ".join(text.splitlines()))
    return "".join(part.replace("|", r"\|") if at % 2 else _escaped(part) for at, part in enumerate(parts))


def _escaped(text: str) -> str:
    text = re.sub(r"&(?=#?\w+;)", "&amp;", text).replace("<", "&lt;")
    return re.sub(_MARKUP, lambda sign: "\\" + sign[0], text)


_MARKUP = re.compile(r"^[#>+=-](?=\s|#)|(?<![^\W_])_|_(?![^\W_])|[\\`*|$]|~(?=~)|!(?=\[)|\](?=[(\[])|(?<!\[ )\](?=:)")
"""Signs that Markdown would interpret, each where it would."""


def _latex(entry: TableEntry) -> str:
    figure = _tex(entry.figure)
    if entry.mark == "best":
        figure = rf"\textbf{{{figure}}}"
    if entry.symbol:
        figure += "$^" + _TEX[entry.symbol].strip("$") + "$"
    # the braces keep TeX from reading a bracket after the line break `\\` as its argument
    return " ".join(part for part in (f"{{{figure}}}" if figure else "", _tex(entry.note)) if part)


def _tex_row(cells: list[str]) -> str:
    r"""A line of a `tabular`; braces keep TeX from reading `[` or `*` as an argument of the `\\` or the rule before."""
    return ("{}" if cells[0].lstrip().startswith(("[", "*")) else "") + " & ".join(cells) + r" \\"


def _group_heads(groups: list[tuple[str, int]]) -> list[str]:
    heads, rules, first = [""], [], 2
    for name, width in groups:
        heads.append(rf"\multicolumn{{{width}}}{{c}}{{{_tex(name)}}}")
        if name:
            rules.append(rf"\cmidrule(lr){{{first}-{first + width - 1}}}")
        first += width
    return [_tex_row(heads), " ".join(rules)]


_TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "×": r"$\times$",
    "≥": r"$\ge$",
    "≈": r"$\approx$",
    "†": r"$\dagger$",
    "α": r"$\alpha$",
    "ε": r"$\varepsilon$",
    "∞": r"$\infty$",
    "τ": r"$\tau$",
    "λ": r"$\lambda$",
    "ρ": r"$\rho$",
    "·": r"$\cdot$",
    "Δ": r"$\Delta$",
    "<": "$<$",
    ">": "$>$",
    **{character: "\\" + character for character in "&%$#_{}"},
    **{character: f"$^{{{power}}}$" for power, character in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
}


def _tex(text: str) -> str:
    """Escape for LaTeX; a minus sign before a digit is set as one, and what stands in backticks as code."""
    escaped = "".join(_TEX.get(character, character) for character in " ".join(text.splitlines()))
    escaped = re.sub(r"`([^`]*)`", r"\\texttt{\1}", escaped)
    return re.sub(r"(?<![\w.-])-(?=\d)", "$-$", escaped)
