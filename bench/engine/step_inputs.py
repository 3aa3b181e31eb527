"""Inputs of the steps of a group, on the device: batches, draws, noise and learning rates, and who is in which lane.

It is copied before the first step, in a few large arrays, because a copy for each step would be waited for each time.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bench.data import Array
from bench.engine.batches import network_keys
from bench.engine.device_data import GATHER, DeviceData
from bench.engine.lane_schedule import IDLE, Packing, Pairs, Phase, batch_sizes, runs_of
from bench.engine.prepare import Prepared, Stream
from bench.engine.private import noise_of
from bench.engine.step import MAIN


class DevicePacking(NamedTuple):
    """A packing whose plan is on the device.

    Attributes:
        at: `[steps, lanes]` where in the inputs each lane's step is (IDLE: it has none).
        kept: `[lanes]` the lane of the packing before it that each lane goes on with; an idle lane has any.
        load, store: as of `Packing`.
    """

    at: Tensor
    kept: Tensor
    load: Pairs
    store: Pairs


class Inputs:
    """The inputs of all steps of a group on the device: `[steps of all rows, ...]`, one row's steps after another's."""

    def __init__(self, group: list[Prepared], device_data: DeviceData, dtype: torch.dtype) -> None:
        self._group = group
        self._device_data = device_data
        self._dtype = dtype
        self._arrays = self._uploaded(_arrays(group))

    def placed(self, phases: list[tuple[Phase, list[Packing]]]) -> Iterator[list[DevicePacking]]:
        """The packings of phases on the device, in one copy."""
        arrays: list[Array] = []
        for phase, packings in phases:
            for packing in packings:
                kept = np.zeros(packing.row.shape[1], np.int64)
                kept[: len(packing.kept or [])] = packing.kept or []
                arrays += [_places(self._group, packing, phase), kept]
        uploaded = self._tensor(np.concatenate([np.zeros(0, np.int64), *(array.reshape(-1) for array in arrays)]))
        parts = iter(uploaded.split_with_sizes([array.size for array in arrays]))
        for _, packings in phases:
            yield [
                DevicePacking(next(parts).view(packing.row.shape), next(parts), packing.load, packing.store)
                for packing in packings
            ]

    def rates(self, at: Tensor) -> dict[str, Tensor]:
        """Learning rates of steps in lanes by part, `[steps, lanes]` as `at`; that of an idle lane is 0."""
        steps_at = at.clamp(min=0)
        return {part: _at(rate, steps_at).masked_fill_(at == IDLE, 0.0) for part, rate in self._arrays["lr"].items()}

    def batches(self, at: Tensor, widths: dict[str, int] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
        """The batches of steps in lanes, `[steps, lanes, width, ...]` each, and the number of the first of these steps.

        Args:
            at: `[steps, lanes]` where the steps are; an idle lane has any batch.
            widths: the batch size of each stream (None: the largest).
        """
        steps_at, arrays = at.clamp(min=0), self._arrays
        if widths is not None:
            arrays = _of_widths(arrays, widths)
        samples, noise = self._group[0].streams[MAIN].feed.samples, arrays.get("noise", {})
        sample = 0 if samples == "none" else self._device_data.pool(samples).x[0].numel() * self._dtype.itemsize
        size = arrays["index"].shape[1] * sample + sum(v.shape[1] * v.itemsize for v in noise.values())
        chunk = max(1, GATHER // max(1, steps_at.shape[1] * size))
        for start in range(0, len(steps_at), chunk):
            yield start, self._gather(arrays, steps_at[start : start + chunk])

    def runs(self) -> Iterator[tuple[dict[str, Tensor], dict[str, Any]]]:
        """Learning rates and batches of the only row, `[steps, ...]` each: runs of equal batches, without padding."""
        [prepared] = self._group
        names, sizes = sorted(prepared.streams), batch_sizes(prepared)
        steps_at = torch.arange(prepared.steps, device=self._device_data.device)[:, None]
        for first, batches in self.batches(steps_at):
            for widths, start, stop in runs_of(sizes[first : first + len(batches["weight"])]):
                real = _without_padding(batches, slice(start, stop), dict(zip(names, widths, strict=True)))
                yield {part: rate[first + start : first + stop] for part, rate in self._arrays["lr"].items()}, real

    def first_batch(self, samples: int) -> dict[str, Any]:
        """The first batch of the only row, `[1, samples, ...]`."""
        first = torch.zeros(1, 1, dtype=torch.int64, device=self._device_data.device)
        return _without_padding(self._gather(self._arrays, first), slice(0, 1), {MAIN: samples})

    def _gather(self, arrays: dict[str, Any], steps_at: Tensor, name: str = MAIN) -> dict[str, Any]:
        """The batches of some steps, `[steps, lanes, width, ...]` each."""
        batches = {k: _at(v, steps_at) for k, v in arrays.items() if isinstance(v, Tensor)}
        absolute, codes = batches.pop("absolute"), batches.pop("augmentation", None)
        samples = self._group[0].streams[name].feed.samples
        if samples != "none":
            pool = self._device_data.pool(samples)
            batches["x"], batches["y"] = pool.take(absolute)
            if codes is not None:
                batches["x"] = pool.crop_flip(batches["x"], codes)
        noise = {part: _at(v, steps_at) for part, v in arrays.get("noise", {}).items()}
        return {
            **batches,
            **({"noise": noise} if noise else {}),
            "draws": {d: _at(v, steps_at) for d, v in arrays["draws"].items()},
            "side": {side: self._gather(values, steps_at, side) for side, values in arrays["side"].items()},
        }

    def _uploaded(self, arrays: dict[str, Any]) -> dict[str, Any]:
        return {k: self._uploaded(v) if isinstance(v, dict) else self._tensor(v) for k, v in arrays.items()}

    def _tensor(self, array: Array) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array)).to(self._device_data.device)
        return tensor.to(self._dtype) if tensor.is_floating_point() else tensor


def _at(values: Tensor, at: Tensor) -> Tensor:
    """Take `values[at]`; for small entries this is four times as fast as indexing."""
    return values.index_select(0, at.reshape(-1)).view(*at.shape, *values.shape[1:])


def _places(group: list[Prepared], packing: Packing, phase: Phase) -> Array:
    """Positions of the inputs of each step and lane in the arrays, `[steps, lanes]`; IDLE for an idle lane."""
    first = np.full(len(group) + 1, IDLE, np.int64)  # the last entry is that of IDLE, whose steps are 0
    offsets = np.cumsum([0, *(p.steps for p in group)])
    for row, start, _ in phase.rows:
        first[row] = start + offsets[row]
    return first[packing.row] + packing.step


def _arrays(group: list[Prepared], name: str = MAIN) -> dict[str, Any]:
    """The inputs of a stream by name: the entries of a `bench.requests.Batch`, and beside them `absolute`, positions in
    the pool, `lr` by part, and `key`, that of what networks draw."""
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
        if group[0].recipe.network_draws:
            arrays["key"] = np.concatenate([network_keys(p.address, p.steps) for p in group])
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


def _of_widths(drawn: dict[str, Any], widths: dict[str, int], name: str = MAIN) -> dict[str, Any]:
    """Views of drawn arrays for batches of fewer samples, at most `widths` of each stream."""
    views = {key: v[:, : widths[name]] if isinstance(v, Tensor) and v.dim() > 1 else v for key, v in drawn.items()}
    return views | {
        "draws": {d: v[:, : widths[name]] for d, v in drawn["draws"].items()},
        "side": {side: _of_widths(values, widths, side) for side, values in drawn["side"].items()},
    }


def _without_padding(batches: dict[str, Any], steps: slice, sizes: dict[str, int], name: str = MAIN) -> dict[str, Any]:
    """The one lane of steps of equal batches, without its padding."""
    size = sizes[name]
    per_sample = [key for key in ("index", "weight", "share", "x", "y") if key in batches]
    real: dict[str, Any] = {key: batches[key][steps, 0, :size] for key in per_sample}
    return {
        **real,
        **{key: batches[key][steps, 0] for key in ("step", "in_epoch", "key") if key in batches},
        "draws": {d: v[steps, 0, :size] for d, v in batches["draws"].items()},
        **({"noise": {part: v[steps, 0] for part, v in batches["noise"].items()}} if "noise" in batches else {}),
        "side": {s: _without_padding(batch, steps, sizes, s) for s, batch in batches["side"].items()},
    }
