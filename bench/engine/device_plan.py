"""The plan of a training, on the device: what its steps read, and which client is in which lane.

It is copied before the first step, in a few large arrays, because a copy for each step would be waited for each time.
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from bench.data import Array
from bench.engine.lane_schedule import IDLE, Packing, Phase, pack, phases_of, runs_of
from bench.engine.prepare import Prepared, Stream
from bench.engine.private import noise_of
from bench.engine.step import MAIN

SHORT = -1
"""The size of batches that are padded, in a phase that has them side by side."""

ToDevice = Callable[[Array], Tensor]


class DevicePacking(NamedTuple):
    """A packing whose plan is on the device.

    Attributes:
        starting: per step the (lane, row) pairs of clients that are put into their lanes before it (`Packing.load`).
        at: `[steps, lanes]` where in the arrays of `upload_arrays` each lane's step is (IDLE: it has none).
        load, store: per step the lanes and the rows, `[2, pairs]`, of clients that begin before it and that have ended
            after it.
    """

    starting: list[list[tuple[int, int]]]
    at: Tensor
    load: list[Tensor]
    store: list[Tensor]


def upload_arrays(group: list[Prepared], to_device: ToDevice) -> dict[str, Any]:
    """Upload the inputs of all steps, by name: `[steps of all rows, ...]`, one row's steps after another's.

    Beside the entries of a `bench.requests.Batch` there are `absolute`, positions in the pool, and `lr` by part.
    """

    def uploaded(arrays: dict[str, Any]) -> dict[str, Any]:
        return {k: uploaded(v) if isinstance(v, dict) else to_device(v) for k, v in arrays.items()}

    return uploaded(_arrays(group))


def phases_in(group: list[Prepared], *, by_epoch: bool, padded: bool = False) -> list[Phase]:
    """Divide the steps into phases: one phase, or with moving statistics one per batch size, so that nothing is padded.

    Side batches count too: sizes are compared stream by stream, the main one first. With `by_epoch` runs end with
    epochs, or clients without short batches would take all their epochs while the others take one. With `padded`, all
    short batches are in one phase, of size SHORT, whatever their sizes.
    """
    recipe = group[0].recipe
    if not recipe.moves_statistics or recipe.frozen:
        rows = [(row, 0, p.steps) for row, p in enumerate(group) if p.steps]
        return [Phase(tuple(width for _, width in sorted(_full_widths(group[0]).items())), rows)] if rows else []
    sizes = [batch_sizes(p) for p in group]
    if padded:
        full = [width for _, width in sorted(_full_widths(group[0]).items())]
        sizes = [np.where(batches == full, batches, SHORT) for batches in sizes]
    epochs = [p.streams[MAIN].batches.per_epoch if by_epoch else 0 for p in group]
    return phases_of([runs_of(batches, epoch) for batches, epoch in zip(sizes, epochs, strict=True)])


def batch_sizes(request: Prepared) -> Array:
    """`[steps, streams]` samples per batch, with its padding where its sum has a divisor."""
    batches = [request.streams[name].batches for name in sorted(request.streams)]
    return np.stack([np.full_like(b.sizes, b.positions.shape[1]) if b.divisor else b.sizes for b in batches], axis=1)


def widths_in(group: list[Prepared], phase: Phase) -> dict[str, int]:
    """The batch size of each stream in a phase, padding included."""
    full = _full_widths(group[0])
    sizes = zip(sorted(group[0].streams), phase.sizes, strict=True)
    return {name: full[name] if size == SHORT else size for name, size in sizes}


def shares_of(phase: Phase, threads: int) -> list[Phase]:
    """Share a phase's rows among threads, about as many steps for each: packed as clients are into lanes."""
    schedule = pack([stop - start for _, start, stop in phase.rows], threads)
    shares: list[list[int]] = [[] for _ in range(threads)]
    for lane, row in itertools.chain.from_iterable(schedule.load):
        shares[lane].append(row)
    return [Phase(phase.sizes, [phase.rows[i] for i in sorted(share)]) for share in shares if share]


def upload_packings(
    group: list[Prepared], packings: list[tuple[Phase, Packing]], to_device: ToDevice
) -> list[DevicePacking]:
    """Packings of phases on the device, in two copies."""
    if not packings:
        return []
    places = [_places(group, packing, phase) for phase, packing in packings]
    at = to_device(np.concatenate([place.reshape(-1) for place in places]))
    ats = at.split_with_sizes([place.size for place in places])
    moves = [pairs for _, packing in packings for pairs in (*packing.load, *packing.store)]
    ends = to_device(np.array([pair for pairs in moves for pair in pairs], np.int64).reshape(-1, 2).T)
    moved = iter(ends.split_with_sizes([len(pairs) for pairs in moves], dim=1))
    return [
        DevicePacking(
            packing.load,
            positions.view(place.shape),
            list(itertools.islice(moved, len(place))),
            list(itertools.islice(moved, len(place))),
        )
        for (_, packing), place, positions in zip(packings, places, ats, strict=True)
    ]


def _full_widths(request: Prepared) -> dict[str, int]:
    return {name: s.batches.positions.shape[1] for name, s in request.streams.items()}


def _places(group: list[Prepared], packing: Packing, phase: Phase) -> Array:
    """Positions of the inputs of each step and lane in the arrays, `[steps, lanes]`; IDLE for an idle lane."""
    first = np.full(len(group) + 1, IDLE, np.int64)  # the last entry is that of IDLE, whose steps are 0
    offsets = np.cumsum([0, *(p.steps for p in group)])
    for row, start, _ in phase.rows:
        first[row] = start + offsets[row]
    return first[packing.row] + packing.step


def _arrays(group: list[Prepared], name: str = MAIN) -> dict[str, Any]:
    streams = [p.streams[name] for p in group]
    width = streams[0].batches.positions.shape[1]
    sizes = np.concatenate([s.batches.sizes for s in streams])
    divisors = np.concatenate([_divisors(s) for s in streams])
    weight = (np.arange(width) < sizes[:, None]).astype(np.float64)
    lengths = [p.steps for p in group]
    step = np.arange(len(sizes)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    arrays: dict[str, Any] = {
        "index": np.concatenate([s.batches.positions for s in streams]),
        "absolute": np.concatenate([s.absolute for s in streams]),
        "weight": weight,
        "share": weight / divisors[:, None],
        "step": step,
        "in_epoch": step % np.repeat([s.batches.per_epoch for s in streams], lengths),
        "draws": {},
        "side": {},
    }
    codes = [s.augmentation for s in streams if s.augmentation is not None]
    if codes:
        arrays["augmentation"] = np.concatenate(codes)
    if name == MAIN:
        arrays["lr"] = {part: np.concatenate([p.lr[part] for p in group]) for part in group[0].lr}
        arrays["draws"] = {d: np.concatenate([p.draws[d] for p in group]) for d in group[0].draws}
        if noise := group[0].noise:
            arrays["noise"] = {
                part: np.concatenate(
                    [noise_of(p.address, part, size, p.steps) / _divisors(p.streams[MAIN])[:, None] for p in group]
                )
                for part, size in noise.items()
            }
        arrays["side"] = {side: _arrays(group, side) for side in group[0].streams if side != MAIN}
    return arrays


def _divisors(stream: Stream) -> Array:
    """`[steps]` what the sum over a batch is divided by."""
    batches = stream.batches
    return np.full_like(batches.sizes, batches.divisor) if batches.divisor else batches.sizes


def of_widths(drawn: dict[str, Any], widths: dict[str, int], name: str = MAIN) -> dict[str, Any]:
    """Views of drawn arrays for batches of fewer samples, at most `widths` of each stream."""
    views = {key: v[:, : widths[name]] if isinstance(v, Tensor) and v.dim() > 1 else v for key, v in drawn.items()}
    return views | {
        "draws": {d: v[:, : widths[name]] for d, v in drawn["draws"].items()},
        "side": {side: of_widths(values, widths, side) for side, values in drawn["side"].items()},
    }


def without_padding(batches: dict[str, Any], steps: slice, sizes: dict[str, int], name: str = MAIN) -> dict[str, Any]:
    """The one lane of steps of equal batches, without its padding."""
    size = sizes[name]
    per_sample = [key for key in ("index", "weight", "share", "x", "y") if key in batches]
    real: dict[str, Any] = {key: batches[key][steps, 0, :size] for key in per_sample}
    return {
        **real,
        "step": batches["step"][steps, 0],
        "in_epoch": batches["in_epoch"][steps, 0],
        "draws": {d: v[steps, 0, :size] for d, v in batches["draws"].items()},
        **({"noise": {part: v[steps, 0] for part, v in batches["noise"].items()}} if "noise" in batches else {}),
        "side": {s: without_padding(batch, steps, sizes, s) for s, batch in batches["side"].items()},
    }
