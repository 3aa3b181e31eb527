"""Partitions: nothing is lost or given twice, and every list is what the papers say."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.data import Dataset, Partition, without_tests
from bench.errors import UserError
from bench.samples.local_parts import label_counts
from datasets.partitions import cut, divide
from tests.datasets import helpers


def labelled(train: list[int], test: list[int], num_classes: int = 0) -> Dataset:
    """A data set of given labels."""
    y = np.array(train + test, dtype=np.int64)
    x = np.zeros((len(y), 1), np.float32)
    return Dataset("toy", x, y, len(train), num_classes or int(y.max()) + 1, (0.0,), (1.0,), "-")


def make(dataset: Dataset, name: str = "dirichlet", *, options: Any = None, **changes: Any) -> Partition:
    arguments: dict[str, Any] = {"clients": 5, "alpha": 0.5 if name == "dirichlet" else None, **changes}
    return helpers.divide(dataset, name, **arguments, **(options or {}))


TOY = labelled([0, 1, 2, 3] * 50, [0, 1, 2, 3] * 20)

labels = st.lists(st.integers(0, 4), min_size=1, max_size=120)
cells = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["dirichlet", "iid"]),
        "clients": st.integers(1, 12),
        "alpha": st.floats(1e-6, 1e6),
        "seed": st.integers(0, 5),
        "protocol": st.sampled_from(["honest", "paper"]),
        "validation_share": st.floats(0, 0.99),
    }
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Dataset, dict[str, Any]]:
    cell = draw(cells)
    train = draw(labels.filter(lambda one: len(one) >= cell["clients"]))
    return labelled(train, draw(labels), 5), cell if cell["name"] == "dirichlet" else {**cell, "alpha": None}


@given(cases())
@settings(max_examples=150, deadline=None)
def test_every_training_sample_has_one_place_and_held_out_parts_keep_proportions(
    case: tuple[Dataset, dict[str, Any]],
) -> None:
    """Validation shares leave a training sample; local tests have the label mix of all local training data."""
    dataset, cell = case
    partition = make(dataset, **cell)
    assert sorted(np.concatenate([*partition.train, *partition.validation])) == list(range(dataset.n_train))
    assert len(partition) == len(partition.validation) == len(partition.test) == cell["clients"]
    assert partition.global_test.tolist() == list(range(dataset.n_train, len(dataset.y)))
    share = cell["validation_share"] if cell["protocol"] == "honest" else 0.0
    y_test = dataset.y[dataset.n_train :]
    available = np.bincount(y_test, minlength=5)
    for own, held, test in zip(partition.train, partition.validation, partition.test, strict=True):
        n = len(own) + len(held)
        assert len(held) == max(0, min(round(share * n), n - 1))
        whole = np.bincount(dataset.y[np.concatenate([own, held])], minlength=5)
        exact = whole * len(held) / max(1, n)
        assert (np.abs(np.bincount(dataset.y[held], minlength=5) - exact) < 1).all()
        due = whole * len(y_test) / dataset.n_train
        found = np.bincount(dataset.y[test], minlength=5)
        assert (found <= available).all()
        if cell["protocol"] == "paper":  # as the code of SCD's authors
            assert found.tolist() == np.minimum(whole * len(y_test) // dataset.n_train, available).tolist()
        else:
            assert (np.abs(found - np.minimum(due, available)) < 1).all()
            if (np.ceil(due) <= available).all():
                assert len(test) == int(due.sum() + 0.5)
        assert len(set(test)) == len(test)
        assert (test >= dataset.n_train).all()


DRAWS_TESTS: list[tuple[str, dict[str, Any]]] = [
    ("dirichlet", {}),
    ("dirichlet", {"shares": [0.75, 0, 0.25]}),
    ("dirichlet", {"shares": [[0.1, 0.3, 0.4], 0.1, 0.5], "top_up": 8, "balanced": True}),
    ("iid", {"shares": [0.5, 0.25, 0.25]}),
    ("classes", {"k": 3}),
]


@pytest.mark.parametrize(("name", "options"), DRAWS_TESTS)
def test_no_trial_of_any_seed_has_a_sample_that_some_seed_reports_on(name: str, options: dict[str, Any]) -> None:
    """Blindness is across seeds too: the overlap is 0, where cutting anew for each seed left most tests seen before."""
    trials = [make(TOY, name, seed=seed, protocol="tuning", options=options) for seed in range(100, 106)]
    reports = [make(TOY, name, seed=seed, options=options) for seed in range(6)]
    seen = np.unique(np.concatenate([one for trial in trials for one in (*trial.train, *trial.validation)]))
    tested = np.unique(np.concatenate([one for report in reports for one in (*report.test, report.global_test)]))
    assert len(seen) > 50
    assert len(tested) > 20
    assert len(np.intersect1d(seen, tested)) == 0
    kept = reports[0].kept
    assert all(np.array_equal(one.kept, kept) for one in (*trials, *reports))
    assert not options or set(tested) <= set(kept)
    assert len({str([test.tolist() for test in report.test]) for report in reports}) == 6  # dealt anew by each seed


def test_without_tests_nothing_is_copied_where_all_training_samples_are_used() -> None:
    smaller, same = without_tests(TOY, found := make(TOY, protocol="tuning"))
    assert smaller.x.base is TOY.x
    assert same is found


def test_shares_cut_all_samples_of_each_client() -> None:
    """PGFed: 75 % for training and 25 % for tests, rounded; COMET: 10, 30 or 40 % for training, 10 and 50 % else."""
    two = make(TOY, options={"shares": [0.75, 0, 0.25]}, protocol="paper")
    assert sum(map(len, (*two.train, *two.test))) == len(TOY.y) == 280
    for train, held, test in zip(two.train, two.validation, two.test, strict=True):
        assert len(train) == round(0.75 * (len(train) + len(test)))
        assert len(held) == 0
    fixed = make(TOY, options={"shares": [0.75, 0, 0.25]})
    assert sum(map(len, fixed.validation)) > 30  # the cell's validation share
    for train, held, test in zip(fixed.train, fixed.validation, fixed.test, strict=True):
        assert abs(len(test) - 0.25 * (len(train) + len(held) + len(test))) <= 4  # one of each class
    three = make(TOY, "iid", clients=28, options={"shares": [[0.1, 0.3, 0.4], 0.1, 0.5]})
    sizes = [tuple(map(len, own)) for own in zip(three.train, three.validation, three.test, strict=True)]
    assert set(sizes) == {(1, 1, 5), (3, 1, 5), (4, 1, 5)}


def test_a_client_s_cut_depends_on_no_other_client() -> None:
    """The same samples of the same client are cut in the same way, whatever the others have."""
    shares = ([0.1, 0.3, 0.4], 0.1, 0.5)
    found = make(TOY, options={"shares": list(shares)}, alpha=0.5, seed=4, protocol="paper")
    whole = make(TOY, options={"shares": [1, 0, 0]}, alpha=0.5, seed=4, protocol="paper")
    for i in reversed(range(5)):
        parts = cut(whole.train[i], shares, 4, i)
        for one, other in zip(parts, (found.train[i], found.validation[i], found.test[i]), strict=True):
            assert np.array_equal(one, other)


def test_the_least_number_of_samples_is_reached_by_further_draws() -> None:
    plain = [make(TOY, seed=seed, alpha=0.3, protocol="paper") for seed in range(8)]
    least = [make(TOY, seed=seed, alpha=0.3, protocol="paper", options={"min_samples": 15}) for seed in range(8)]
    enough = [min(map(len, one.train)) >= 15 for one in plain]
    assert 0 < sum(enough) < 8
    for before, after, was_enough in zip(plain, least, enough, strict=True):
        assert min(map(len, after.train)) >= 15
        assert (after.hash == before.hash) == was_enough  # the first draw that does is taken


def test_topping_up_takes_from_the_clients_that_have_the_most() -> None:
    before = make(TOY, alpha=0.01, clients=10, protocol="paper")
    after = make(TOY, alpha=0.01, clients=10, protocol="paper", options={"top_up": 8})
    sizes = [len(own) for own in before.train]
    assert min(sizes) == 0
    assert min(len(own) for own in after.train) == 8
    for old, new, size in zip(before.train, after.train, sizes, strict=True):
        assert set(new) <= set(old) if size > 8 else set(new) >= set(old)
        assert len(new) == 8 or size > 8
    exact = make(TOY, alpha=0.01, clients=10, protocol="paper", options={"top_up": 20})
    assert [len(own) for own in exact.train] == [20] * 10


def test_balanced_clients_get_nothing_more_once_they_have_their_part() -> None:
    """Classes of 50 go whole to one of five clients, whose part is 50, so at most one class comes on top of it."""
    dataset = labelled([0, 1, 2, 3, 4] * 50, [0])

    def most(seed: int, **options: Any) -> int:
        found = make(dataset, alpha=1e-6, seed=seed, protocol="paper", options=options)
        return max(map(len, found.train))

    assert all(most(seed) >= 100 for seed in range(5))
    assert all(most(seed, balanced=True) < 100 for seed in range(5))


def test_k_classes_per_client_in_equal_buckets() -> None:
    """SPFL on four classes of 50: of ten clients each has three buckets of five, four samples of each for training."""
    own = make(TOY, "classes", clients=10, seed=2, protocol="paper", options={"k": 3})
    common = make(TOY, "classes", clients=10, protocol="paper", options={"k": 3, "same_classes": True})
    for partition, kinds in ((own, 4), (common, 1)):
        train = label_counts(TOY, partition.train)
        test = np.stack([np.bincount(TOY.y[one], minlength=4) for one in partition.test])
        assert np.array_equal(np.sort(train, axis=1), [[0, 4, 4, 4]] * 10)
        assert np.array_equal(test * 4, train)
        assert len(np.unique(train, axis=0)) == kinds
        assert max(map(max, partition.train)) < TOY.n_train
        assert len(np.unique(np.concatenate(partition.train))) == train.sum()  # nobody has another's samples
    seven = make(TOY, "classes", clients=7, protocol="paper", options={"k": 4, "test_share": 0})
    assert label_counts(TOY, seven.train).tolist() == [[7] * 4] * 7  # 50 // 7: one sample of each class is not used


def test_shares_are_rounded_at_their_running_sums() -> None:
    """0.3, 0.6, 1.0 of five samples: the cuts 1.5 and 3.0 are rounded (half to even) to 2 and 3."""
    parts = divide(np.arange(5), np.array([0.3, 0.3, 0.4]))
    assert [part.tolist() for part in parts] == [[0, 1], [2], [3, 4]]


def test_iid_sizes_differ_by_one_at_most() -> None:
    sizes = [len(own) for own in make(TOY, "iid", clients=7, protocol="paper").train]
    assert sorted(sizes) == [28] * 3 + [29] * 4


@pytest.mark.parametrize("name", ["dirichlet", "iid"])
def test_the_seed_decides_training_lists_validation_shares_and_local_tests(name: str) -> None:
    seeds = [make(TOY, name, seed=seed) for seed in range(10)]
    for lists in ("train", "validation", "test"):
        assert len({str([own.tolist() for own in getattr(one, lists)]) for one in seeds}) == 10
    assert len({one.hash for one in seeds}) == 10
    assert seeds[3].hash == make(TOY, name, seed=3).hash


def test_hash_of_a_known_partition() -> None:
    """In every process, whatever its hash seed. A change changes every result on disk: raise RESULT_VERSION with it."""
    assert make(TOY, seed=0).hash == "9416485d64331006"
    assert make(TOY, seed=0, protocol="paper").hash == "a3e755406353d905"


def test_protocols_share_training_data() -> None:
    honest, paper = make(TOY), make(TOY, protocol="paper")
    for one, held, whole in zip(honest.train, honest.validation, paper.train, strict=True):
        assert sorted(np.concatenate([one, held])) == whole.tolist()


def test_summary(tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    path.write_text(json.dumps({"train": [[0, 1, 2], [6], [3], []], "validation": [[4], [], [], []]}))
    dataset = labelled([0] * 6 + [1] * 3, [0, 1])
    assert make(dataset, "file", clients=4, options={"path": str(path)}).summary == (
        "4 clients, 5 training samples (min 0, median 1, max 3), 1 for validation, 0.8 classes per client, 1 empty, "
        "2 without a local test set"  # due are 4 * 2 / 9 + 0, which is 0.89, and twice 2 / 9
    )


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("dirichlet", {"alpha": None}, "needs a finite alpha above 0, not None"),
        ("dirichlet", {"alpha": 0.0}, "above 0, not 0.0"),
        ("dirichlet", {"alpha": -1.0}, "above 0"),
        ("dirichlet", {"alpha": float("inf")}, "finite"),
        ("dirichlet", {"alpha": float("nan")}, "finite"),
        ("iid", {"alpha": 0.5}, "'iid' has no alpha; remove alpha = 0.5"),
        ("iid", {"clients": 201}, "201 clients cannot share the 200 training samples of toy"),
        ("dirichlet", {"clients": 0}, "0 clients"),
        ("dirichelt", {}, "Did you mean 'dirichlet'"),
        ("dirichlet", {"options": {"min_samples": 41}}, "5 clients cannot have 41 samples each: toy has 200 to deal"),
        ("dirichlet", {"options": {"top_up": 57, "shares": [1, 0, 0]}}, "cannot have 57 samples each: toy has 280"),
        ("dirichlet", {"alpha": 1e-6, "options": {"min_samples": 1}}, "none of 1000 draws with alpha = 1e-06 gives"),
        ("dirichlet", {"options": {"shares": [0.9, 0.1, 0.1]}}, r"shares = \[0.9, 0.1, 0.1\] should add up to 1"),
        ("iid", {"options": {"shares": [[0.5, 0.9], 0, 0.2]}}, "should add up to 1 at most"),
        ("iid", {"options": {"shares": [[], 0, 0.2]}}, "should add up to 1 at most"),
        ("classes", {"options": {"k": 5}}, "k = 5, but toy has only 4 classes"),
    ],
)
def test_what_cannot_be_divided_is_refused(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make(TOY, name, **changes)
