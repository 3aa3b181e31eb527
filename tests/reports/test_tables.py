"""One table in four formats."""

import csv
import io
import re
from dataclasses import replace
from html import unescape

import pytest
from markdown_it import MarkdownIt

from reports.page.section import Section, rendered
from reports.tables.table import (
    Column,
    Table,
    TableEntry,
    amount,
    markdown_text,
    number,
    to_csv,
    to_latex,
    to_markdown,
    words,
)

TABLE = Table(
    "main",
    "A <title> & more",
    "Accuracy in % ± standard deviation.",
    "Method",
    (Column("GM", "digits, α=1"), Column("PM", "digits, α=1"), Column("GM", "mnist_x")),
    (
        ("fedavg", (TableEntry(85.346, 0.114), TableEntry(80.3, 0.4, derived=True), words("3 failed"))),
        (
            "scd_wf",
            (TableEntry(86.37, 0.15, mark="best"), TableEntry(92.25, mark="near"), TableEntry(-0.5, note="(n=2)")),
        ),
    ),
    ("A note with | and #.",),
)


def to_html(table: Table) -> str:
    """A page with the table alone."""
    return rendered("", "", [Section("table", "Table", tables=(table,))])


def test_all_four_formats_print_the_same_numbers():
    printed = [["85.35", "0.11", "80.30", "0.40"], ["86.37", "0.15", "92.25", "-0.50"]]
    lines = list(csv.DictReader(io.StringIO(to_csv(TABLE))))
    for row, (label, _) in zip(printed, TABLE.rows, strict=True):
        markdown = next(line for line in to_markdown(TABLE).splitlines() if line.startswith(f"| {label}"))
        latex = next(line for line in to_latex(TABLE).splitlines() if line.startswith(label.replace("_", r"\_")))
        html = to_html(TABLE).split(f">{label}<")[1].split("</tr>")[0]
        figures = [text for line in lines if line["row"] == label for text in (line["value"], line["spread"]) if text]
        assert figures == row
        assert _numbers(markdown) == row
        assert _numbers(latex.replace("$-$", "-")) == row
        assert _numbers(re.sub(r"<[^>]*>", " ", html)) == row


def test_marks_in_each_format():
    markdown, latex, html = to_markdown(TABLE), to_latex(TABLE), to_html(TABLE)
    assert "**86.37 ± 0.15**" in markdown
    assert "92.25 †" in markdown
    assert "[80.30 ± 0.40]" in markdown
    assert r"\textbf{86.37 $\pm$ 0.15}" in latex
    assert r"92.25$^\dagger$" in latex
    assert 'class="best"' in html


def test_what_a_format_could_misread_is_escaped():
    assert "A &lt;title&gt; &amp; more" in to_html(TABLE)
    assert r"A $<$title$>$ \& more" in to_latex(TABLE)
    assert r"mnist\_x" in to_latex(TABLE)
    piped = Table("t", "t", "c", "m", (Column("a|b"),), (("x|y", (words("1|2"),)),))
    assert r"| x\|y | 1\|2 |" in to_markdown(piped)
    assert "\n\n" not in to_latex(Table("t", "t", "c", "m", (Column("x"),), (("a\n\nb", (words("1"),)),)))


def test_no_negative_zero_and_a_dash_for_nan():
    assert TableEntry(-0.001).number == "0.00"
    assert TableEntry(-0.001, signed=True).number == "0.00"
    assert TableEntry(0.5, signed=True).number == "+0.50"
    assert number(float("nan")).note == "–"


def test_a_long_table_can_be_filtered_and_a_short_one_need_not_be():
    assert 'type="search"' not in to_html(replace(TABLE, rows=4 * TABLE.rows))
    assert 'type="search"' in to_html(replace(TABLE, rows=5 * TABLE.rows))


STARRED = ("[ours] plain", "*star", " [2pt]")


def _named(label: str) -> Table:
    return Table("t", label, label, label, (Column(label, label),), ((label, (words(label),)),) * 2, (label,))


@pytest.mark.parametrize("label", STARRED)
def test_a_label_is_no_argument_of_the_line_break_or_rule_before(label):
    r"""`\\ [ours]` asks for a space of the length "ours", `\\ *` for no page break."""
    lines = [line.strip() for line in to_latex(_named(label)).splitlines()]
    assert [line for line in lines if line.startswith(("[", "*"))] == []
    assert sum(line.startswith("{}" + label) for line in lines) == 3


def test_latex_compiles(pdflatex):
    pdflatex("\n".join(map(to_latex, (TABLE, *map(_named, STARRED)))))


def _numbers(text: str) -> list[str]:
    return re.findall(r"-?\d+\.\d+", text)


@pytest.mark.parametrize(
    "label",
    [
        '<img src=x onerror="alert(1)">',
        "**bold** and __more__ and *less*",
        "[a link](https://example.org)",
        "![a picture](https://example.org/x.png)",
        "# heading",
        "a\n\n# heading\n| --- |",
        "`<b>code</b>`",
        "``<b>`x`",
        "&lt;b&gt; &#60;i&#62;",
        "[x]: https://example.org",
        "[ ]: derived",
        "from $5 to $10",
        "~~struck~~",
    ],
)
def test_markdown_shows_a_label_as_it_is(label):
    """Labels, notes and captions may come from somebody else's grid."""
    table = Table("t", label, label, label, (Column(label, label),), ((label, (words(label),)),), (label,))
    page = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(to_markdown(table))
    tags = set(re.findall(r"<(\w+)", page))
    assert tags <= {"p", "strong", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "code"}
    plain = " ".join(label.splitlines())
    shown = unescape(re.sub(r"</?[a-z]+[^>]*>", "", page))
    assert max(shown.count(plain), shown.count(plain.replace("`", ""))) >= 6
    assert page.count("<strong>") == 1


def test_markdown_is_read_as_it_is_written_too():
    """Brackets without a label need no escape; a dollar does, as two of them are a formula on many sites."""
    assert markdown_text("[ ]: derived") == "[ ]: derived"
    assert markdown_text("$5 and $6") == r"\$5 and \$6"


def test_what_is_small_is_not_printed_as_nothing():
    printed = [amount(value).number for value in (0.0, 0.00281, 0.04, 1.2345, 120)]
    assert printed == ["0.00", "0.0028", "0.040", "1.23", "120.00"]


def test_no_spreadsheet_takes_a_label_for_a_formula():
    formulas, plain = ["=1+1", "@SUM(A1)", "+cmd|' /C calc'!A0", "-1+cmd", "\t=1"], ["fedavg", "-0.5"]
    rows = tuple((label, (words(label),)) for label in formulas + plain)
    table = Table("t", "t", "c", "m", (Column("x"),), rows)
    written = [line[0] for line in csv.reader(io.StringIO(to_csv(table)))][1:]
    assert written == [f"'{label}" for label in formulas] + plain
