"""Tables in four formats, and `main.tex` as a paper wants it."""

import csv
import io
import re
from dataclasses import replace
from html import unescape

import pytest
from markdown_it import MarkdownIt

from bench.errors import UserError
from reports.page.section import Section, rendered
from reports.reading.load import load
from reports.tables import accuracy
from reports.tables.latex import Latex, _spelling, arranged, check, display_names
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
from tests.warm import PATIENCE

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


@pytest.mark.parametrize(
    ("written", "texts"),
    [
        (to_markdown, ("**86.37 ± 0.15**", "92.25 †", "[80.30 ± 0.40]")),
        (to_latex, (r"\textbf{86.37 $\pm$ 0.15}", r"92.25$^\dagger$", r"A $<$title$>$ \& more", r"mnist\_x")),
        (to_html, ('class="best"', "A &lt;title&gt; &amp; more")),
    ],
)
def test_a_format_has_its_marks_and_escapes_what_it_could_misread(written, texts):
    assert [text for text in texts if text not in written(TABLE)] == []


def test_bars_and_line_breaks_end_no_cell():
    piped = Table("t", "t", "c", "m", (Column("a|b"),), (("x|y", (words("1|2"),)), ("a\n\nb", (words("1"),))))
    assert r"| x\|y | 1\|2 |" in to_markdown(piped)
    assert "\n\n" not in to_latex(piped)


def test_how_numbers_are_printed():
    """No negative zero, a dash for nan, and nothing that is small as nothing."""
    printed = TableEntry(-0.001), TableEntry(-0.001, signed=True), TableEntry(0.5, signed=True)
    assert [entry.number for entry in printed] == ["0.00", "0.00", "+0.50"]
    assert number(float("nan")).note == "–"
    small = [amount(value).number for value in (0.0, 0.00281, 0.04, 1.2345, 120)]
    assert small == ["0.00", "0.0028", "0.040", "1.23", "120.00"]


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


def test_no_spreadsheet_takes_a_label_for_a_formula():
    formulas, plain = ["=1+1", "@SUM(A1)", "+cmd|' /C calc'!A0", "-1+cmd", "\t=1"], ["fedavg", "-0.5"]
    rows = tuple((label, (words(label),)) for label in formulas + plain)
    table = Table("t", "t", "c", "m", (Column("x"),), rows)
    written = [line[0] for line in csv.reader(io.StringIO(to_csv(table)))][1:]
    assert written == [f"'{label}" for label in formulas] + plain


@pytest.fixture(scope="module")
def main(store):
    return accuracy.main_table(store)


def test_one_figure_has_one_column_a_task_and_no_other_in_the_caption(main):
    table = arranged(main, Latex("pm"))
    assert [column.name for column in table.columns] == ["digits, α=1", "digits, α=0.1"]
    assert "PM: personalized" in table.caption
    assert "GM: generic" not in table.caption
    assert table.rows[0][1][0] == main.rows[0][1][1]


def test_transposed_every_number_stays(main, store):
    table = arranged(main, Latex(transpose=True, columns=("α=0.1",)))
    assert [label for label, _ in table.rows] == ["digits, α=0.1, GM", "digits, α=0.1, PM"]
    assert [column.name for column in table.columns] == [row for row, _ in main.rows]
    assert list(table.rows[1][1]) == [entries[3] for _, entries in main.rows]
    assert "Bold: best of its column" in main.notes[0]
    assert "Bold: best of its row" in table.notes[0]
    with pytest.raises(UserError, match=r"--columns cifar: no task .* digits, α=1; digits, α=0.1"):
        check(Latex(columns=("α=1", "cifar")), store.tasks)


def test_methods_have_the_names_of_their_papers(store):
    assert display_names(store)["fedper"] == "FedPer"
    methods = ("fedavg", "lgfedavg", "perfedavg", "scd", "pfedme", "local", "a plugin's")
    names = ["FedAvg", "LG-FedAvg", "Per-FedAvg", "SCD", "pFedMe", "Local", "a plugin's"]
    assert [_spelling(method) for method in methods] == names


def test_the_caption_names_data_clients_alpha_model_and_rounds(store_writer, tmp_path):
    one = load([store_writer(tmp_path, seeds=2, alphas=(0.1,), methods=("fedavg", "scd"), model="mlp")])
    table = accuracy.main_table(one)
    assert "digits, dirichlet α=0.1, 20 clients, model mlp, 12 rounds, 2 seeds" in table.how
    assert table.columns[0].group == "digits, α=0.1"
    assert r"$\alpha$=0.1" in to_latex(table)


def test_notes_spell_methods_as_rows_do():
    rows = (("ditto", (TableEntry(1.0, note="(n=2; = fedavg)"),)), ("local", (TableEntry(2.0, note="(n=2)"),)))
    table = Table("main", "Main", "Caption.", "Method", (Column("GM", "digits"),), rows)
    text = to_latex(arranged(table, Latex(names={"fedavg": "FedAvg", "ditto": "Ditto"})))
    assert "Ditto & {1.00} (n=2; = FedAvg)" in text
    assert "local & {2.00} (n=2)" in text


@pytest.mark.long
def test_the_command(store_writer, start_in, tmp_path):
    run = store_writer(tmp_path / "run", seeds=2, alphas=(1.0, 0.1), methods=("fedavg", "ditto"))
    command = ["report", str(run), "--latex", "pm", "--transpose", "--columns", "α=0.1"]
    with start_in(command, tmp_path) as process:
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    text = (run / "report" / "main.tex").read_text(encoding="utf-8")
    assert "Task & FedAvg & Ditto" in text
    assert text.count("digits, $\\alpha$=0.1 &") == 1
    assert "digits, $\\alpha$=1 &" not in text
