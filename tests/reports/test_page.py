"""The page: complete, alone, the same every time, and alive in a browser."""

import hashlib
import html
import io
import re
import shutil

import pandas as pd
import pytest

from bench.citations import Citation, cite
from bench.errors import UserError
from bench.results.results import load_run
from reports.page.cells import cells_section
from reports.page.page import write_report
from reports.page.section import environment
from reports.published.comparison import comparison, published_tables
from reports.reading.load import load
from reports.tables.table import to_csv, to_latex
from tests.reports.browser import assert_alive, look, needs_browser
from tests.reports.conftest import cell_id, cells_of, change_run

pytestmark = pytest.mark.long


def test_all_files_are_there_and_the_page_needs_nothing_else(report):
    for name in ("main.md", "main.csv", "tables/last.csv", "figures/convergence_round.svg", "figures/clients.png"):
        assert (report.parent / name).stat().st_size > 0, name
    assert not list(report.parent.rglob("*.tmp"))
    text = report.read_text(encoding="utf-8")
    outside = re.sub(r"data:image/svg\+xml;base64,[A-Za-z0-9+/=]*", "", text)
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:|\s*["'])[^"']*""", outside)
    assert "https:" not in outside
    assert "url(" not in outside


def test_failures_and_provenance_are_shown_and_escaped(report):
    text = report.read_text(encoding="utf-8")
    assert not any(id in text for id in ('id="relations"', 'id="changes"', 'id="newcomers"')), "none has such numbers"
    assert "RuntimeError: a &lt;made-up&gt; reason" in text
    for words in ("bench run --grid quickstart.yaml", "0123456789abcdef", "methods: [fedavg, local]", "1 missing"):
        assert words in text


def test_it_ends_with_what_to_cite(run, report):
    """Entries as `bench cite RUN` prints them, escaped on the page; a method of a plug-in is named."""
    written = (report.parent / "citations.bib").read_text(encoding="utf-8")
    assert written == cite(cells=[cell.settings for cell in load_run(run).cells]).bibtex
    assert all(key in written for key in ("pfleague", "mcmahan2017fedavg", "alpaydin1998digits"))
    end = report.read_text(encoding="utf-8").partition('<section id="cite">')[2]
    assert html.unescape(end).count(written) == 1
    assert "<section" not in end
    empty = dict.fromkeys(("title", "summary"), "") | dict.fromkeys(("remarks", "sections", "provenance"), ())
    citation = Citation("@misc{a<b}", ("<mine>",))
    odd = environment().get_template("page.html").render(empty, citation=citation, filter_rows=0, data_uri=str)
    assert "Note: no paper is recorded for &lt;mine&gt;: cite its own" in odd
    assert "<pre>@misc{a&lt;b}</pre>" in odd


def test_settings_that_only_some_methods_have_stand_with_these(store_writer, tmp_path):
    run = store_writer(tmp_path / "run", seeds=1, methods=("fedavg", "ditto", "scd"), alphas=(1.0,))
    own = {"fedavg": {}, "ditto": {"lam": 0.5}, "scd": {"tau": 2.0, "mu": 1}}
    change_run(run, lambda cell: {"hp": own[cell["label"]]})
    (written,) = (table for table in cells_section(load([run])).more if table.id == "settings")
    table = pd.read_csv(io.StringIO(to_csv(written)))
    own = table[table["column"] == "settings"].set_index("row")["note"].to_dict()
    assert own == {"fedavg": "–", "ditto": "lam=0.5", "scd": "tau=2, mu=1"}
    assert "α=1, " in written.caption


@pytest.mark.long
def test_the_two_protocols_are_never_mixed_and_a_paper_s_table_stands_beside_ours(store_writer, tmp_path):
    common = {"seeds": 1, "methods": ("fedavg", "local"), "alphas": (1.0,)}
    honest = store_writer(tmp_path / "honest", published="scd_t1", **common)
    paper = store_writer(tmp_path / "paper", protocol="paper", prefix="paper", **common)
    folder = write_report([honest, paper]).parent
    assert "Beside the paper" in (folder / "index.html").read_text(encoding="utf-8")
    assert (folder / "tables" / "published_scd_t1.tex").exists()
    assert "Protocol: honest" in (folder / "main.md").read_text(encoding="utf-8")
    assert "Protocol: paper" in (folder / "main_paper.md").read_text(encoding="utf-8")
    assert (folder / "figures" / "convergence_round_paper.svg").exists()


def test_a_run_without_a_finished_cell_is_refused(store_writer, tmp_path):
    run = store_writer(tmp_path, seeds=1, methods=("scd",), alphas=(1.0,), states={("scd", 1.0, 0): "failed"})
    with pytest.raises(UserError, match=r"no cell is done yet \(1 failed\)"):
        write_report([run])


@needs_browser
@pytest.mark.parametrize("size", ["1280,900", "390,800"])
def test_in_a_browser(report, tmp_path, size):
    """Tables sort, rows are filtered, a picture enlarges, nothing is logged and nothing is requested."""
    found = look(report, tmp_path, size, table="comparisons", typed="scd PM")
    assert_alive(found)
    assert found["kept"]
    assert all("scd" in text and "PM" in text for text in found["kept"])
    assert found["tables"] > 5


@needs_browser
def test_a_phone_shows_long_names_without_scrolling_sideways(store_writer, tmp_path):
    run = store_writer(tmp_path / "run", seeds=1, methods=("fedavg", "local"), alphas=(1.0,))
    cells = [cell | {"label": f"{cell['label']}_{'long' * 13}"} for cell in cells_of(run)]
    change_run(run, lambda cell: {"label": cell["label"]}, cells=cells)
    found = look(write_report([run]), tmp_path, "400,800", table="figures", typed="fedavg")
    assert found["width"]
    assert found["images"]
    assert found["errors"] == found["console"] == []


def _digests(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_run_of_one_seed_and_one_method_without_a_generic_model(store_writer, tmp_path):
    run = store_writer(tmp_path, seeds=1, methods=("local",), alphas=(1.0,))
    metrics = run / cell_id("local-1-0") / "metrics.csv"
    lines = [line for line in metrics.read_text(encoding="utf-8").splitlines() if ",gm," not in line]
    metrics.write_text("\n".join(lines) + "\n", encoding="utf-8")
    main = write_report([run]).with_name("main.md").read_text(encoding="utf-8")
    row = next(line for line in main.splitlines() if line.startswith("| local"))
    assert re.fullmatch(r"\| local \| – \| \d+\.\d\d \|", row), row  # no rival: not best
    assert "Test accuracy in percent, of 1 seed; GM" in main


@pytest.mark.long
def test_the_same_bytes_a_second_time_and_files_of_an_earlier_report_go(run, report, tmp_path):
    folder = shutil.copytree(report.parent, tmp_path / "again")
    before = _digests(folder)
    strangers = [folder / "main_paper.md", folder / "tables" / "old.csv", folder / "figures" / "old.png"]
    kept = folder / "notes.txt"
    for path in (*strangers, kept):
        path.write_text("of yesterday")
    (folder / "index.html").write_text("of yesterday")
    write_report([run], folder)
    assert not any(path.exists() for path in strangers)
    kept.unlink()
    assert _digests(folder) == before


@pytest.fixture(scope="module")
def all_latex(report):
    """Every LaTeX file of the report, and every printed table beside the run."""
    files = [report.parent / "main.tex", *sorted((report.parent / "tables").glob("*.tex"))]
    texts = {path.stem: path.read_text(encoding="utf-8") for path in files}
    store = load([report.parent.parent])
    return {**texts, **{name: to_latex(comparison(store, table)) for name, table in published_tables().items()}}


def test_latex_has_no_character_that_it_was_not_told_how_to_set(all_latex):
    assert {"main", "costs", "comparisons", "scd_t1"} <= set(all_latex)
    assert {name: "".join(c for c in text if not c.isascii()) for name, text in all_latex.items()} == dict.fromkeys(
        all_latex, ""
    )


def test_every_latex_file_compiles(all_latex, pdflatex):
    pdflatex("\\clearpage\n".join(all_latex.values()))
