"""`main.tex` as a paper wants it."""

import pytest

from bench.errors import UserError
from reports.tables import accuracy
from reports.tables.latex import Latex, _spelling, arranged, check, display_names
from reports.tables.table import Column, Table, TableEntry, to_latex
from tests.warm import PATIENCE


@pytest.fixture(scope="module")
def main(store):
    return accuracy.main_table(store)


def test_one_figure_has_one_column_a_task_and_no_other_in_the_caption(main):
    table = arranged(main, Latex("pm"))
    assert [column.name for column in table.columns] == ["digits, α=1", "digits, α=0.1"]
    assert "PM: personalized" in table.caption
    assert "GM: generic" not in table.caption
    assert table.rows[0][1][0] == main.rows[0][1][1]


def test_transposed_every_number_stays(main):
    table = arranged(main, Latex(transpose=True, columns=("α=0.1",)))
    assert [label for label, _ in table.rows] == ["digits, α=0.1, GM", "digits, α=0.1, PM"]
    assert [column.name for column in table.columns] == [row for row, _ in main.rows]
    assert list(table.rows[1][1]) == [entries[3] for _, entries in main.rows]
    assert "Bold: best of its column" in main.notes[0]
    assert "Bold: best of its row" in table.notes[0]


def test_columns_that_no_task_has_are_refused(store):
    with pytest.raises(UserError, match=r"--columns cifar: no task .* digits, α=1; digits, α=0.1"):
        check(Latex(columns=("α=1", "cifar")), store.tasks)


def test_methods_have_the_names_of_their_papers(store):
    assert display_names(store)["fedper"] == "FedPer"
    methods = ("fedavg", "lgfedavg", "perfedavg", "scd", "pfedme", "local", "a plugin's")
    names = ["FedAvg", "LG-FedAvg", "Per-FedAvg", "SCD", "pFedMe", "Local", "a plugin's"]
    assert [_spelling(method) for method in methods] == names


def test_the_caption_names_data_clients_alpha_model_and_rounds(store_writer, tmp_path):
    from reports.reading.load import load

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
