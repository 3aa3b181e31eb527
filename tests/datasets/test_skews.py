"""Further partitions and dialects: invariants, hand-computed numbers, and what the other systems' own code gives."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.data import Dataset, Partition, without_tests
from bench.errors import UserError
from datasets.assemble import assemble
from datasets.dialects import _class_by_class, _classes_drawn, _one_after_the_other
from datasets.partitions import DividedSamples, _deal
from tests.datasets.helpers import divide, load

DIALECTS = json.loads((Path(__file__).parent / "dialects.json").read_text())


def labelled(train: list[int], test: list[int], groups: bool = True) -> Dataset:
    y = np.array(train + test)
    x = np.zeros((len(y), 1), np.float32)
    whose = y // 2 if groups else None  # superclasses of two classes
    return assemble("toy", x, y, len(train), mean=[0], std=[1], classes="abcdef", groups=whose)


def make(
    dataset: Dataset, name: str, clients: int = 6, seed: int = 0, protocol: str = "honest", **options: Any
) -> Partition:
    return divide(dataset, name, clients, seed, protocol, **options)


def dealt(partition: Partition, tests: bool = False) -> list[Any]:
    """All samples of each client, those of its tests only where they are its own."""
    lists = (partition.train, partition.validation, *([partition.test] if tests else []))
    return [np.concatenate(own) for own in zip(*lists, strict=True)]


def counts(lists: list[Any], data: Dataset) -> Any:
    """Samples `[lists][classes]`."""
    return np.stack([np.bincount(data.y[own], minlength=data.num_classes) for own in lists])


EVEN = labelled([0, 1, 2, 3, 4, 5] * 30, [0, 1, 2, 3, 4, 5] * 10)
RULES = [
    ("shards", {"k": 2}),
    ("exdir", {"k": 2, "alpha": 0.5}),
    ("quantity", {"law": "dirichlet", "parameter": 0.5}),
    ("quantity", {"law": "lognormal", "parameter": 1.0}),
    ("quantity", {"law": "power", "parameter": 1.2, "min_samples": 3}),
    ("mix", {"alpha": 0.1, "iid": 0.3}),
    ("balanced_dirichlet", {"alpha": 0.1}),
    ("superclasses", {"k": 1}),
    ("iid", {}),
    ("dirichlet", {"alpha": 0.5, "balanced": True}),
    ("dirichlet", {"alpha": 0.01, "top_up": 4}),
    ("classes", {"k": 3}),
    ("classes", {"k": 5, "same_classes": True, "test_share": 0.5}),
]
labels = st.lists(st.integers(0, 5), min_size=40, max_size=90).map(lambda one: [*range(6), *one])


@pytest.mark.long
@given(
    labels, labels, st.sampled_from(RULES), st.integers(3, 8), st.integers(0, 3),
    st.sampled_from([None, [0.6, 0.2, 0.2], [[0.1, 0.3, 0.4], 0.1, 0.5]]),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_every_sample_has_one_place(
    train: list[int], test: list[int], rule: tuple[str, Any], clients: int, seed: int, shares: Any
) -> None:
    """All are dealt out, once; the same seed deals them the same way; trials have none that is tested."""
    name, options = rule
    data = labelled(train, test)
    own_tests = shares is not None or name == "classes"
    more = {"shares": shares} if shares and name != "classes" else {}
    found = make(data, name, clients, seed, **options, **more)
    everything = np.concatenate(dealt(found, tests=own_tests))
    assert len(set(everything.tolist())) == len(everything)
    whole = len(data.y) if more else data.n_train
    assert set(everything.tolist()) <= set(range(whole))
    assert (len(found.global_test) == 0) == own_tests  # the generic model is then tested on the union
    if not own_tests:
        assert len(everything) == whole
    elif shares == [0.6, 0.2, 0.2] and more:
        assert len(everything) >= whole - 3 * clients  # rounding of three shares
    assert found.hash == make(data, name, clients, seed, **options, **more).hash
    trial = make(data, name, clients, seed + 10, protocol="tuning", **options, **more)
    trained = np.concatenate([*trial.train, *trial.validation])
    assert not set(trained.tolist()) & set(np.concatenate([*found.test, found.global_test]).tolist())
    if not len(trained):
        return
    smaller, seen = without_tests(data, trial)
    assert len(smaller.y) == smaller.n_train == len(trained)
    for one, other in zip((*trial.train, *trial.validation), (*seen.train, *seen.validation), strict=True):
        assert np.array_equal(data.y[one], smaller.y[other])


def test_shards_hold_at_most_k_stretches_of_the_sorted_labels() -> None:
    """12 shards of 15 samples of 6 classes of 30: each shard is of one class."""
    found = counts(dealt(make(EVEN, "shards", k=2)), EVEN)
    assert found.sum(axis=1).tolist() == [30] * 6
    assert ((found > 0).sum(axis=1) <= 2).all()
    assert set(found.ravel().tolist()) <= {0, 15, 30}
    with pytest.raises(UserError, match="too few for 1200 shards"):
        make(EVEN, "shards", k=200)


def test_exdir_gives_each_client_k_classes_and_each_class_clients() -> None:
    found = counts(dealt(make(EVEN, "exdir", k=2, alpha=100.0)), EVEN)
    assert ((found > 0).sum(axis=1) == 2).all()
    assert ((found > 0).sum(axis=0) == 2).all()  # 6 clients of 2 of 6 classes
    assert np.abs(found[found > 0] - 15).max() <= 6  # a large alpha: nearly even
    with pytest.raises(UserError, match="does not fit 6 classes"):
        make(EVEN, "exdir", clients=2, k=2, alpha=1.0)


def test_sizes_follow_the_law_and_labels_do_not_care() -> None:
    """Power law: sizes in proportion to 1, 1/2, ..., 1/6 of ranks, by hand; the label mix is that of the whole."""
    large = labelled([0, 1, 2, 3, 4, 5] * 500, [0, 1, 2, 3, 4, 5])
    found = counts(dealt(make(large, "quantity", law="power", parameter=1.0)), large)
    weights = 1 / np.arange(1, 7)
    expected = 6 * [1] + (3000 - 6) * weights / weights.sum()
    assert np.abs(np.sort(found.sum(axis=1))[::-1] - expected).max() <= 1
    shares = found / found.sum(axis=1, keepdims=True)
    assert np.abs(shares - 1 / 6).max() < 0.08
    narrow, wide = (
        np.array([len(own) for own in dealt(make(large, "quantity", law="lognormal", parameter=sigma))])
        for sigma in (0.1, 2.0)
    )
    assert narrow.max() / narrow.min() < 2 < wide.max() / wide.min()


@pytest.mark.parametrize(("iid", "least", "most"), [(1.0, 30, 30), (0.4, 12, 30), (0.0, 0, 30)])
def test_mix_gives_everybody_its_part_of_the_even_share(iid: float, least: int, most: int) -> None:
    large = labelled([0, 1, 2, 3, 4, 5] * 180, [0, 1, 2, 3, 4, 5])
    found = counts(dealt(make(large, "mix", alpha=0.05, iid=iid)), large)
    assert found.min() >= least - 1
    assert (found.min() <= most) if iid < 1 else (found.min() == found.max() == most)
    assert iid == 1 or found.max() > 60


def test_balanced_dirichlet_has_equal_sizes_and_skewed_labels() -> None:
    sizes, skew = [], []
    for alpha in (0.05, 100.0):
        found = counts(dealt(make(EVEN, "balanced_dirichlet", alpha=alpha, clients=7)), EVEN)
        sizes += [np.ptp(found.sum(axis=1))]
        skew += [(found.max(axis=1) / found.sum(axis=1)).mean()]
    assert max(sizes) <= 1
    assert skew[0] > 0.5 > 0.4 > skew[1]


def test_superclasses() -> None:
    found = counts(dealt(make(EVEN, "superclasses")), EVEN)
    assert (found.reshape(6, 3, 2).sum(axis=2) > 0).sum(axis=1).tolist() == [1] * 6
    assert found.sum(axis=1).tolist() == [30] * 6  # three superclasses of 60 samples, each of two clients
    with pytest.raises(UserError, match="has no superclasses"):
        make(labelled([0, 1] * 5, [0, 1], groups=False), "superclasses", clients=2)
    with pytest.raises(UserError, match="does not fit 3 superclasses"):
        make(EVEN, "superclasses", clients=2)


class Replayed:
    """Another system's stream of draws, for our rule: the order within a class does not change counts."""

    def __init__(self, dirichlet: Any, permutation: Any, random: Any = None) -> None:
        self.dirichlet, self.permutation, self.random = dirichlet, permutation, random


def streams(system: str, seed: int) -> Any:
    if system in ("pfllib", "flbench"):
        legacy = np.random.RandomState(seed)
        return Replayed(legacy.dirichlet, legacy.permutation)
    return Replayed(np.random.default_rng(seed).dirichlet, lambda pool: pool)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load("digits", Path())


CASES = [("pfllib", 0), ("pfllib", 1), ("flower", 0), ("flower", 1), ("flbench", 1), ("flbench", 2)]


@pytest.mark.parametrize(("system", "seed"), CASES)
@pytest.mark.parametrize("right", [True, False])
def test_our_rule_gives_the_counts_of_their_code(digits: Dataset, system: str, seed: int, right: bool) -> None:
    """With their draws, but for the rounding of running sums (theirs truncates); with the other's rule it does not."""
    theirs = np.array(DIALECTS[system]["counts"][str(seed)])
    draws: Any = streams(system, seed)
    while True:
        own = _deal(DividedSamples(digits.y, seed), draws, 10, 0.1, (system == "pfllib") == right)
        if min(map(len, own)) >= DIALECTS[system]["least"] or not right:
            break
    assert (np.abs(counts(own, digits) - theirs).max() <= 1) == right


def assert_cut(partition: Partition, share: float) -> None:
    """A share of each client's samples, rounded, is for training and the rest for tests."""
    for train, test in zip(partition.train, partition.test, strict=True):
        assert len(train) == round(share * (len(train) + len(test)))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("kind", ["balanced", "unbalanced"])
def test_pfllib_s_pathological_clients(digits: Dataset, kind: str, k: int, seed: int) -> None:
    """With its draws the counts of its code, exactly; with ours, a client's classes and a quarter for tests."""
    theirs = np.array(DIALECTS["pfllib_pathological"]["counts"][kind][str(k)][str(seed)])
    pools = [np.flatnonzero(digits.y == label) for label in range(10)]
    draws = SimpleNamespace(integers=np.random.RandomState(seed).randint)
    lists = _class_by_class(pools, draws, 10, k, kind == "balanced", 40 / 10)
    assert counts(lists, digits).tolist() == theirs.tolist()
    ours = make(digits, "pathological_pfllib", 10, seed, "paper", k=k, balanced=kind == "balanced")
    of_class = counts(dealt(ours, tests=True), digits)
    assert ((of_class > 0) == (theirs > 0)).all()
    assert of_class.sum() == len(digits.y)
    assert_cut(ours, 0.75)


@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 3), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_pathological_clients_have_at_most_k_classes_and_every_sample_once(
    clients: int, k: int, seed: int, balanced: bool, paper: bool
) -> None:
    """Whatever the numbers: nobody is empty, and under `honest` the tests are the same samples for two seeds."""
    protocol = "paper" if paper else "honest"
    found, other = (
        make(EVEN, "pathological_pfllib", clients, s, protocol, k=k, balanced=balanced) for s in (seed, seed + 1)
    )
    of_class = counts(dealt(found, tests=True), EVEN)
    assert ((of_class > 0).sum(axis=1) <= k).all()
    assert (of_class.sum(axis=1) > 0).all()
    assert (of_class.sum(axis=0) <= 40).all()
    everything = np.concatenate(dealt(found, tests=True))
    assert len(np.unique(everything)) == len(everything)
    assert paper or set(np.concatenate(found.test).tolist()) == set(np.concatenate(other.test).tolist())


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("k", [2, 5])
def test_flower_s_pathological_clients(digits: Dataset, k: int, seed: int) -> None:
    """With its draws the counts of its code, exactly; with ours, k classes per client and 83 % for training."""
    pools = [np.flatnonzero(digits.y == label) for label in range(10)]
    lists = _classes_drawn(pools, np.random.default_rng(seed), 10, k)
    assert counts(lists, digits).tolist() == DIALECTS["flower_pathological"]["counts"][str(k)][str(seed)]
    ours = make(digits, "pathological_flower", 10, seed, "paper", k=k, shares=[0.83, 0, 0.17])
    assert ((counts(dealt(ours, tests=True), digits) > 0).sum(axis=1) == k).all()
    assert_cut(ours, 0.83)


@given(st.integers(1, 9), st.integers(1, 6), st.integers(0, 3), st.booleans())
@settings(max_examples=40, deadline=None)
def test_classes_that_clients_draw_are_cut_into_equal_parts(clients: int, k: int, seed: int, shares: bool) -> None:
    """Nobody has a sample twice, everybody has k classes, and a class is used whole or not at all."""
    options: dict[str, Any] = {"shares": [0.75, 0, 0.25]} if shares else {}
    lists = dealt(make(EVEN, "pathological_flower", clients, seed, k=k, **options), tests=shares)
    everything = np.concatenate(lists)
    assert len(np.unique(everything)) == len(everything)
    of_class = counts(lists, EVEN)
    assert ((of_class > 0).sum(axis=1) == k).all()
    whole = np.bincount(EVEN.y if shares else EVEN.y[: EVEN.n_train], minlength=6)
    for total, column in zip(whole, of_class.T, strict=True):
        assert column.sum() in (0, total)
        assert not column.any() or np.ptp(column[column > 0]) <= 1


@pytest.mark.parametrize(("name", "of_few"), [("pathological_pfllib", "4 .* for"), ("pathological_flower", "3 .* the")])
def test_a_pathological_split_that_cannot_be_is_refused(name: str, of_few: str) -> None:
    """PFLlib's divides the test part, too, so that it has a sample more of each class."""
    with pytest.raises(UserError, match="k = 7, but toy has only 6 classes"):
        make(EVEN, name, 4, k=7)
    few = labelled([0, 1, 2, 3, 4, 5] * 3, [0, 1, 2, 3, 4, 5])
    with pytest.raises(UserError, match=f"{of_few} 8 clients"):
        make(few, name, 8, k=6)
    make(few, "pathological_pfllib", 8, k=6, balanced=True)


@pytest.mark.parametrize("seed", [0, 1])
def test_pfl_research_s_users(digits: Dataset, seed: int) -> None:
    """With its draws, the counts of its code; with our own, users of one size and mixes that are skewed as theirs."""
    theirs = DIALECTS["pfl_research"]["counts"][str(seed)]
    legacy = np.random.RandomState(seed)
    draws = Replayed(legacy.dirichlet, lambda pool: pool, legacy.uniform)
    own = _one_after_the_other(digits.y, draws, len(theirs), 0.1, DIALECTS["pfl_research"]["samples"])
    assert counts(own, digits).tolist() == theirs
    found = dealt(make(digits, "dirichlet_pfl_research", 12, seed, alpha=0.1, samples=100))
    of_class = counts(found, digits)
    assert of_class.sum(axis=1).tolist() == [100] * 12
    assert of_class.max(axis=1).mean() > 50
    assert len(np.unique(np.concatenate(found))) == 1200
    with pytest.raises(UserError, match="14 clients of 100 samples need 1400, but digits has only 134"):
        make(digits, "dirichlet_pfl_research", 14, seed, alpha=0.1, samples=100)


def test_pfl_research_s_last_user_takes_what_is_left() -> None:
    y = np.repeat([0, 1, 2], [5, 40, 5])
    own = _one_after_the_other(y, np.random.default_rng(0), 5, 0.01, 10)
    assert np.sort(np.concatenate(own)).tolist() == list(range(50))


@pytest.mark.parametrize("seed", [0, 1])
def test_dialects_are_these_rules(digits: Dataset, seed: int) -> None:
    """PFLlib: all samples, a quarter of a client's for tests, at least 40; Flower: the training part, at least 10."""
    found = make(digits, "dirichlet_pfllib", 10, seed, "paper", alpha=0.1)
    sizes = np.array([len(own) for own in dealt(found, tests=True)])
    assert sizes.sum() == len(digits.y) == np.array(DIALECTS["pfllib"]["counts"][str(seed)]).sum()
    assert sizes.min() >= 40
    assert_cut(found, 0.75)
    flbench = make(digits, "dirichlet_flbench", 10, seed, "paper", alpha=0.1)
    sizes = np.array([len(own) for own in dealt(flbench, tests=True)])
    assert sizes.sum() == len(digits.y)
    assert sizes.min() >= 10
    assert [len(own) for own in flbench.test] == (sizes - np.rint(0.75 * sizes)).tolist()
    flower = make(digits, "dirichlet_flower", 10, seed, alpha=0.1)
    sizes = np.array([len(own) for own in dealt(flower)])
    assert sizes.sum() == digits.n_train
    assert sizes.min() >= 10
    assert flower.global_test.tolist() == list(range(digits.n_train, len(digits.y)))


@pytest.mark.parametrize("seed", ["0", "1"])
def test_leaf_s_own_split(seed: str) -> None:
    """Its scripts keep the same users; their training parts are rounded down, ours to the nearest."""
    theirs = DIALECTS["leaf"]["seeds"][seed]
    groups = np.repeat(list(theirs["sampled"]), list(theirs["sampled"].values()))
    y = np.arange(len(groups)) % 2
    x = np.zeros((len(y), 1), np.float32)
    data = assemble("leaf", x, y, len(y), mean=[0], std=[1], classes="ab", groups=groups)
    least = DIALECTS["leaf"]["least"]
    found = make(data, "natural_leaf", len(theirs["parts"]), 0, "paper", min_samples=least)
    assert found.names == tuple(sorted(theirs["parts"]))
    assert_cut(found, 0.9)
    for name, train, test in zip(found.names, found.train, found.test, strict=True):
        assert len(train) + len(test) == sum(theirs["parts"][name]) == theirs["sampled"][name]
        assert 0 <= len(train) - theirs["parts"][name][0] <= 1
