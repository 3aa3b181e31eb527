"""Shifts: what each leaves alone, what it changes, and that it depends on its addresses only."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.config.grid import load_grid
from bench.data import Dataset, Own, Partition, without_tests
from bench.errors import UserError
from bench.federation.cell_data import apply_shifts, load_partition
from bench.plugin import SHIFTS
from bench.rng import generator
from bench.samples.shifts import apply
from bench.settings import Settings, ShiftPart
from datasets.assemble import assemble
from tests.datasets.helpers import divide, load
from tests.warm import PATIENCE, Start

CLIENTS = 6
FEATURE = [
    {"name": "rotation", "groups": 4}, {"name": "rotation", "groups": 3}, {"name": "colours"}, {"name": "corruption"},
    {"name": "permuted_pixels"},
]  # fmt: skip
CONCEPT = [{"name": "concept_shift", "clusters": 3}]
TRAINING = [{"name": "label_noise", "share": 0.5}, {"name": "missing_classes", "k": 2}]


def pictures(channels: int, seed: int = 0, dtype: Any = np.uint8) -> Dataset:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (150, channels, 6, 6)).astype(dtype)
    return assemble("toy", x, np.arange(150) % 5, 100, mean=None, std=None)


def divided(data: Dataset, seed: int = 0, protocol: str = "honest", name: str = "dirichlet") -> Partition:
    return divide(data, name, CLIENTS, seed, protocol, alpha=1.0 if name == "dirichlet" else None)


def sees(data: Dataset, partition: Partition, part: str, client: int) -> tuple[Any, Any]:
    at = getattr(partition, part)[client]
    return data.x[at], data.y[at]


def group_of(name: str, client: int, groups: int, seed: int = 0) -> int:
    return int(generator(seed, "shift", name, "groups").permutation(CLIENTS)[client]) % groups


GREY = pictures(1)
DIVIDED = divided(GREY)
chains = st.lists(st.sampled_from(FEATURE + CONCEPT + TRAINING), min_size=1, max_size=4, unique_by=lambda s: s["name"])


@given(chains, st.integers(0, 3), st.sampled_from(["honest", "paper"]), st.sampled_from(["dirichlet", "iid"]))
@settings(max_examples=60, deadline=None)
def test_invariants_of_any_chain(chain: list[dict[str, Any]], seed: int, protocol: str, name: str) -> None:
    """No sample gets lost or another owner; samples without an owner and what is not to be shifted stay as they are;
    trials see what the reported cells see."""
    before = divided(GREY, seed, protocol, name)
    parts = [ShiftPart(**shift) for shift in chain]
    data, after = apply(GREY, before, parts, seed)
    names = {one["name"] for one in chain}
    assert data.x.dtype == GREY.x.dtype
    assert data.shape == GREY.shape
    assert (data.n_train, data.mean, data.std) == (GREY.n_train, GREY.mean, GREY.std)
    assert [len(one) for one in after.test] == [len(one) for one in before.test]
    for client in range(CLIENTS):
        for part in ("train", "validation"):
            own, given_ = getattr(after, part)[client], getattr(before, part)[client]
            assert set(own) <= set(given_)
            assert "missing_classes" in names or len(own) == len(given_)
            if not names & {"label_noise", "concept_shift"}:
                assert data.y[own].tolist() == GREY.y[own].tolist()
    official = slice(GREY.n_train, len(GREY.y))
    assert np.array_equal(data.x[official], GREY.x[official])
    assert np.array_equal(data.y[official], GREY.y[official])
    if names <= {"label_noise", "missing_classes"}:  # of training alone
        assert np.array_equal(data.x, GREY.x)
        assert all(np.array_equal(*pair) for pair in zip(after.test, before.test, strict=True))
        assert np.array_equal(after.global_test, before.global_test)
    else:
        assert len(after.global_test) == 0
        copies = np.concatenate(after.test)
        assert copies.tolist() == list(range(len(GREY.y), len(data.y)))
    again = apply(GREY, before, parts, seed)
    assert np.array_equal(again[0].x, data.x)
    assert np.array_equal(again[0].y, data.y)
    if protocol == "honest":
        trial = divided(GREY, seed, "tuning", name)
        seen, lists = without_tests(*apply(GREY, trial, parts, seed))
        for client in range(CLIENTS):
            for one, other in zip(sees(data, after, "train", client), sees(seen, lists, "train", client), strict=True):
                assert np.array_equal(one, other)


def shifted(shift: dict[str, Any], data: Dataset = GREY) -> tuple[Dataset, Partition]:
    return apply(data, divided(data), [ShiftPart(**shift)], 0)


def test_quarter_turns_are_exact_and_the_same_for_tests() -> None:
    """Clients share the official test part and see it differently: a client's tests are its own copies."""
    data, after = shifted({"name": "rotation", "groups": 4})
    groups = [group_of("rotation", client, 4) for client in range(CLIENTS)]
    assert sorted(np.bincount(groups).tolist()) == [1, 1, 2, 2]
    for client, group in enumerate(groups):
        for part in ("train", "validation", "test"):
            x, y = sees(data, after, part, client)
            assert np.array_equal(x, np.rot90(GREY.x[getattr(DIVIDED, part)[client]], group, axes=(2, 3)))
            assert np.array_equal(y, GREY.y[getattr(DIVIDED, part)[client]])


def test_other_turns_go_the_same_way() -> None:
    """An eighth of a turn, twice: nearer to a quarter turn than to anything else."""
    smooth = np.zeros((150, 1, 16, 16), np.float32)
    smooth[:, :, 6:10, 2:6] = 1.0
    data = assemble("smooth", smooth, np.arange(150) % 5, 100, mean=[0], std=[1])
    own = Own(data, 0, 1, "train", np.arange(1), smooth[:1], data.y[:1], data.y[:1], "rotation", 0)
    eighth = next(c for c in range(8) if replace(own, client=c, clients=8).group(8) == 1)
    turn = SHIFTS.get("rotation")
    once = replace(own, client=eighth, clients=8)
    twice = turn(replace(once, x=turn(once, groups=8).x), groups=8).x
    distance = [float(np.abs(twice - np.rot90(smooth[:1], k, axes=(2, 3))).mean()) for k in range(4)]
    assert np.argmin(distance) == 1
    assert distance[1] < 0.5 * min(distance[0], distance[2], distance[3])


@pytest.mark.parametrize("channels", [1, 3])
def test_colours_keep_or_turn_round_the_order_of_values(channels: int) -> None:
    """A line between two colours at least `contrast` apart: for each channel, of each group."""
    base = pictures(channels)
    data, after = shifted({"name": "colours", "groups": 2, "contrast": 0.6}, base)
    before = divided(base)
    lines = {}
    for client in range(CLIENTS):
        for channel in range(channels):
            x, z = (d.x[p.train[client]][:, channel].astype(float).ravel() for d, p in ((base, before), (data, after)))
            slope, offset = np.polyfit(x, z, 1)
            assert np.abs(slope * x + offset - z).max() < 1.5  # rounding
            assert 0.59 <= abs(slope) <= 1.001
            lines.setdefault((group_of("colours", client, 2), channel), []).append((slope, offset))
    assert len(lines) == 2 * channels
    for found in lines.values():
        assert np.ptp(np.array(found), axis=0).max() < 1.0
    slopes = [np.mean([slope for slope, _ in found]) for found in lines.values()]
    assert np.ptp(slopes) > 0.01


def test_corruptions_are_dealt_out_evenly() -> None:
    data, after = shifted({"name": "corruption", "blur": 1.0, "noise": 0.5}, pictures(1, dtype=np.float32))
    base, before = pictures(1, dtype=np.float32), divided(pictures(1, dtype=np.float32))
    kinds = []
    for client in range(CLIENTS):
        x, z = (d.x[p.train[client]].astype(float) for d, p in ((base, before), (data, after)))
        if np.array_equal(x, z):
            kinds.append("none")
            continue
        kinds.append("blur" if z.var() < 0.5 * x.var() else "noise")
        if kinds[-1] == "noise":
            assert abs((z - x).std() / (0.5 * base.std[0]) - 1) < 0.25
            assert abs((z - x).mean()) < 0.2 * base.std[0]
    assert sorted(kinds) == sorted(["none", "blur", "noise"] * 2)


def test_noise_of_a_sample_depends_on_no_other_sample() -> None:
    data = pictures(1, dtype=np.float32)
    one = Own(data, 0, 2, "train", np.array([3, 8]), data.x[[3, 8]], data.y[[3, 8]], data.y[:1], "corruption", 0)
    both = ("noise", "noise")
    whole = SHIFTS.get("corruption")(one, kinds=both).x
    alone = SHIFTS.get("corruption")(one.only(np.array([False, True])), kinds=both).x
    assert np.array_equal(whole[1:], alone)
    assert np.abs((whole[0] - one.x[0]) - (whole[1] - one.x[1])).max() > 1


def test_permuted_pixels_keep_values_and_channels_together() -> None:
    base = pictures(3)
    data, after = shifted({"name": "permuted_pixels", "groups": 2}, base)
    for client in range(CLIENTS):
        at = after.train[client]
        if group_of("permuted_pixels", client, 2) == 0:
            assert np.array_equal(data.x[at], base.x[at])
            continue
        flat, old = data.x[at].reshape(len(at), 3, 36), base.x[at].reshape(len(at), 3, 36)
        order = [int(np.flatnonzero((old == flat[:, :, [k]]).all(axis=(0, 1)))[0]) for k in range(36)]
        assert sorted(order) == list(range(36))
        assert order != list(range(36))


def test_concept_shift_is_one_permutation_per_cluster() -> None:
    data, after = shifted({"name": "concept_shift", "clusters": 3})
    maps: dict[int, dict[int, set[int]]] = {}
    for client in range(CLIENTS):
        found = maps.setdefault(group_of("concept_shift", client, 3), {})
        for part in ("train", "validation", "test"):
            y, old = sees(data, after, part, client)[1], GREY.y[getattr(DIVIDED, part)[client]]
            for label, other in zip(old.tolist(), y.tolist(), strict=True):
                found.setdefault(label, set()).add(other)
    assert all(len(other) == 1 for found in maps.values() for other in found.values())
    assert all(set.union(*found.values()) == set(range(5)) for found in maps.values())
    assert all(maps[0][label] == {label} for label in maps[0])
    assert len({str(sorted(found.items())) for found in maps.values()}) == 3


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0, [0.2, 0.6]])
def test_label_noise_flips_the_share_of_training_labels_and_nothing_else(share: Any) -> None:
    data, after = shifted({"name": "label_noise", "share": share})
    rates = []
    for client in range(CLIENTS):
        wrong = (data.y[after.train[client]] != GREY.y[after.train[client]]).sum()
        n = len(after.train[client])
        rates.append(wrong / n)
        if isinstance(share, float):
            assert wrong == round(share * n)
        else:
            assert round(0.2 * n) <= wrong <= round(0.6 * n)
        for part in ("validation", "test"):
            at = getattr(after, part)[client]
            assert np.array_equal(data.y[at], GREY.y[at])
    assert len(set(rates)) > 1 or isinstance(share, float)


def test_missing_classes_are_missing_at_training_and_there_at_tests() -> None:
    _, after = shifted({"name": "missing_classes", "k": 2})
    for client in range(CLIENTS):
        before = np.unique(GREY.y[np.concatenate([DIVIDED.train[client], DIVIDED.validation[client]])])
        left = set(GREY.y[np.concatenate([after.train[client], after.validation[client]])].tolist())
        assert len(left) == max(1, len(before) - 2)
        assert np.array_equal(after.test[client], DIVIDED.test[client])
        for part in ("train", "validation"):  # all samples of the other classes are still there
            own = getattr(DIVIDED, part)[client]
            assert getattr(after, part)[client].tolist() == own[np.isin(GREY.y[own], list(left))].tolist()


VECTORS = assemble("vectors", np.ones((40, 3), np.float32), np.arange(40) % 2, 30, mean=[0] * 3, std=[1] * 3)
TOKENS = replace(VECTORS, x=np.ones((40, 3), np.int64))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shift", "data", "message"),
    [
        ({"name": "rotation"}, VECTORS, r"shift 'rotation' needs images; samples of vectors have the shape \(3,\)"),
        ({"name": "rotation"}, TOKENS, "shift 'rotation' needs images"),
        ({"name": "permuted_pixels"}, TOKENS, "needs images or numbers; samples of vectors are int64"),
        ({"name": "permuted_pixels"}, replace(VECTORS, std=(1.0, 1.0, 2.0)), "have different units"),
        ({"name": "corruption", "kinds": ["none", "noise"]}, TOKENS, "needs images or numbers"),
        ({"name": "corruption"}, VECTORS, "shift 'corruption' needs images"),
        ({"name": "colours"}, pictures(1, dtype=np.float32), "needs images of bytes; toy has float32"),
        ({"name": "concept_shift", "clusters": 3}, VECTORS, "2 classes have fewer than 3 permutations"),
        ({"name": "missing_classes", "k": 2}, VECTORS, "k = 2 leaves none of 2 classes"),
    ],
)
def test_what_makes_no_sense_is_refused(shift: dict[str, Any], data: Dataset, message: str) -> None:
    with pytest.raises(UserError, match=message):
        apply(data, divided(data), [ShiftPart(**shift)], 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda own: replace(own, x=own.x.astype(np.float64)), "inputs should be uint8"),
        (lambda own: replace(own, x=own.x[:, :, :3]), "inputs should be uint8"),
        (lambda own: replace(own, y=own.y + 9), r"labels outside 0 \.\. 4"),
        (lambda own: replace(own, at=own.at + 1), "does not have"),
    ],
)
def test_what_an_own_shift_returns_is_checked(change: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    SHIFTS.names()
    monkeypatch.setitem(SHIFTS._items, "mine", change)
    with pytest.raises(UserError, match=message):
        shifted({"name": "mine"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rotation", "should be a list of names, or of mappings"),
        ("{name: rotation}", "should be a list of names, or of mappings"),
        ("[rotatoin]", "unknown shift 'rotatoin'. Did you mean 'rotation'?"),
        ("[rotation, rotation]", "'rotation' is listed twice"),
        ("[{name: rotation, groups: 1}]", "groups = 1 should be greater than or equal to 2"),
        ("[{name: rotation, group: 4}]", "unknown option 'group' of shift 'rotation'. Did you mean 'groups'?"),
        ("[{name: label_noise, share: 1.5}]", "share = 1.5 should be less than or equal to 1"),
    ],
)
def test_mistakes_in_a_grid(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "g.yaml").write_text(f"methods: [fedavg]\nalphas: [1]\nshifts: {text}\n")
    with pytest.raises(UserError) as caught:
        load_grid(str(tmp_path / "g.yaml"))
    assert f"g.yaml:3: {message}" in str(caught.value) or message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_partition_and_shift_share_the_partition_s_seed() -> None:
    digits = load("digits", Path())
    cell = Settings(method="fedavg", alpha=1, clients=4, shifts=({"name": "rotation", "groups": 4},))

    def seen(**changes: Any) -> Any:
        one = cell.model_copy(update=changes)
        return apply_shifts(one, digits, load_partition(one, digits))[0].x.tobytes()

    assert seen(seed=1, partition_seed=0) == seen()
    assert seen(seed=1) != seen()


OWN = """
from dataclasses import replace
from bench.plugin import SHIFTS


@SHIFTS.register("inverted")
def inverted(own, *, every: int = 2):
    return replace(own, x=255 - own.x) if own.client % every == 0 else own
"""


@pytest.mark.long
def test_the_command_runs_shifts_and_shows_them(start_in: Start, tmp_path: Path) -> None:
    """One's own among them, in worker processes; the report has pictures of three clients."""
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "grid.yaml").write_text(
        "plugins: [mine.py]\nmethods: [fedavg, local]\nalphas: [1]\nclients: 5\nrounds: 1\nmodel: logistic\n"
        "shifts: [{name: inverted, every: 2}]\n"
    )
    for arguments in (["run", "--grid", "grid.yaml", "--out", "out", "--no-tracking", "-q"], ["report", "out"]):
        with start_in(arguments, tmp_path) as process:
            _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err
    files = list(tmp_path.glob("out/**/samples.json"))
    assert len(files) == 2
    assert [one["client"] for one in json.loads(files[0].read_text())["clients"]] == [0, 1, 2]
    assert list(tmp_path.glob("out/report/figures/samples_*.png"))
    assert "What clients see" in (tmp_path / "out/report/index.html").read_text()
