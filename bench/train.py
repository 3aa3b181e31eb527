"""Training a group of clients whose requests have one recipe: one after the other, or as a cohort in lanes.

Both executors run the same step function on the same draws. `sequential` is the oracle; `cohort` maps the step over a
fixed number of lanes.
"""

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.arena import Arena, channels_last
from bench.lanes import IDLE, Schedule, Segment, pack
from bench.prepare import MAIN, Array, Prepared, Stream
from bench.recording import Mapped
from bench.requests import Trained
from bench.step import (
    Differentiate,
    Flat,
    Recipe,
    StepFunction,
    differentiate,
    differentiate_alone,
    flatten,
    make_step,
    rebuild,
)
from bench.threads import workers

_GATHER = 32 * 2**20  # bytes of inputs that are gathered at once


Answers = tuple[list[Trained], bool]
"""What was asked for, and whether all losses and trained values are finite; at times no, where finite numbers add up to
infinity."""


@dataclass(frozen=True)
class Phase:
    """Steps `start .. stop-1` of some rows, all of one batch width in each stream."""

    widths: dict[str, int]
    rows: list[tuple[int, int, int]]


class Rows:
    """The training state of a cohort: one row per client, in matrices."""

    def __init__(self, group: list[Prepared]) -> None:
        self.parts = _stack([flatten(p.request.values) for p in group])
        names = group[0].state
        self.state = {name: _stack([dict(p.state[name]) for p in group]) for name in names}
        self.context = [flatten(p.request.context) for p in group]
        self.loss = next(iter(self.parts.values())).new_zeros(len(group))

    def finite(self) -> bool:
        """The second of the `Answers`."""
        return _finite([self.loss, *(t for name, t in self.parts.items() if not name.endswith("/buffers"))])

    def trained(self, group: list[Prepared]) -> list[Trained]:
        """The answers, as views of the matrices."""
        return [
            Trained(
                values=rebuild({name: t[i] for name, t in self.parts.items()}, p.recipe.parts),
                optimizer_state={n: {k: t[i] for k, t in state.items()} for n, state in self.state.items()},
                steps=p.steps,
                loss=self.loss[i] / max(1, p.steps),
            )
            for i, p in enumerate(group)
        ]


def _finite(tensors: Iterable[Tensor]) -> bool:
    sums = [t.sum() for t in tensors]
    return bool(torch.stack([s.to(sums[0]) for s in sums]).isfinite().all())


def _stack(rows: list[Flat]) -> Flat:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


class Trainer:
    """Runs groups of prepared requests on one device."""

    def __init__(self, arena: Arena, hp: dict[str, Any], dtype: torch.dtype) -> None:
        self.arena = arena
        self.dtype = dtype
        self._plain = {name: v for name, v in hp.items() if not isinstance(v, Tensor)}
        self._hp = {name: v for name, v in hp.items() if isinstance(v, Tensor)}
        self._mapped: dict[Recipe, Mapped] = {}
        self._gradients: dict[Recipe, int] = {}

    def gradients(self, recipe: Recipe) -> int:
        """How many gradients one step of a recipe takes (1 where none was taken yet)."""
        return self._gradients.get(recipe, 1)

    def _step(self, recipe: Recipe, how: Differentiate = differentiate) -> StepFunction:
        return make_step(recipe, self._plain, functools.partial(self._gradients.__setitem__, recipe), how)

    def sequential(self, group: list[Prepared], threads: int) -> Answers:
        """One client after the other; several at a time where threads are given."""
        step = self._step(group[0].recipe, differentiate_alone)
        if threads == 1 or len(group) == 1:
            trained = [self._alone(one, step) for one in group]
        else:
            longest_first = sorted(range(len(group)), key=lambda i: -group[i].steps)
            done = workers(threads).map(lambda i: self._alone(group[i], step), longest_first)
            trained = [one for _, one in sorted(zip(longest_first, done, strict=True))]
        values = (value for one in trained for name, value in flatten(one.values).items() if name[-8:] != "/buffers")
        return trained, _finite([*(one.loss for one in trained), *values])

    def _alone(self, one: Prepared, step: StepFunction) -> Trained:
        parts = {name: t.clone() for name, t in flatten(one.request.values).items()}  # an answer is nobody else's
        state: dict[str, Flat] = {name: dict(state) for name, state in one.state.items()}
        context = flatten(one.request.context)
        total = next(iter(parts.values())).new_zeros(())
        phase = Phase(_full_widths(one), [(0, 0, one.steps)])
        for k, batch in enumerate(self._batches([one], pack([one.steps], 1), phase)):
            batch = _real(batch, {name: int(s.batches.sizes[k]) for name, s in one.streams.items()})
            if one.recipe.channels_last:
                batch = _channels_last(batch)
            lr = {name: torch.as_tensor(v[k], dtype=self.dtype, device=self.arena.device) for name, v in one.lr.items()}
            parts, state, loss = step(parts, state, lr, batch, context, self._hp)
            total = total + loss.detach()
        return Trained(rebuild(parts, one.recipe.parts), state, one.steps, total / max(1, one.steps))

    def cohort(self, group: list[Prepared], lanes: int, threads: int) -> Answers:
        """All clients side by side in lanes; where threads are given, in lanes of each of them."""
        rows = Rows(group)
        recipe = group[0].recipe
        if recipe not in self._mapped:
            self._mapped[recipe] = Mapped(self._step(recipe), (0, 0, 0, 0, 0, None))
        for phase in _phases(group):
            shares = _shares(phase, threads)
            run = functools.partial(self._phase, rows, group, lanes)
            list(workers(threads).map(run, shares) if len(shares) > 1 else map(run, shares))
        return rows.trained(group), rows.finite()

    def _phase(self, rows: Rows, group: list[Prepared], lanes: int, phase: Phase) -> None:
        lengths = [0] * len(group)
        for row, start, stop in phase.rows:
            lengths[row] = stop - start
        schedule = pack(lengths, lanes)
        batches = self._batches(group, schedule, phase)
        at, idle = _places(group, schedule, phase), schedule.row == IDLE
        laid = {name: np.where(idle, 0.0, np.concatenate([p.lr[name] for p in group])[at]) for name in group[0].lr}
        rates = {name: self._tensor(rate).unbind() for name, rate in laid.items()}
        seats = Lanes(rows, lanes, first=phase.rows[0][0])
        for segment in schedule.segments:
            seats.load(segment)
            self._segment(segment, seats, self._mapped[group[0].recipe], batches, rates)
            seats.store(segment)

    def _segment(
        self,
        segment: Segment,
        seats: "Lanes",
        mapped: Mapped,
        batches: Iterator[dict[str, Any]],
        rates: dict[str, tuple[Tensor, ...]],
    ) -> None:
        for t in range(segment.start, segment.stop):
            lr = {name: rate[t] for name, rate in rates.items()}
            # An idle lane goes on with a learning rate of 0; nobody reads it until another client is seated there.
            seats.parts, seats.state, loss = mapped(
                seats.parts, seats.state, lr, next(batches), seats.context, self._hp
            )
            seats.loss = seats.loss + loss

    def _batches(self, group: list[Prepared], schedule: Schedule, phase: Phase) -> Iterator[dict[str, Any]]:
        """The batches of a schedule's steps, `[lanes, width, ...]` each; an idle lane has any batch."""
        at, arrays = _places(group, schedule, phase), _arrays(group, phase.widths)
        samples = at.shape[1] * phase.widths[MAIN]
        chunk = max(1, _GATHER // max(1, samples * self._bytes(group[0].request.feed.samples)))
        for a in range(0, len(at), chunk):
            whole = self._gather(group[0].streams, arrays, at[a : a + chunk])
            for k in range(len(at[a : a + chunk])):
                yield _at(whole, k)

    def _bytes(self, samples: Any) -> int:
        return 0 if samples == "none" else self.arena.pool(samples).x[0].numel() * self.dtype.itemsize

    def _gather(
        self, streams: Mapping[str, Stream], arrays: dict[str, Any], at: Array, name: str = MAIN
    ) -> dict[str, Any]:
        """The batches of some steps: of each of their tensors `[lanes, width, ...]` a tuple over the steps."""
        found = {k: self._tensor(v[at]) for k, v in arrays.items() if isinstance(v, np.ndarray)}
        absolute, codes = found.pop("absolute"), found.pop("augmentation", None)
        if streams[name].feed.samples != "none":
            pool = self.arena.pool(streams[name].feed.samples)
            found["x"], found["y"] = pool.take(absolute)
            if codes is not None:
                found["x"] = pool.crop_flip(found["x"], codes)
        return {
            **{k: tensor.unbind() for k, tensor in found.items()},
            "draws": {d: self._tensor(v[at]).unbind() for d, v in arrays["draws"].items()},
            "side": {side: self._gather(streams, one, at, side) for side, one in arrays["side"].items()},
        }

    def _tensor(self, array: Array) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array)).to(self.arena.device)
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor


class Lanes:
    """What the lanes hold at the moment."""

    def __init__(self, rows: Rows, lanes: int, first: int) -> None:
        self._rows = rows
        at = [first] * lanes
        self.parts = {name: t[at] for name, t in rows.parts.items()}
        self.state = {name: {k: t[at] for k, t in s.items()} for name, s in rows.state.items()}
        self.context = {name: torch.stack([t] * lanes) for name, t in rows.context[first].items()}
        self.loss = rows.loss.new_zeros(lanes)

    def load(self, segment: Segment) -> None:
        """Seat the clients that start here."""
        if not segment.load:
            return
        lanes, rows = _indices(segment.load, self.loss)

        def seat(t: Tensor, of: Tensor) -> Tensor:
            return t.index_copy(0, lanes, of.index_select(0, rows)) if t.numel() else t

        self.parts = {name: seat(t, self._rows.parts[name]) for name, t in self.parts.items()}
        self.state = {
            name: {k: seat(t, self._rows.state[name][k]) for k, t in state.items()}
            for name, state in self.state.items()
        }
        for name, t in self.context.items():
            for lane, row in segment.load:
                t[lane] = self._rows.context[row][name]
        self.loss = self.loss.index_fill(0, lanes, 0.0)

    def store(self, segment: Segment) -> None:
        """Take down the results of the clients that end here."""
        if not segment.store:
            return
        lanes, rows = _indices(segment.store, self.loss)

        def keep(of: Tensor, t: Tensor) -> None:
            if t.numel():
                of.index_copy_(0, rows, t.index_select(0, lanes))

        for name, t in self.parts.items():
            keep(self._rows.parts[name], t)
        for name, state in self.state.items():
            for k, t in state.items():
                keep(self._rows.state[name][k], t)
        self._rows.loss.index_add_(0, rows, self.loss.index_select(0, lanes))


def _phases(group: list[Prepared]) -> list[Phase]:
    """All steps in one phase; with batch statistics one phase per batch size, so that nothing is padded.

    The smallest size waiting goes first: short batches at the ends of epochs, so that all are together again for the
    full ones. Side batches count too: sizes are compared stream by stream, the main one first.
    """
    recipe = group[0].recipe
    if not recipe.batch_statistics or recipe.frozen:
        rows = [(row, 0, p.steps) for row, p in enumerate(group) if p.steps]
        return [Phase(_full_widths(group[0]), rows)] if rows else []
    names = sorted(group[0].streams)
    waiting = [_runs(np.stack([p.streams[name].batches.sizes for name in names], axis=1)) for p in group]
    phases = []
    while any(waiting):
        sizes = min(runs[0][0] for runs in waiting if runs)
        rows = []
        for row, runs in enumerate(waiting):
            if runs and runs[0][0] == sizes:
                _, start, stop = runs.pop(0)
                rows.append((row, start, stop))
        phases.append(Phase(dict(zip(names, sizes, strict=True)), rows))
    return phases


def _shares(phase: Phase, threads: int) -> list[Phase]:
    """A phase's rows for each thread, about as many steps for each: packed as clients are into lanes."""
    schedule = pack([stop - start for _, start, stop in phase.rows], threads)
    taken = [np.setdiff1d(lane, [IDLE]) for lane in schedule.row.T]
    return [Phase(phase.widths, [phase.rows[i] for i in own]) for own in taken if len(own)]


def _full_widths(one: Prepared) -> dict[str, int]:
    return {name: s.batches.positions.shape[1] for name, s in one.streams.items()}


def _runs(sizes: Array) -> list[tuple[tuple[int, ...], int, int]]:
    """Maximal runs of equal rows of `[steps, streams]` sizes as (sizes, start, stop)."""
    marks = [0, *(np.flatnonzero(np.diff(sizes, axis=0).any(axis=1)) + 1), len(sizes)]
    return [(tuple(int(size) for size in sizes[a]), int(a), int(b)) for a, b in itertools.pairwise(marks) if b > a]


def _places(group: list[Prepared], schedule: Schedule, phase: Phase) -> Array:
    """Where in `_arrays` the step is that a lane does, `[steps, lanes]`; 0 in idle places."""
    first = np.zeros(len(group) + 1, np.int64)  # the last entry is that of IDLE, whose steps are 0 too
    for row, start, _ in phase.rows:
        first[row] = start + sum(p.steps for p in group[:row])
    return first[schedule.row] + schedule.step


def _arrays(group: list[Prepared], widths: dict[str, int], name: str = MAIN) -> dict[str, Any]:
    """What is drawn for the steps of all rows, one after the other: `[steps of all rows, ...]` each."""
    streams = [p.streams[name] for p in group]
    width = widths[name]
    found: dict[str, Any] = {
        "index": np.concatenate([s.batches.positions[:, :width] for s in streams]),
        "absolute": np.concatenate([s.absolute[:, :width] for s in streams]),
        "weight": np.concatenate([s.batches.weights[:, :width] for s in streams]),
        "step": np.concatenate([np.arange(p.steps) for p in group]),
        "in_epoch": np.concatenate(
            [np.arange(p.steps) % s.batches.per_epoch for p, s in zip(group, streams, strict=True)]
        ),
        "draws": {},
        "side": {},
    }
    codes = [s.augmentation[:, :width] for s in streams if s.augmentation is not None]
    if codes:
        found["augmentation"] = np.concatenate(codes)
    if name == MAIN:
        found["draws"] = {d: np.concatenate([p.draws[d][:, :width] for p in group]) for d in group[0].draws}
        found["side"] = {side: _arrays(group, widths, side) for side in group[0].streams if side != MAIN}
    return found


def _at(batch: dict[str, Any], k: int) -> dict[str, Any]:
    return {name: _at(v, k) if isinstance(v, dict) else v[k] for name, v in batch.items()}


def _real(batch: dict[str, Any], sizes: dict[str, int], name: str = MAIN) -> dict[str, Any]:
    """The one lane of a batch without its padding."""
    size = sizes[name]
    real: dict[str, Any] = {key: batch[key][0][:size] for key in ("index", "weight", "x", "y") if key in batch}
    return {
        **real,
        "step": batch["step"][0],
        "in_epoch": batch["in_epoch"][0],
        "draws": {d: v[0][:size] for d, v in batch["draws"].items()},
        "side": {s: _real(one, sizes, s) for s, one in batch["side"].items()},
    }


def _channels_last(batch: dict[str, Any]) -> dict[str, Any]:
    moved = {**batch, "side": {name: _channels_last(side) for name, side in batch["side"].items()}}
    return moved | {"x": channels_last(batch["x"])} if "x" in batch else moved


def _indices(pairs: list[tuple[int, int]], like: Tensor) -> tuple[Tensor, Tensor]:
    lanes, rows = torch.tensor(pairs, device=like.device).T
    return lanes, rows
