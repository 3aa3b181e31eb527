"""Notes on equal samples of a user's data."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasets.copies import equal_places
from datasets.tables import table
from tests.datasets.helpers import load_from, load_npz, paint


@given(st.lists(st.integers(0, 5), max_size=30))
def test_equal_places_are_all_places_of_each_key_that_repeats(keys: list[int]) -> None:
    groups = equal_places(keys)
    assert [keys.count(keys[group[0]]) for group in groups] == [len(group) for group in groups]
    assert all(len({keys[place] for place in group}) == 1 for group in groups)
    repeated = [place for place, key in enumerate(keys) if keys.count(key) > 1]
    assert sorted(place for group in groups for place in group) == repeated


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
def test_copies_in_an_npz_file_are_noted(tmp_path: Path, dtype: str) -> None:
    """The third and fourth training sample are tested on, then at another site, then with other labels."""
    images = (np.arange(30)[:, None, None] * np.ones((1, 4, 4))).astype(dtype)
    parts: dict[str, Any] = {
        "train_images": images[:20], "train_labels": np.arange(20) % 2,
        "test_images": images[20:], "test_labels": np.arange(10) % 2,
    }  # fmt: skip
    assert load_npz(tmp_path, **parts).notes == ()
    parts["test_images"] = np.concatenate([images[[2, 3]], images[22:]])
    (leak,) = load_npz(tmp_path, **parts).notes
    assert leak == "mine: 2 samples for tests equal samples for training (the first: sample 21)"
    (across, _) = load_npz(tmp_path, **parts, groups=np.repeat(["A", "B"], [20, 10])).notes
    assert "4 samples are equal at several sites, most at A and B (such as sample 3 and sample 21)" in across
    parts["test_labels"] = 1 - parts["test_labels"]
    (_, contrary) = load_npz(tmp_path, **parts).notes
    assert contrary == "mine: 4 samples are equal and have different labels (such as sample 3 and sample 21)"


def test_copies_in_a_file_without_a_test_part_are_named_by_their_place_in_it(tmp_path: Path) -> None:
    """Each sample twice, so that all for tests but pairs of them are copies."""
    images = np.tile(np.arange(200, dtype=np.uint8), 2)[:, None, None] * np.ones((1, 2, 2), np.uint8)
    data = load_npz(tmp_path, train_images=images, train_labels=np.zeros(400, int))
    assert data.rows is not None
    tested = set(data.rows[data.n_train :].tolist())
    leaking = sorted(row for row in tested if (row + 200) % 400 not in tested)
    count, first = len(leaking), leaking[0] + 1
    assert data.notes == (f"mine: {count} samples for tests equal samples for training (the first: sample {first})",)


@pytest.mark.parametrize(
    ("shades", "notes"),
    [
        (
            {"train/a/1": 10, "train/a/2": 20, "train/b/3": 20, "test/a/4": 10},
            (
                "mine: 1 picture for tests equals pictures for training (the first: test/a/4.png)",
                "mine: 2 pictures are equal and have different labels (such as train/a/2.png and train/b/3.png)",
            ),
        ),
        (
            {"train/a/1": 10, "train/a/2": 20, "val/a/3": 20, "test/a/4": 30},
            ("mine: 1 picture for validation equals pictures for training (the first: val/a/3.png)",),
        ),
    ],
)
def test_copies_of_pictures_are_named_by_their_files(
    tmp_path: Path, shades: dict[str, int], notes: tuple[str, ...]
) -> None:
    for name, shade in shades.items():
        paint(tmp_path / f"{name}.png", (shade, 0, 0))
    assert load_from("image_folder", tmp_path, name="mine").notes == notes


@pytest.mark.parametrize("tests", [0, 10])
def test_a_validation_part_that_repeats_training_samples_is_noted(tmp_path: Path, tests: int) -> None:
    """Of 50 samples for validation 39 (78 %) repeat training samples; of those held out for tests other notes speak."""
    images = np.arange(200, dtype=np.uint8)[:, None, None] * np.ones((1, 4, 4), np.uint8)
    repeats = np.concatenate([images[:39], images[150:161]])
    parts = {"train": images[:150], "val": repeats} | ({"test": images[161 : 161 + tests]} if tests else {})
    labels = {f"{part}_labels": np.arange(len(samples)) % 2 for part, samples in parts.items()}
    data = load_npz(tmp_path, **{f"{part}_images": samples for part, samples in parts.items()}, **labels)
    rows = np.arange(200 + tests) if data.rows is None else data.rows
    tested = set(rows[data.n_train :].tolist())
    repeating = [row for row in range(150, 189) if row not in tested and row - 150 not in tested]
    assert (len(repeating) == 39) == bool(tests)
    note = f"mine: {len(repeating)} samples for validation equal samples for training (the first: sample "
    assert [text for text in data.notes if "validation" in text] == [f"{note}{repeating[0] + 1})"]


def test_rows_for_validation_and_tests_that_repeat_training_ones_are_noted() -> None:
    rows = [(0.1, "a", "train"), (0.5, "b", "train"), (0.1, "a", "validation"), (0.5, "b", "test"), (0.1, "a", "test")]
    data = table(pd.DataFrame(rows, columns=["x", "y", "part"]), label="y", part="part")
    assert [note for note in data.notes if "equal" in note] == [
        "table: 2 rows for tests equal rows for training (the first: row 4)",
        "table: 1 row for validation equals rows for training (the first: row 3)",
    ]
