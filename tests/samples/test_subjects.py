"""Subjects: rows of a patient, or windows of a recording, are on one side of every division."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.data import Dataset, Partition
from bench.errors import UserError
from bench.results.data_description import portrait, remarks
from bench.samples import normalising
from bench.samples.subjects import most_frequent, split_off_validation
from datasets.tables import table
from tests.datasets.helpers import divide, load_from, load_npz, paint


def frame(seed: int = 0, patients: int = 90, most: int = 6, shared: int = 0) -> pd.DataFrame:
    """Three sites; every patient has between one row and `most`, alike and of one outcome; the first `shared` patients
    have rows at all sites."""
    rng = np.random.default_rng(seed)
    of = np.repeat(np.arange(patients), rng.integers(1, most + 1, patients))
    prints, outcome = rng.normal(size=(patients, 4)), rng.integers(0, 2, patients)
    site = np.where(of < shared, rng.integers(0, 3, len(of)), of % 3)
    rows = pd.DataFrame(prints[of] + 0.01 * rng.normal(size=(len(of), 4)), columns=[*"abcd"])
    rows = rows.assign(site=np.array(["A", "B", "C"])[site], outcome=np.array(["ill", "well"])[outcome[of]])
    return rows.assign(patient=[f"P{number}" for number in of]).sample(frac=1, random_state=seed, ignore_index=True)


def read(rows: pd.DataFrame, **options: Any) -> Dataset:
    return table(rows, label="outcome", site="site", **{"subject": "patient", **options})


def sides(data: Dataset, partition: Partition) -> tuple[set[int], set[int], set[int]]:
    """The subjects that are trained on, validated on and tested on."""
    assert data.subjects is not None
    tests = [*partition.test, partition.global_test]
    lists = (partition.train, partition.validation, tests)
    first, second, third = ({int(s) for indices in part for s in data.subjects[indices]} for part in lists)
    return first, second, third


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 99),
    patients=st.integers(12, 120),
    most=st.integers(1, 9),
    shared=st.integers(0, 40),
    division=st.sampled_from([("natural", None), ("dirichlet", 0.3), ("iid", None)]),
)
def test_no_subject_is_on_two_sides(
    seed: int, patients: int, most: int, shared: int, division: tuple[str, float | None]
) -> None:
    """Under any partition, of which some give a subject's rows to several clients; no sample is lost or doubled."""
    data = read(frame(seed, patients, most, shared))
    name, alpha = division
    clients = len(data.group_names)
    partition = divide(data, name, clients, seed, alpha=alpha)
    trained, validated, tested = sides(data, partition)
    assert not trained & validated
    assert not trained & tested
    assert not validated & tested
    dealt = np.concatenate([*partition.train, *partition.validation])
    assert sorted(dealt.tolist()) == list(range(data.n_train))
    assert divide(data, name, clients, seed, alpha=alpha).hash == partition.hash
    for client, indices in enumerate(partition.train):
        assert len(indices) or not len(partition.validation[client])


def test_a_quarter_of_each_site_s_patients_is_for_tests_whatever_the_seed() -> None:
    rows = frame(patients=240)
    data = read(rows)
    patients = rows.groupby("patient").agg(site=("site", "first"), outcome=("outcome", "first"))
    assert data.rows is not None
    tested = set(rows["patient"].iloc[data.rows[data.n_train :]])
    for _, members in patients.groupby(["site", "outcome"]):
        assert len(tested & set(members.index)) == int(0.25 * len(members) + 0.5)
    first, other = divide(data, seed=0), divide(data, seed=1)
    assert [at.tolist() for at in first.test] == [at.tolist() for at in other.test]
    assert sides(data, first)[1] != sides(data, other)[1]


def test_a_share_of_each_client_s_subjects_is_validated_on() -> None:
    """By hand: client 0 has subjects 0 to 7, of which two of four of each label; client 1 has 8, its only one."""
    subjects = np.repeat(np.arange(9), [1, 2, 3, 4, 5, 6, 7, 8, 9])
    y = (subjects % 2).astype(np.int64)
    lists = [np.flatnonzero(subjects < 8), np.flatnonzero(subjects == 8)]
    (train, held), (only, none) = split_off_validation(y, subjects, lists, 0.5, seed=3)
    assert not none.size
    assert only.tolist() == lists[1].tolist()
    chosen = np.unique(subjects[held])
    assert np.bincount(chosen % 2).tolist() == [2, 2]
    assert held.tolist() == np.flatnonzero(np.isin(subjects, chosen)).tolist()
    assert sorted([*train, *held]) == lists[0].tolist()


def test_subjects_of_several_clients_are_held_out_by_all_of_them() -> None:
    """Half of ten that both clients have; and of a client whose every subject is shared, one stays for training."""
    subjects = np.tile(np.arange(10), 2)
    lists = [np.arange(10), np.arange(10, 20)]
    pairs = split_off_validation(np.zeros(20, np.int64), subjects, lists, 0.5, seed=0)
    assert [set(subjects[held].tolist()) for _, held in pairs] == [set(subjects[pairs[0][1]].tolist())] * 2
    assert [len(held) for _, held in pairs] == [5, 5]
    pairs = split_off_validation(np.zeros(20, np.int64), subjects, lists, 1.0, seed=0)
    assert [len(train) for train, _ in pairs] == [1, 1]


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from("abc")), min_size=1, max_size=40))
def test_the_most_frequent_value_is_counted(pairs: list[tuple[int, str]]) -> None:
    owners, values = (np.array(column) for column in zip(*pairs, strict=True))
    _, numbers = np.unique(owners, return_inverse=True)
    names = np.unique(values)
    for subject, place in enumerate(most_frequent(values, numbers)):
        here = values[numbers == subject].tolist()
        assert here.count(str(names[place])) == max(here.count(value) for value in here)


def test_the_column_is_no_feature_and_copies_have_their_subjects() -> None:
    rows = frame()
    data = read(rows)
    assert data.features == ("a", "b", "c", "d")
    assert data.table is not None
    assert data.table["ignored"] == ["outcome", "site", "patient"]
    assert data.subjects is not None
    assert data.rows is not None
    of_rows = rows["patient"].iloc[data.rows].to_numpy()
    assert len(set(zip(data.subjects.tolist(), of_rows, strict=True))) == len(set(of_rows)) == data.subjects.max() + 1
    partition = divide(data)
    copies, seen = normalising.apply(data, partition, "per_client", range(3))
    assert copies.subjects is not None
    for own, original in zip(seen.test, partition.test, strict=True):
        assert copies.subjects[own].tolist() == data.subjects[original].tolist()
    part = data.subset(np.arange(5), 5)
    assert part.subjects is not None
    assert part.subjects.tolist() == data.subjects[:5].tolist()


SHARES: dict[str, Any] = {"shares": [0.6, 0.2, 0.2]}


@pytest.mark.parametrize(
    ("name", "protocol", "options", "message"),
    [
        ("iid", "honest", SHARES, "puts rows of .* on both sides, such as .* leave out `shares`"),
        ("iid", "tuning", SHARES, "on both sides"),
        ("iid", "paper", SHARES, "on both sides"),
        ("classes", "honest", {"k": 2}, "partition 'classes' puts rows"),
    ],
)
def test_partitions_that_would_part_a_subject_are_refused(
    name: str, protocol: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        divide(read(frame()), name, protocol=protocol, **options)


@pytest.mark.parametrize("protocol", ["honest", "paper"])
def test_shares_divide_each_site_s_subjects(protocol: str) -> None:
    data = read(frame(patients=300))
    first, other = (divide(data, seed=seed, protocol=protocol, **SHARES) for seed in (0, 1))
    for partition in (first, other):
        assert [len(numbers) for numbers in sides(data, partition)] == [180, 60, 60]
    same = [at.tolist() for at in first.test] == [at.tolist() for at in other.test]
    assert same == (protocol == "honest")
    assert sides(data, first)[1] != sides(data, other)[1]
    with pytest.raises(UserError, match="leave out `shares`"):
        divide(read(frame(patients=300, shared=60)), protocol=protocol, **SHARES)


def test_what_is_wrong_with_the_column_is_said() -> None:
    rows = frame()
    for changed, options, message in (
        (rows.assign(patient=rows["patient"].where(rows.index != 4)), {}, "subjects 'patient' is empty in 1 row .the"),
        (rows.assign(patient=rows["patient"].where(rows.index != 4, "p1")), {}, "spells a subject in 2 ways"),
        (rows, {"subject": "patients"}, "`subject_column` names. Did you mean 'patient'"),
        (rows, {"subject": "site"}, "'site' has two uses"),
        (rows, {"leave_out": ("patient",)}, "has two uses"),
        (rows.assign(patient=rows["site"]), {}, "no class of a site has two subjects"),
    ):
        with pytest.raises(UserError, match=message):
            read(changed, **options)


def test_what_is_to_be_known_is_noted() -> None:
    rows = frame(shared=5)
    notes = read(rows).notes
    assert any("are of 90 subjects, up to 6 of one" in note for note in notes)
    assert any("subjects have rows at several sites, such as 'P0'" in note for note in notes)
    assert not any("several sites, such as" in note for note in read(frame()).notes)


@pytest.mark.parametrize("name", ["patient", "PatientID", "subject_no", "id", "participants", "user.code"])
def test_a_column_that_may_name_subjects_is_hinted_at(name: str) -> None:
    """Also where it is left out, as a name is no feature; but not where every row has another value."""
    rows = frame().rename(columns={"patient": name})
    hint = f"the column '{name}' has 90 values in {len(rows)} rows: if it says of whom a row is"
    assert any(hint in note for note in read(rows, subject="", leave_out=(name,)).notes)
    numbered = rows.assign(**{name: rows[name].str[1:].astype(int)})
    assert any(hint in note for note in read(numbered, subject="").notes)
    single = rows.assign(**{name: [f"P{row}" for row in range(len(rows))]})
    assert not any("if it says" in note for note in read(single, subject="", leave_out=(name,)).notes)
    assert not any("if it says" in note for note in read(rows, subject=name).notes)


def test_a_site_s_test_says_no_more_than_its_subjects() -> None:
    """Kish's effective number: 100 rows of eight subjects, 12 or 13 of each, are worth eight."""
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"x": rng.normal(size=800), "outcome": np.repeat(["ill", "well"], 400)})
    rows["site"], rows["patient"] = np.tile(["A", "B"], 400), np.repeat(np.arange(32), 25)
    rows["patient"] = rows["site"] + rows["patient"].astype(str)
    for subject, independent in (("patient", 8), ("", 100)):
        data = read(rows, subject=subject, leave_out=() if subject else ("patient",))
        sites = portrait(data, divide(data, clients=2))
        assert [site.test for site in sites] == pytest.approx([100] * 2, abs=4)
        assert [site.within for site in sites] == pytest.approx([98 / independent**0.5] * 2, rel=0.02)
        small = " ".join(remarks(sites, data.classes, by_subject=bool(subject)))
        assert ("those of a subject counted as alike: A" in small) == bool(subject)


def test_windows_of_recordings_in_an_npz_file(tmp_path: Path) -> None:
    """With and without a test part of its own; a recording in both parts is refused."""
    rng = np.random.default_rng(1)
    recording = np.repeat([f"r{number}" for number in range(40)], 5)
    arrays = {"train_series": rng.normal(size=(200, 3, 8)), "train_labels": np.repeat(np.arange(40) % 2, 5)}
    data = load_npz(tmp_path, **arrays, subjects=recording, groups=np.repeat(np.arange(2), 100))
    assert data.n_train == 150
    trained, validated, tested = sides(data, divide(data, clients=2, validation_share=0.25))
    assert (len(trained), len(validated), len(tested)) == (22, 8, 10)
    parts = {name: array[:150] for name, array in arrays.items()}
    parts |= {name.replace("train", "test"): array[150:] for name, array in arrays.items()}
    assert load_npz(tmp_path, **parts, subjects=recording).n_train == 150
    with pytest.raises(UserError, match="both have samples of 1 of 39 subjects, such as 'r0'"):
        load_npz(tmp_path, **parts, subjects=np.where(recording == "r39", "r0", recording))


def folder(
    place: Path, patients: int = 40, pictures: int = 3, name: str = "patient{}_{}.png", **options: Any
) -> Dataset:
    """Pictures of two sites and two classes, `pictures` of each patient."""
    for patient in range(patients):
        directory = place / f"site{patient % 2}" / ("ill" if patient // 2 % 2 else "well")
        for number in range(pictures):
            paint(directory / name.format(patient, number), (patient, number, 0))
    return load_from("image_folder", place, groups=True, **options)


@pytest.mark.parametrize("expression", ["patient[0-9]+", "(?:ill|well)/patient([0-9]+)_", "^([^/]+)/.*(patient[0-9]+)"])
def test_pictures_of_a_patient_are_told_by_their_paths(tmp_path: Path, expression: str) -> None:
    data = folder(tmp_path, subject=expression)
    assert data.subjects is not None
    assert np.bincount(data.subjects).tolist() == [3] * 40
    trained, validated, tested = sides(data, divide(data, clients=2))
    assert (len(trained | validated), len(tested), len(trained | validated | tested)) == (30, 10, 40)
    assert any("the pictures are of 40 subjects, up to 3 of one" in note for note in data.notes)
    assert not any("if they say of whom" in note for note in data.notes)


def test_a_patient_in_both_parts_or_both_classes_is_one(tmp_path: Path) -> None:
    """The part's folder is not searched, so that an expression from the beginning takes nobody for two."""
    expression = "^([^/]+)/.*(patient[0-9]+)"
    folder(tmp_path / "train", patients=8)
    folder(tmp_path / "test", patients=8, name="patient9{}_{}.png")
    data = load_from("image_folder", tmp_path, groups=True, subject=expression)
    assert (data.n_train, len(data.y)) == (24, 48)
    first = tmp_path / "train" / "site0" / "ill" / "patient2_0.png"
    shutil.copy(first, tmp_path / "train" / "site0" / "well" / "patient2_8.png")
    shutil.copy(first, tmp_path / "train" / "site1" / "well" / "patient2_8.png")
    data = load_from("image_folder", tmp_path, groups=True, subject=expression)
    assert data.subjects is not None
    assert sorted(np.bincount(data.subjects[: data.n_train]).tolist())[-2:] == [3, 4]
    shutil.copy(first, tmp_path / "test" / "site0" / "well" / "patient2_7.png")
    with pytest.raises(UserError, match=r"both have samples of 1 of .* subjects, such as 'site0 patient2'"):
        load_from("image_folder", tmp_path, groups=True, subject=expression)


def test_an_expression_that_finds_no_patient_is_refused(tmp_path: Path) -> None:
    folder(tmp_path)
    for expression, message in (
        ("person[0-9]+", r"'person\[0-9\]\+' finds nothing in 120 of 120 paths, such as 'site0/ill/patient2_0.png'"),
        ("patient(1[0-9]*)?", "finds nothing in 87 of 120 paths"),
        ("patient[", "is not a regular expression"),
    ):
        with pytest.raises(UserError, match=message):
            load_from("image_folder", tmp_path, groups=True, subject=expression)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("patient{}_{}.png", "patient2"), ("Subject-{}-left{}.png", "Subject-2"), ("TCGA_{}_slice{}.png", "TCGA_2"),
        ("{}-{}.png", "2"),
    ],
)  # fmt: skip
def test_names_that_may_tell_patients_are_hinted_at(tmp_path: Path, name: str, part: str) -> None:
    """What the hint proposes finds the patients."""
    notes = folder(tmp_path, name=name).notes
    (hint,) = [note for note in notes if "if they say of whom" in note]
    assert f"the names of 120 pictures have 40 parts such as '{part}':" in hint
    match = re.search("`subject: '(.*)'`", hint)
    assert match is not None
    data = load_from("image_folder", tmp_path, groups=True, subject=match[1])
    assert data.subjects is not None
    assert data.subjects.max() == 39


@pytest.mark.parametrize("arguments", [{"pictures": 1}, {"name": "IMG{}0{}.png"}, {"patients": 8}])
def test_other_names_are_not(tmp_path: Path, arguments: dict[str, Any]) -> None:
    """A number for each picture, and the few of a camera or a day."""
    assert not any("if they say of whom" in note for note in folder(tmp_path, **arguments).notes)
