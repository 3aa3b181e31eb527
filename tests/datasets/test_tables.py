"""`csv` and `parquet`: tables of several sites, as people have them."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bench
from bench.data import Dataset
from bench.errors import UserError
from bench.federation.cell_data import _loaded
from bench.places import file_stems
from bench.plugin import DATASETS
from bench.runs.plan import plan
from bench.samples import normalising
from bench.settings import Settings
from datasets.columns import far_values, numbered, spellings
from datasets.table_rows import TableError
from datasets.tables import table
from tests.datasets.helpers import divide, group_of_each, load_from, seen

OPTIONS = {"label_column": "outcome", "site_column": "hospital"}


def frame(rows: int = 60, seed: int = 0) -> pd.DataFrame:
    """Three hospitals with numbers, categories, gaps and two classes."""
    rng = np.random.default_rng(seed)
    outcome = rng.integers(0, 2, rows)
    sites = pd.DataFrame(
        {
            "hospital": np.array(["Aachen", "Bonn", "Köln"])[np.arange(rows) % 3],
            "age": rng.normal(50, 10, rows).round(1) + outcome,
            "pressure": rng.normal(120, 15, rows).round(2),
            "sex": np.array(["f", "m"])[rng.integers(0, 2, rows)],
            "outcome": np.array(["died", "lived"])[outcome],
        }
    )
    sites.loc[::7, "pressure"] = np.nan
    sites.loc[::11, "sex"] = None
    return sites


def load(path: Path, kind: str = "csv", **options: Any) -> Dataset:
    return load_from(kind, path, **{**OPTIONS, **options})


def write(folder: Path, sites: pd.DataFrame, name: str = "sites.csv", **options: Any) -> Path:
    sites.to_csv(folder / name, index=False, **options)
    return folder / name


def assert_same(first: Dataset, second: Dataset) -> None:
    np.testing.assert_array_equal(first.x, second.x)
    for name in ("y", "rows", "groups", "missing"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    for name in ("classes", "group_names", "features", "indicators", "n_train", "mean", "std", "checksum"):
        assert getattr(first, name) == getattr(second, name), name


def test_each_value_is_where_it_belongs(tmp_path: Path) -> None:
    sites = frame()
    data = load(write(tmp_path, sites))
    assert data.classes == ("died", "lived")
    assert data.group_names == ("Aachen", "Bonn", "Köln")
    assert data.features == ("age", "pressure", "pressure missing", "sex=f", "sex=m", "sex missing")
    assert data.indicators == (2, 3, 4, 5)
    rows = sites.iloc[data.rows]
    np.testing.assert_allclose(data.x[:, 0], rows["age"], rtol=1e-6)
    known = rows["pressure"].notna().to_numpy()
    np.testing.assert_allclose(data.x[known, 1], rows["pressure"][known], rtol=1e-6)
    np.testing.assert_array_equal(data.x[:, 2], ~known)
    for channel, value in ((3, "f"), (4, "m")):
        np.testing.assert_array_equal(data.x[:, channel], rows["sex"] == value)
    np.testing.assert_array_equal(data.x[:, 5], rows["sex"].isna())
    assert [data.classes[label] for label in data.y] == rows["outcome"].tolist()
    assert group_of_each(data) == rows["hospital"].tolist()
    assert data.rows is not None  # gaps and units are of the training part
    assert data.missing is not None
    train = sites.iloc[data.rows[: data.n_train]]["pressure"]
    assert np.isnan(data.x[data.missing[:, 1], 1]).all()
    np.testing.assert_allclose(data.filled[data.missing[:, 1], 1], train.mean(), rtol=1e-12)
    filled = train.fillna(train.mean())
    np.testing.assert_allclose((data.mean[1], data.std[1]), (filled.mean(), filled.std(ddof=0)), rtol=1e-5)
    assert (data.mean[3:], data.std[3:]) == ((0.0,) * 3, (1.0,) * 3)


@pytest.mark.parametrize("how", [None, "pooled", "per_client"])
def test_numbers_are_rounded_after_they_are_normalised(how: Any) -> None:
    """Seconds since 1970: as float32, 100 moments of five minutes are three numbers."""
    seconds = 1_700_000_000 + 3 * np.arange(100.0)
    assert len(np.unique(seconds.astype(np.float32))) == 3
    times = pd.Series(np.where(np.arange(100) % 9, seconds, np.nan))
    sites = pd.DataFrame({"hospital": "A", "time": times, "x": np.arange(100) % 7, "outcome": np.arange(100) // 50})
    raw = table(sites, label="outcome", site="hospital")
    assert raw.rows is not None
    lists = divide(raw, clients=1)
    data, partition = normalising.apply(raw, lists, how, [0]) if how else (raw, lists)
    fitted = raw.rows[lists.train[0]] if how else raw.rows[: raw.n_train]
    known = times.iloc[fitted].dropna()
    mean = known.mean()
    deviation = np.sqrt(((known - mean) ** 2).sum() / len(fitted))  # gaps are the mean
    for before, after in ((lists.train[0], partition.train[0]), (lists.test[0], partition.test[0])):
        expected = ((times.iloc[raw.rows[before]] - mean) / deviation).fillna(0).astype(np.float32)
        np.testing.assert_allclose(seen(data)[after, 0], expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("fill", [9.97e36, -9999.0])
@pytest.mark.parametrize("rows", [1, 17, 70])
def test_a_value_that_stands_for_a_missing_number_is_named(fill: float, rows: int) -> None:
    """Whether it is rare, frequent, or there more often than all others together."""
    sites = frame(100).drop(columns="sex")
    sites["pressure"] = np.where(np.arange(100) < rows, fill, np.random.default_rng(0).normal(2, 1, 100))
    far = [note for note in table(sites, label="outcome", site="hospital").notes if "deviations" in note]
    assert far == [
        f"table: the column 'pressure' holds {fill:g} in {rows} row{'s' * (rows > 1)} (the first: row 1), over a "
        "thousand standard deviations from its other values; if it stands for a missing number, leave these cells empty"
    ]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.integers(1, 3))
@settings(deadline=None)
def test_far_values_are_far_from_all_others(values: list[float], count: int) -> None:
    """By the definition; and a value that is far from values which differ is found, as often as it is there."""
    far = far_values(np.array([*values, np.nan]))
    others = np.array([value for value in values if value not in far])
    assert all(abs(value - others.mean()) > 1000 * others.std() > 0 for value in far)
    plain = np.array([0.0, 1.0, 2.0, 5.0])
    assert far_values(np.concatenate([plain, [9e30] * count])).tolist() == [9e30]


def test_every_site_has_a_quarter_of_each_class_for_tests(tmp_path: Path) -> None:
    data = load(write(tmp_path, frame(240)))
    split = divide(data)
    assert split.names == ("Aachen", "Bonn", "Köln")
    for train, validation, test in zip(split.train, split.validation, split.test, strict=True):
        for label in range(2):
            tested, rest = (int((data.y[np.concatenate(at)] == label).sum()) for at in ([test], [train, validation]))
            assert abs(tested - 0.25 * (tested + rest)) <= 0.5


ODD: dict[str, dict[str, Any]] = {
    "BOM": {"encoding": "utf-8-sig"},
    "semicolons": {"sep": ";"},
    "tabs": {"sep": "\t"},
    "decimal commas": {"sep": ";", "decimal": ","},
    "quotes": {"quoting": 1},
    "lines of Windows": {"lineterminator": "\r\n"},
    "NA for gaps": {"na_rep": "NA"},
    "nan for gaps": {"na_rep": "nan"},
}


@pytest.mark.parametrize("kind", ODD)
def test_a_dialect_changes_nothing(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "a folder, with spaces; and ü"
    folder.mkdir()
    assert_same(load(write(folder, frame(), **ODD[kind])), load(write(tmp_path, frame())))


def test_blanks_around_cells_and_empty_lines_change_nothing(tmp_path: Path) -> None:
    plain = write(tmp_path, frame())
    spaced = tmp_path / "folder" / "sites.csv"
    spaced.parent.mkdir()
    spaced.write_text("\n".join(line.replace(",", " , ") for line in plain.read_text().splitlines()) + "\n\n\n")
    assert_same(load(spaced), load(plain))


def test_csv_parquet_folder_and_frame_are_one_data_set(tmp_path: Path) -> None:
    sites = frame().sort_values("hospital", kind="stable").reset_index(drop=True)
    expected = load(write(tmp_path, sites))
    sites.to_parquet(tmp_path / "sites.parquet")
    assert_same(load(tmp_path / "sites.parquet", "parquet"), expected)
    assert_same(table(sites, label="outcome", site="hospital", name="sites"), expected)
    folder = tmp_path / "sites"
    folder.mkdir()
    for site, rows in sites.groupby("hospital"):
        write(folder, rows.drop(columns="hospital")[::1], f"{site}.csv")
    assert_same(load(folder, site_column=""), expected)


def test_numbers_as_labels_are_in_the_order_of_numbers() -> None:
    names = [["10", "9"][i % 2] for i in range(60)]
    sites = frame().assign(outcome=names, hospital=names)
    data = table(sites, label="outcome", site="hospital")
    assert (data.classes, data.group_names) == (("9", "10"), ("9", "10"))
    assert [data.classes[label] for label in data.y] == sites["outcome"].iloc[data.rows].tolist()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("names", [("007", "08", "9"), ("010024", "10025", "1E3"), ("a", "01", "1,5")])
def test_names_are_texts(kind: str, names: tuple[str, ...], tmp_path: Path) -> None:
    """Of sites, subjects and classes: as they are written, wherever they are shown, asked for, or name files."""
    sites = frame(120)
    sites["hospital"] = [names[i % 3] for i in range(120)]
    sites["who"] = [f"0{names[i % 3]}{i // 2}" for i in range(120)]
    if "a" not in names:
        sites["outcome"] = [names[i // 3 % 3] for i in range(120)]
    path = tmp_path / f"t.{kind}"
    sites.to_parquet(path) if kind == "parquet" else sites.to_csv(path, index=False, sep=";", decimal=",")
    data = load(path, kind, subject_column="who")
    assert set(data.group_names) == set(names)
    assert data.subjects is not None
    rows = sites.iloc[data.rows]
    assert group_of_each(data) == rows["hospital"].tolist()
    assert len(set(zip(data.subjects.tolist(), rows["who"], strict=True))) == rows["who"].nunique()
    assert [data.classes[label] for label in data.y] == rows["outcome"].tolist()
    grid = tmp_path / "grid.yaml"
    grid.write_text(
        f"methods: [fedavg]\nmodel: logistic\nclients: 3\nnew_clients: 1\npartition: natural\n"
        f"partition_options: {{held_out: [{names[1]}]}}\n"
        f"datasets: [{{name: {kind}, path: {path}, label_column: outcome, site_column: hospital, leave_out: [who]}}]\n"
    )
    (cell,) = bench.load_grid(str(grid)).cells
    assert bench.load_partition(cell, bench.load_dataset(cell)).names[2] == names[1]
    assert set(file_stems(names)) == {name.replace(",", "-") for name in names}


def test_keys_that_look_like_huge_numbers_are_names() -> None:
    keys = ["8e1234567890123456789012", "8e12345678901234567890123", "inf", "12e3", "7"]
    assert spellings(keys) == []
    codes, names = numbered(np.array(keys))
    assert [names[code] for code in codes] == keys


@pytest.mark.parametrize("names", [("7", "07"), ("1000", "1E3"), ("10024", "010024"), ("1", "1.0")])
@pytest.mark.parametrize("column", ["hospital", "outcome", "who"])
def test_two_spellings_of_a_number_are_refused(names: tuple[str, str], column: str) -> None:
    sites = frame().assign(who=[str(i) for i in range(100, 160)])
    sites.loc[:1, column] = list(names)
    if column == "outcome":
        sites[column] = [names[i % 2] for i in range(60)]
    with pytest.raises(UserError, match=f"spells a (site|label|subject) in 2 ways, '{min(names)}' and '{max(names)}'"):
        table(sites, label="outcome", site="hospital", subject="who")


def test_a_category_that_training_lacks_is_none_of_the_others() -> None:
    sites = frame()
    test_row = table(sites, label="outcome", site="hospital").rows
    assert test_row is not None
    sites.loc[int(test_row[-1]), "sex"] = "x"
    data = table(sites, label="outcome", site="hospital")
    assert "sex=x" not in data.features
    assert not data.x[-1, [i for i, name in enumerate(data.features) if name.startswith("sex")]].any()


def changed(**columns: Any) -> pd.DataFrame:
    sites = frame()
    for column, change in columns.items():
        sites[column] = change(sites)
    return sites


def replaced(column: str, row: int, value: Any) -> pd.DataFrame:
    sites = frame().astype(object)
    sites.loc[row, column] = value
    return sites


BAD: dict[str, tuple[pd.DataFrame, str]] = {
    "empty label": (replaced("outcome", 4, None), r"'outcome' is empty in 1 row \(the first: row 5, site Bonn\); fill"),
    "NaN label": (replaced("outcome", 4, float("nan")), r"'outcome' is empty in 1 row"),
    "NA label": (replaced("outcome", 4, " NA "), r"'outcome' is empty in 1 row"),
    "empty site": (replaced("hospital", 0, " "), r"'hospital' is empty in 1 row \(the first: row 1\)"),
    "label's spelling": (replaced("outcome", 4, "Died "), r"a label in 2 ways, 'Died' and 'died' \(at site"),
    "inner blanks": (changed(outcome=lambda s: ["a b", "a  b", "c"] * 20), "'a  b' and 'a b'"),
    "accents": (replaced("hospital", 2, "Ko\u0308ln"), "spells a site in 2 ways"),
    "category's spelling": (replaced("sex", 1, "F"), "'sex' spells a category in 2 ways, 'F' and 'f'"),
    "two codes of labels": (replaced("outcome", 4, "1"), "holds numbers such as '1' and texts such as"),
    "one class": (changed(outcome=lambda s: "died"), "holds died in every row"),
    "a number to predict": (changed(outcome=lambda s: s["age"]), r"which is no class; make classes"),
    "too many classes": (
        changed(outcome=lambda s: [f"c{2 * i // 3}" for i in range(60)]),
        "40 different values in 60 rows; these are no",
    ),
    "dates": (changed(day=lambda s: [f"2024-03-{1 + i % 28:02d}" for i in range(60)]), "'day' holds dates"),
    "German dates": (changed(day=lambda s: [f"{1 + i % 28}.3.2024" for i in range(60)]), "'day' holds dates"),
    "times": (changed(day=lambda s: [f"2024-03-{1 + i % 28:02d} 10:00" for i in range(60)]), "'day' holds dates"),
    "time stamps": (changed(day=lambda s: pd.date_range("2024-01-01", periods=60)), "'day' holds dates"),
    "free text": (changed(note=lambda s: [f"patient {i} feels well" for i in range(60)]), "free text or an identifier"),
    "identifier": (changed(id=lambda s: range(1000, 1060)), "'id' numbers the rows"),
    "shuffled identifier": (
        changed(id=lambda s: np.random.default_rng(1).permutation(80)[:60]),
        "'id' numbers the rows",
    ),
    "identifier as text": (changed(id=lambda s: [f"P-{i:03d}" for i in range(60)]), "free text or an identifier"),
    "a text among numbers": (replaced("age", 3, "<5"), "'age' holds numbers and '<5'"),
    "infinite": (replaced("age", 3, float("inf")), "'age' holds infinite or huge numbers"),
    "huge": (replaced("age", 3, 1e300), "'age' holds infinite or huge numbers"),
    "empty column": (changed(nothing=lambda s: None), "'nothing' has no value in any row"),
    "lists": (changed(many=lambda s: [[1, 2]] * 60), "'many' holds values of the type list"),
}


def test_commas_that_may_divide_thousands_are_no_decimals(tmp_path: Path) -> None:
    """887 and 1,865 platelets; a column of 1,5 and 2 has decimal commas as before."""
    rows = [f"{'AB'[k % 2]}\t{value}\t{part}\t{'xy'[k % 3 > 0]}" for k, (value, part) in enumerate(
        [("456", "1,5"), ("887", "2"), ("1,865", "0,125"), ("1,701", "3")] * 8)]  # fmt: skip
    path = tmp_path / "sites.csv"
    path.write_text("\n".join(["hospital\tplatelets\tdose\toutcome", *rows]) + "\n", encoding="utf-8")
    with pytest.raises(UserError, match="'platelets' holds numbers and '1,865'"):
        load(path)
    doses = load(path, leave_out=("platelets",))
    assert sorted(set(doses.x[:, 0].tolist())) == [0.125, 1.5, 2.0, 3.0]


@pytest.mark.parametrize("as_text", [False, True])
def test_long_whole_numbers_as_labels_are_names(as_text: bool) -> None:
    """Beyond 2^53 two of them may be one floating number; an identifier by mistake is refused as any other."""
    codes = [2**60 + 1, 2**60 + 2]
    values = np.array(codes, np.int64)[np.arange(60) % 2]
    sites = frame().assign(outcome=values.astype(str) if as_text else values)
    assert table(sites, label="outcome", site="hospital").classes == tuple(map(str, codes))
    sites["outcome"] = 2**60 + np.arange(60)
    with pytest.raises(UserError, match="these are no classes"):
        table(sites, label="outcome", site="hospital")


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_named(kind: str) -> None:
    sites, message = BAD[kind]
    with pytest.raises(UserError, match=message):
        table(sites, label="outcome", site="hospital")


def test_all_problems_are_there(tmp_path: Path) -> None:
    sites = frame().assign(id=range(60), note=[f"text {i}" for i in range(60)])
    with pytest.raises(TableError, match="and 1 more problem; `bench data` lists them") as problem:
        load(write(tmp_path, sites))
    assert ["'id'" in problem.value.problems[0], "'note'" in problem.value.problems[1]] == [True, True]
    load(tmp_path / "sites.csv", leave_out=("id", "note"))


FILES: dict[str, tuple[str, str]] = {
    "no rows": ("hospital,age,outcome\n", "has 0 rows"),
    "one row": ("hospital,age,outcome\nA,1,x\n", "has 1 rows"),
    "nobody twice": ("hospital,age,outcome\nA,1.5,x\nB,2,y\n", "no class of a site has two rows"),
    "empty": ("", "cannot be read as a table"),
    "one column": ("outcome\nx\ny\n", "single column"),
    "a column twice": ("hospital,age,age,outcome\nA,1,2,x\n", "2 columns 'age'"),
    "twice but for blanks": ("hospital,age, age ,outcome\nA,1,2,x\n", "2 columns 'age'"),
    "no name": ("hospital,,age,outcome\nA,1,2,x\n", "column 2 has no name"),
    "a cell too many": ("hospital,age,outcome\nA,1,x\nA,1,x,3\n", "line 3"),
    "no such column": (
        "site,age,outcome\nA,1,x\nA,2,y\n",
        "no column 'hospital', which `site_column` names. Did you mean 'site'",
    ),
    "misspelt": ("hospitals,age,outcome\nA,1,x\nA,2,y\n", "Did you mean 'hospitals'"),
    "two decimal signs": ("hospital;age;outcome\n" + "A;1,5;x\nA;2.5;y\nA;3,1;x\n" * 2, "holds numbers and '1,5'"),
}


@pytest.mark.parametrize("kind", FILES)
def test_odd_files_are_named(kind: str, tmp_path: Path) -> None:
    text, message = FILES[kind]
    path = tmp_path / "odd file.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as problem:
        load(path)
    assert "odd file.csv" in str(problem.value)


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes("hospital,age,outcome\nKöln,1,x\n".encode("latin-1"))
    (tmp_path / "sites.parquet").write_bytes(b"PAR1 but nothing else")
    (tmp_path / "empty").mkdir()
    for name, kind, message in (
        ("latin.csv", "csv", "UTF-8"),
        ("none.csv", "csv", "there is no table .*none.csv; set the option `path`"),
        ("none.parquet", "parquet", "there is no table "),
        ("sites.parquet", "parquet", "cannot be read as a Parquet file"),
        ("empty", "csv", "has no files that end in .csv"),
    ):
        with pytest.raises(UserError, match=message):
            load(tmp_path / name, kind)


def test_sites_of_a_folder_have_the_same_columns(tmp_path: Path) -> None:
    sites = frame().drop(columns="hospital")
    write(tmp_path, sites, "A.csv")
    write(tmp_path, sites.rename(columns={"age": "years"}), "B.csv")
    with pytest.raises(UserError, match=r"A.csv and .*B.csv: only one of them has a column 'age'"):
        load(tmp_path, site_column="")
    write(tmp_path, sites[["outcome", "sex", "pressure", "age"]], "B.csv")
    write(tmp_path, sites.assign(more=1), "C.csv")
    with pytest.raises(UserError, match=r"A.csv and .*C.csv: only one of them has a column 'more'"):
        load(tmp_path, site_column="")
    assert load(tmp_path, site_column="", leave_out=("more",)).group_names == ("A", "B", "C")


@pytest.mark.parametrize("other", ["D.tsv", "D.XLSX", "D.parquet", "D.csv.gz"])
def test_no_site_of_a_folder_is_left_out_in_silence(other: str, tmp_path: Path) -> None:
    """Each site sends what it has; other files, such as a text about the data, are no tables."""
    sites = frame().drop(columns="hospital")
    for name in ("A.csv", "B.csv"):
        write(tmp_path, sites, name)
    (tmp_path / "README.txt").write_text("two sites")
    (tmp_path / ".D.tsv").write_text("hidden")
    assert load(tmp_path, site_column="").group_names == ("A", "B")
    (tmp_path / other).write_text("age\toutcome\n")
    with pytest.raises(UserError, match=f"has files .csv and '{other}', which would be left out"):
        load(tmp_path, site_column="")


NOTES: dict[str, tuple[pd.DataFrame, str]] = {
    "label in a column": (
        changed(code=lambda s: (s["outcome"] == "died") * 2.5 + s["age"] / 1000), "'code' alone tells the label"
    ),
    "label in a category": (changed(code=lambda s: "x" + s["outcome"]), "'code' alone tells the label"),
    "label in gaps": (changed(left=lambda s: s["age"].where(s["outcome"] == "lived")), "'left' alone tells"),
    "gaps": (frame(), r"lack values: pressure \(15 %\), sex \(10 %\)"),
    "one class at a site": (
        changed(outcome=lambda s: s["outcome"].where(s["hospital"] != "Bonn", "died")),
        "site Bonn has one class only, died",
    ),
    "nothing at a site": (
        changed(age=lambda s: s["age"].where(s["hospital"] != "Bonn")), "site Bonn has no value in the column 'age'"
    ),
    "a small site": (changed(hospital=lambda s: ["Kleve"] * 3 + s["hospital"].tolist()[3:]), "site Kleve has 3 rows"),
    "a person twice": (
        pd.concat([frame(), frame().iloc[[3]].assign(hospital="Bonn")], ignore_index=True),
        r"2 rows are equal at several sites, most at Aachen and Bonn \(such as row 4 and row 61\)",
    ),
    "tests in training": (pd.concat([frame(), frame()], ignore_index=True), "for tests equal rows for training"),
}  # fmt: skip


@pytest.mark.parametrize("kind", NOTES)
def test_oddities_are_noted(kind: str) -> None:
    sites, note = NOTES[kind]
    notes = table(sites, label="outcome", site="hospital").notes
    assert any(re.search(note, text) for text in notes), notes


def test_a_sound_table_has_no_notes() -> None:
    notes = table(frame().dropna(), label="outcome", site="hospital").notes
    assert ["the labels that occur are its classes" in note for note in notes] == [True]


def test_a_frame_is_a_data_set_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another frame makes another cell."""
    frames = [frame(), frame(seed=1)]

    def load_frame(*, data_root: Path, download: bool) -> Dataset:
        return bench.table(frames[0], label="outcome", site="hospital")

    monkeypatch.setitem(DATASETS._items, "hospitals", load_frame)
    settings = Settings(method="local", dataset="hospitals", partition="natural", clients=3)
    ids = []
    for _ in range(2):
        _loaded.cache_clear()
        ids.append(plan([settings], tmp_path, download=False)[0].id)
        frames.reverse()
    assert ids[0] != ids[1]
