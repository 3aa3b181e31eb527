"""The small parts of the engine: lanes, batches, optimizers, model values, traffic ledger, snapshots."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.engine.batches import DrawAddress, draw_batches, draw_values, steps_per_epoch
from bench.engine.packing import BUCKETS, IDLE, Packing, narrowed, pack, phases_of, runs_of
from bench.federation.snapshot import Packer, unpack
from bench.federation.traffic import Ledger
from bench.optim import SGD, Adam, learning_rates
from bench.params import Params, Spec, join
from bench.requests import Categorical, Feed, Normal
from bench.rng import generator, key
from tests.engine.problems import linear, normed

AT = DrawAddress(seed=1, round=2, owner=3)


@given(lengths=st.lists(st.integers(0, 9), max_size=12), lanes=st.integers(1, 5))
def test_every_step_of_every_row_runs_once_and_in_order(lengths: list[int], lanes: int) -> None:
    schedule = pack(lengths, lanes)
    for row, length in enumerate(lengths):
        cells = np.argwhere(schedule.row == row)
        assert len({lane for _, lane in cells}) <= 1
        assert [int(schedule.step[t, lane]) for t, lane in cells] == list(range(length))
    for t, (loaded, stored) in enumerate(zip(schedule.load, schedule.store, strict=True)):
        assert all(schedule.row[t, lane] == row and schedule.step[t, lane] == 0 for lane, row in loaded)
        assert all(schedule.row[t, lane] == row and schedule.step[t, lane] == lengths[row] - 1 for lane, row in stored)
    for pairs in (schedule.load, schedule.store):
        assert sorted(row for step in pairs for _, row in step) == [r for r, length in enumerate(lengths) if length]
    # With the longest row first, no schedule is longer than the longest row plus an even share of all steps.
    assert len(schedule.row) <= max(lengths, default=0) + sum(lengths) / lanes


def test_nobody_is_idle_while_somebody_waits() -> None:
    schedule = pack([5, 3, 2, 2], 2)
    assert len(schedule.row) == 7
    assert (schedule.row[:5] != IDLE).all()


def _replayed(packing: Packing, done: list[int]) -> None:
    """Run a packing as the engine does: a row brings the count of its steps into a lane and takes it back from
    there."""
    lanes = [(IDLE, 0)] * packing.row.shape[1]
    for t, (load, store) in enumerate(zip(packing.load, packing.store, strict=True)):
        for lane, row in load:
            lanes[lane] = row, done[row]
        for lane, row in enumerate(packing.row[t].tolist()):
            if row != IDLE:
                assert lanes[lane] == (row, packing.step[t, lane])
                lanes[lane] = row, lanes[lane][1] + 1
        for lane, row in store:
            assert lanes[lane][0] == row
            done[row] = lanes[lane][1]


@given(lengths=st.lists(st.integers(0, 9), max_size=30), lanes=st.integers(1, 20))
def test_narrower_lanes_do_the_same_steps_at_the_same_time(lengths: list[int], lanes: int) -> None:
    whole = pack(lengths, lanes)
    parts, done = narrowed(whole), [0] * len(lengths)
    for part in parts:
        _replayed(part, done)
    assert done == lengths
    assert sum(len(part.row) for part in parts) == len(whole.row)
    busy = [sorted(row for row in rows if row != IDLE) for part in parts for rows in part.row.tolist()]
    assert busy == [sorted(row for row in rows if row != IDLE) for rows in whole.row.tolist()]
    widths = [part.row.shape[1] for part in parts]
    assert widths == sorted(set(widths), reverse=True)
    for width, part in zip(widths, parts, strict=True):
        assert width in {*BUCKETS, lanes}
        assert width <= lanes
        narrower = max((n for n in BUCKETS if n < width), default=0)
        assert ((part.row != IDLE).sum(axis=1) > narrower).all()


@pytest.mark.long
def test_nine_in_ten_lanes_are_busy_by_the_command_of_the_docs() -> None:
    """Nine in ten of the lanes that a call has; of 64 lanes far fewer. Five epochs, 100 clients, data of CIFAR-10's
    size. With a constant number of lanes, 16, 40 and 56 % are busy."""
    script = Path(__file__).parents[2] / "docs/examples/busy_lanes.py"
    printed = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed.splitlines()[2:]]
    busy, of_64 = (
        {(row[0], row[1]): int(row[column].rstrip("%")) for row in rows} for column in (2, 4)
    )  # the shares of a call's lanes and of 64
    assert [busy[alpha, "one number of lanes"] for alpha in ("0.1", "0.5", "1")] == [16, 40, 56]
    for alpha in ("0.1", "0.5", "1"):
        for schedule in ("and lanes become fewer", "and short batches are padded"):
            assert busy[alpha, schedule] >= 90
    assert [of_64[alpha, "and short batches are padded"] for alpha in ("0.1", "0.5", "1")] == [26, 73, 84]


SIZES = st.lists(st.lists(st.sampled_from([2, 3, 10]), max_size=8), max_size=6)


@given(sizes=SIZES, epoch=st.integers(0, 4))
def test_phases_have_each_step_once_in_order_and_with_its_size(sizes: list[list[int]], epoch: int) -> None:
    """Whatever the order of sizes; if runs end with epochs, no phase contains parts of two epochs of one client."""
    found: list[list[int]] = [[] for _ in sizes]
    for phase in phases_of([runs_of(np.array(own, np.int64).reshape(-1, 1), epoch) for own in sizes]):
        assert len({row for row, _, _ in phase.rows}) == len(phase.rows)
        for row, start, stop in phase.rows:
            assert {(sizes[row][step],) for step in range(start, stop)} == {phase.sizes}
            assert not epoch or start // epoch == (stop - 1) // epoch
            found[row] += range(start, stop)
    assert found == [list(range(len(own))) for own in sizes]


@given(n=st.integers(1, 23), width=st.integers(1, 7), epochs=st.integers(1, 3))
def test_an_epoch_sees_every_sample_once(n: int, width: int, epochs: int) -> None:
    per_epoch = steps_per_epoch(n, width, batch_statistics=False)
    found = draw_batches(Feed(), n, width, epochs * per_epoch, AT)
    for e in range(epochs):
        rows = range(e * per_epoch, (e + 1) * per_epoch)
        seen = np.concatenate([found.positions[k, : found.sizes[k]] for k in rows])
        assert sorted(seen) == list(range(n))
    # With more steps the batches continue where fewer steps stop. Padding repeats a sample of the same batch.
    more = draw_batches(Feed(), n, width, epochs * per_epoch + 2, AT)
    assert (more.positions[: len(found.positions)] == found.positions).all()
    assert all(set(p) == set(p[:s]) for p, s in zip(found.positions, found.sizes, strict=True))


@given(address=st.tuples(st.text(max_size=3), st.integers()))
def test_a_generator_is_philox_with_the_address_as_key(address: tuple[str, int]) -> None:
    expected = np.random.Generator(np.random.Philox(key=key(*address)))
    assert (generator(*address).random(5) == expected.random(5)).all()


def test_nobody_has_no_batches() -> None:
    found = draw_batches(Feed(), 0, 5, 0, AT)
    assert found.positions.shape == (0, 5)
    assert found.sizes.shape == (0,)


def test_batches_depend_on_their_address_only() -> None:
    def order(feed: Feed, at: DrawAddress) -> list[int]:
        return draw_batches(feed, 50, 50, 1, at).positions[0].tolist()

    base = order(Feed(), AT)
    assert order(Feed(batch_size=7), AT) == base
    for other in (DrawAddress(9, 2, 3), DrawAddress(1, 9, 3), DrawAddress(1, 2, 9)):
        assert order(Feed(), other) != base
    assert order(Feed(stream=1), AT) != base


@given(n=st.integers(1, 12), width=st.integers(1, 6))
def test_uniform_batches_draw_without_replacement(n: int, width: int) -> None:
    found = draw_batches(Feed(order="uniform"), n, width, 8, AT)
    assert (found.sizes == min(n, width)).all()
    for positions, size in zip(found.positions, found.sizes, strict=True):
        assert len(set(positions[:size].tolist())) == size


def test_cyclic_batches_keep_the_stored_order() -> None:
    found = draw_batches(Feed(order="cyclic"), 5, 2, 4, AT)
    assert found.positions.tolist() == [[0, 1], [2, 3], [4, 4], [0, 1]]
    assert found.sizes.tolist() == [2, 2, 1, 2]


@pytest.mark.parametrize(("n", "expected"), [(9, 2), (8, 2), (1, 1), (5, 1), (6, 2)])
def test_batch_statistics_never_see_one_sample_of_many(n: int, expected: int) -> None:
    assert steps_per_epoch(n, 4, batch_statistics=True) == expected


def test_draws() -> None:
    normal = draw_values(Normal((3,)), "eps", 4, 500, AT, 0)
    assert normal.shape == (500, 4, 3)
    assert abs(float(np.asarray(normal, float).std()) - 1) < 0.05
    y = draw_values(Categorical((0.0, 0.25, 0.75)), "y", 4, 500, AT, 0)
    assert np.bincount(np.asarray(y, int).ravel(), minlength=3) / 2000 == pytest.approx([0, 0.25, 0.75], abs=0.04)
    assert (draw_values(Normal((3,)), "eps", 4, 7, AT, 0) == normal[:7]).all()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SGD(0.1, 0.0, 0.0, False), lambda w: torch.optim.SGD(w, 0.1)),
        (SGD(0.1, 0.9, 0.01, False), lambda w: torch.optim.SGD(w, 0.1, momentum=0.9, weight_decay=0.01)),
        (SGD(0.1, 0.9, 0.0, True), lambda w: torch.optim.SGD(w, 0.1, momentum=0.9, nesterov=True)),
        (Adam(0.1, weight_decay=0.02), lambda w: torch.optim.Adam(w, 0.1, weight_decay=0.02)),
    ],
)
def test_optimizers_are_torchs(ours: SGD | Adam, theirs: object) -> None:
    w = torch.linspace(-1, 1, 5, dtype=torch.float64)
    leaf = w.clone().requires_grad_()
    reference = theirs([leaf])  # type: ignore[operator]
    state = ours.init(w)
    for k in range(6):
        g = torch.sin(w + k)
        w, state = ours.update(w, g, state, torch.tensor(0.1, dtype=torch.float64))
        leaf.grad = g.clone()
        reference.step()
    torch.testing.assert_close(w, leaf.detach(), rtol=1e-12, atol=1e-12)


def test_clip_and_schedule() -> None:
    g = torch.tensor([3.0, 4.0], dtype=torch.float64)
    new, _ = SGD(1.0, 0.0, 0.0, False, clip=1.0).update(torch.zeros(2, dtype=torch.float64), g, {}, torch.tensor(1.0))
    torch.testing.assert_close(new, -g / 5, rtol=1e-6, atol=0)
    rates = learning_rates(SGD(0.2, schedule="cosine"), 4)
    assert rates == pytest.approx([0.2, 0.1 * (1 + 0.5**0.5), 0.1, 0.1 * (1 - 0.5**0.5)])


def model(which: str = "norm") -> Params:
    with torch.device("meta"):
        module = normed((4,), 3) if which == "norm" else linear((4,), 3)
    for layer in module.modules():
        if isinstance(layer, torch.nn.BatchNorm1d):
            layer.register_buffer("num_batches_tracked", None)
    spec = Spec.of(which, module)
    return Params(torch.arange(float(spec.d)), -torch.arange(float(spec.b)), spec)


@pytest.mark.parametrize("prefixes", [(), ("",), ("head",), ("inner",), ("norm", "head.bias"), ("inner.weight",)])
def test_parts_join_to_the_whole(prefixes: tuple[str, ...]) -> None:
    w = model()
    part, rest = w.part(*prefixes), w.without(*prefixes)
    assert part.spec.d + rest.spec.d == w.spec.d
    assert part.spec.b + rest.spec.b == w.spec.b
    for joined in (join(part, rest), join(rest, part)):
        assert torch.equal(joined.weights, w.weights)
        assert torch.equal(joined.buffers, w.buffers)
        assert joined.spec == w.spec
    if part.spec.params:
        with pytest.raises(ValueError, match="do not make up"):
            join(part, part)


def test_head_means_the_layer_not_the_letters() -> None:
    w = model()
    assert [e.name for e in w.part("head").spec.params] == ["head.weight", "head.bias"]
    for name in ("hea", "head.weight.more"):
        for take in (w.part, w.without, lambda prefix: w.spec.slices((prefix,))):
            with pytest.raises(ValueError, match=f"named '{name}' or below it; there are inner.weight, "):
                take(name)


def test_a_part_may_lack_what_the_whole_has() -> None:
    body = model().without("head")
    assert not body.part("head").spec.params
    assert body.without("head").spec == body.spec


def test_the_ledger_counts_distinct_tensors_once_and_receivers_each() -> None:
    w, ledger = model(), Ledger()
    for _ in range(3):
        ledger.download({"model": w})
    ledger.download({"model": w.with_weights(w.weights.clone())})
    ledger.upload({"model": w, "loss": 0.5, "more": [torch.zeros(7)]})
    d, b = 4 * w.spec.d, 4 * w.spec.b
    row = ledger.close(1, 2.5, 3.5)
    assert row == {
        "round": 1, "seconds": 2.5, "settled": 3.5, "up": d + 28, "down_distinct": 2 * d, "down_receivers": 4 * d,
        "up_buffers": b, "down_distinct_buffers": b, "down_receivers_buffers": 4 * b,
    }  # fmt: skip
    assert set(ledger.close(2, 3.0, 3.0).values()) == {2, 3.0, 0}


def test_local_buffers_do_not_travel() -> None:
    ledger = Ledger(buffers_travel=False)
    ledger.upload({"model": model()})
    assert ledger.close(1, 0.0, 0.0)["up_buffers"] == 0


def test_snapshots_come_back_and_share_what_was_shared() -> None:
    w = model()
    state = {"a": w, "b": [w, w.part("head"), 3], "c": {4: torch.ones(2), "d": None}, "e": (1.5, "x", True)}
    packer = Packer()
    plain = packer.pack(state)
    back = unpack(plain, packer.tensors, {w.spec.arch: w.spec})
    assert torch.equal(back["a"].weights, w.weights)
    assert back["b"][1].spec == w.part("head").spec
    assert torch.equal(back["b"][1].weights, w.part("head").weights)
    assert back["c"][4].tolist() == [1, 1]
    assert back["e"] == [1.5, "x", True]
    assert back["a"].weights.data_ptr() == back["b"][0].weights.data_ptr()
    with pytest.raises(TypeError, match="not set"):
        Packer().pack({"a": {1, 2}})
