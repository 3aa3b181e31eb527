"""Training a group of clients whose requests have one recipe: one after the other, or as a cohort in lanes.

Both ways run the same step function on the same draws. `sequential` is the oracle; `cohort` maps the step over a fixed
number of lanes.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.data import Array
from bench.engine.anomalies import Watch
from bench.engine.backends.backends import computes
from bench.engine.backends.loops import ClientLoop
from bench.engine.device_data import GATHER, DeviceData
from bench.engine.device_plan import (
    SHORT,
    DevicePacking,
    batch_sizes,
    of_widths,
    phases_in,
    shares_of,
    upload_arrays,
    upload_packings,
    widths_in,
    without_padding,
)
from bench.engine.lane_schedule import IDLE, Packing, Phase, narrowed, pack, runs_of
from bench.engine.lanes.norm import PaddingUnknownError
from bench.engine.prepare import Prepared, Stream
from bench.engine.private import refuse_mixing
from bench.engine.recorded_steps import GraphCache, RecordedSteps
from bench.engine.step import MAIN, Flat, Recipe, flatten, rebuild
from bench.engine.threads import side_by_side
from bench.nested import filled, tensors_of
from bench.requests import Trained

Answers = tuple[list[Trained], bool]
"""The answers, and whether all losses and trained values are finite.

The second is computed from their sum: where the sum overflows, it is False although every value is finite.
"""


class Rows:
    """The training state of a cohort: one row per client, in matrices on the device."""

    def __init__(self, group: list[Prepared], device_data: DeviceData) -> None:
        self._device_data = device_data
        self.parts = self._stack([flatten(p.request.values) for p in group])
        names = group[0].state
        self.state = {name: self._stack([dict(p.state[name]) for p in group]) for name in names}
        contexts = (tensors_of([flatten(p.request.context)]) for p in group)
        self.context = [[device_data.to_device(t) for t in context] for context in contexts]
        self.loss = next(iter(self.parts.values())).new_zeros(len(group))

    def _stack(self, rows: list[Flat]) -> Flat:
        return {name: self._device_data.matrix([row[name] for row in rows]) for name in rows[0]}

    @property
    def nested(self) -> tuple[Any, ...]:
        """The trained values: parts, optimizer states and the sum of the losses."""
        return self.parts, self.state, self.loss

    def tensors(self) -> list[Tensor]:
        """The matrices of `nested` in a list."""
        return list(tensors_of(self.nested))

    def finite(self) -> bool:
        """Whether all losses and trained values are finite; False, too, where their sum overflows (see `Answers`)."""
        return _finite([self.loss, *(t for name, t in self.parts.items() if not name.endswith("/buffers"))])

    def trained(self, group: list[Prepared]) -> list[Trained]:
        """The answers, as views of the matrices; to be read once the device has been waited for."""
        losses = self._device_data.to_home(self.loss / self.loss.new_tensor([max(1, p.steps) for p in group])).unbind()
        states: list[dict[str, Flat]] = [{} for _ in group]
        for part, matrices in self.state.items():
            for state, row in zip(states, self._unstack(matrices), strict=True):
                state[part] = row
        rows = zip(group, self._unstack(self.parts), states, losses, strict=True)
        return [Trained(rebuild(parts, p.recipe.parts), state, p.steps, loss) for p, parts, state, loss in rows]

    def _unstack(self, matrices: Flat) -> list[Flat]:
        rows: list[Flat] = [{} for _ in self.context]
        for name, matrix in matrices.items():
            for flat, row in zip(rows, self._device_data.to_home(matrix).unbind(), strict=True):
                flat[name] = row
        return rows


def _finite(tensors: Iterable[Tensor]) -> bool:
    sums = [t.sum() for t in tensors]
    return math.isfinite(torch.stack([s.to(sums[0]) for s in sums]).sum())


class Trainer:
    """Runs groups of prepared requests on one device.

    Attributes:
        steps: the steps that it runs.
    """

    def __init__(self, device_data: DeviceData, hp: dict[str, Any], dtype: torch.dtype, recordings: GraphCache) -> None:
        self.device_data = device_data
        self.dtype = dtype
        self.steps = RecordedSteps(hp, recordings)
        self._compared: set[tuple[Recipe, int]] = set()

    def sequential(self, group: list[Prepared], threads: int) -> Answers:
        """Train one client after the other; several at a time where threads are given."""
        longest_first = sorted(range(len(group)), key=lambda i: -group[i].steps)
        done = side_by_side(threads, (functools.partial(self.alone, group[i]) for i in longest_first), len(group))
        trained = [answer for _, answer in sorted(zip(longest_first, done, strict=True), key=lambda pair: pair[0])]
        values = (
            value for answer in trained for name, value in flatten(answer.values).items() if name[-8:] != "/buffers"
        )
        return trained, _finite([*(answer.loss for answer in trained), *values])

    def alone(self, prepared: Prepared, watch: Watch | None = None) -> Trained:
        """Train one client; with a `watch`, which sees each step, nothing is recorded."""
        parts, context = flatten(prepared.request.values), flatten(prepared.request.context)
        nested = parts, prepared.state, next(iter(parts.values())).new_zeros(())
        # Copies, because an answer must not share memory with anything, and two parts may start from the same buffers.
        state = [t.to(self.device_data.device, copy=True) for t in tensors_of(nested)]
        fixed = [*map(self.device_data.to_device, tensors_of([context])), *tensors_of([self.steps.hp])]
        arrays = upload_arrays([prepared], self._tensor)
        steps_at = torch.arange(prepared.steps, device=self.device_data.device)[:, None]
        names, sizes = sorted(prepared.streams), batch_sizes(prepared)
        for first, batches in self._batches(prepared.streams, arrays, steps_at):
            for widths, start, stop in runs_of(sizes[first : first + len(batches["weight"])]):
                real = without_padding(batches, slice(start, stop), dict(zip(names, widths, strict=True)))
                lr = {name: rate[first + start : first + stop] for name, rate in arrays["lr"].items()}
                arguments = nested, (lr, real), context, self.steps.hp
                inputs = list(tensors_of((lr, real)))
                if watch:
                    state = ClientLoop(self.steps.on_lists(prepared.recipe, arguments, watch=watch))(
                        state, inputs, fixed
                    )
                    continue
                step = self.steps.recorded(prepared.recipe, arguments, alone=True)
                examples = [*state, *(values[0] for values in inputs), *fixed]
                state = step.run(examples, stop - start, state, inputs, fixed)
        parts, optimizers, loss = filled(nested, (t.to(self.device_data.home) for t in state))
        return Trained(rebuild(parts, prepared.recipe.parts), optimizers, prepared.steps, loss / max(1, prepared.steps))

    def check_losses(self, group: list[Prepared], trained: list[Trained]) -> None:
        """Refuse DP-SGD for a loss that is no mean over samples, by the first batch of the client whose is largest.

        It is looked at once a round, as a loss may have another term later, and after the training, as distances from
        what was downloaded are often 0 before.

        Raises:
            UserError: the loss of the batch is not the mean of its samples' losses.
        """
        prepared, answer = max(
            zip(group, trained, strict=True), key=lambda pair: max([0, *pair[0].streams[MAIN].batches.sizes[:1]])
        )
        seen, sizes = (prepared.recipe, prepared.address.round), {MAIN: 0}
        if prepared.steps:
            sizes[MAIN] = int(prepared.streams[MAIN].batches.sizes[0])
        if seen in self._compared or sizes[MAIN] < 2 or not computes():  # one sample mixes with no other
            return
        self._compared.add(seen)
        arrays = upload_arrays([prepared._replace(noise={})], self._tensor)
        first = torch.zeros(1, 1, dtype=torch.int64, device=self.device_data.device)
        batch = without_padding(self._gather(prepared.streams, arrays, first), slice(0, 1), sizes)
        batch = filled(batch, (t[0] for t in tensors_of([batch])))
        batch["share"] = batch["weight"] / sizes[MAIN]
        parts, context = (
            {name: self.device_data.to_device(t) for name, t in flatten(values).items()}
            for values in (answer.values, prepared.request.context)
        )
        refuse_mixing(prepared.recipe, *self.steps.losses(prepared, parts, batch, context))

    def cohort(self, group: list[Prepared], lanes: int, threads: int) -> Answers:
        """Train all clients side by side in lanes; where threads are given, in lanes of each of them."""
        rows = Rows(group, self.device_data)
        arrays = upload_arrays(group, self._tensor)
        if self.device_data.device.type == "cpu":
            for phase in phases_in(group, by_epoch=False):
                shares = [(share, pack(share.lengths(len(group)), lanes)) for share in shares_of(phase, threads)]
                jobs = itertools.chain.from_iterable(self._lane_jobs(rows, group, arrays, [share]) for share in shares)
                side_by_side(threads, jobs, len(shares))
        else:
            padded = group[0].recipe.takes_padding and group[0].recipe not in self.steps.unpadded
            phases = phases_in(group, by_epoch=True, padded=padded)
            wide = ((phase, pack(phase.lengths(len(group)), lanes)) for phase in phases)
            try:
                for job in self._lane_jobs(rows, group, arrays, [(phase, p) for phase, w in wide for p in narrowed(w)]):
                    job()
            except PaddingUnknownError:
                self.steps.unpadded.add(group[0].recipe)
                return self.cohort(group, lanes, threads)
        return rows.trained(group), rows.finite()  # in this order: the second waits for the device

    def _lane_jobs(
        self, rows: Rows, group: list[Prepared], arrays: dict[str, Any], packings: list[tuple[Phase, Packing]]
    ) -> Iterator[Callable[[], None]]:
        """Functions that train the rows of a packing each, in lanes of its own."""
        for (phase, _), packing in zip(packings, upload_packings(group, packings, self._tensor), strict=True):
            recipe = replace(group[0].recipe, padded=SHORT in phase.sizes)
            yield self._lane_job(rows, group, recipe, of_widths(arrays, widths_in(group, phase)), packing)

    def _lane_job(
        self, rows: Rows, group: list[Prepared], recipe: Recipe, arrays: dict[str, Any], packing: DevicePacking
    ) -> Callable[[], None]:
        """A function that trains the rows of one packing."""
        lanes, first = packing.at.shape[1], packing.starting[0][0][1]
        steps_at = packing.at.clamp(min=0)  # an idle lane has any batch, and a rate of 0
        rates = {name: _at(rate, steps_at).masked_fill_(packing.at == IDLE, 0.0) for name, rate in arrays["lr"].items()}
        matrices, fixed = rows.tensors(), list(tensors_of([self.steps.hp]))
        context = [torch.stack([t] * lanes) for t in rows.context[first]]
        chunks: Iterator[tuple[int, dict[str, Any]]] = self._batches(group[0].streams, arrays, steps_at)
        # Gather the first batches now, while earlier jobs run: two threads that both run Python would wait for each
        # other at every operation. The first chunk is not kept in a variable, so that its memory is freed after use.
        state = [torch.stack([t[first]] * lanes) for t in matrices]
        chunks = itertools.chain([next(chunks)], chunks)

        def run() -> None:
            nonlocal state
            for start, batches in chunks:
                steps = slice(start, start + len(batches["weight"]))
                nested = {name: rate[steps] for name, rate in rates.items()}, batches
                arguments = rows.nested, nested, flatten(group[0].request.context), self.steps.hp
                step = self.steps.recorded(recipe, arguments)
                inputs = list(tensors_of(nested))
                examples = [*state, *(values[0] for values in inputs), *context, *fixed]
                transfers = packing.starting[steps], packing.load[steps], packing.store[steps]
                state = step.run(
                    examples, len(transfers[0]), *transfers, matrices, rows.context, state, context, inputs, fixed
                )

        return run

    def _batches(
        self, streams: Mapping[str, Stream], arrays: dict[str, Any], steps_at: Tensor
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """The batches of a schedule, `[steps, lanes, width, ...]` each, with the number of the first of these steps."""
        lanes, width = steps_at.shape[1], arrays["index"].shape[1]
        noise = sum(v.shape[1] * v.itemsize for v in arrays.get("noise", {}).values())
        chunk = max(1, GATHER // max(1, lanes * (width * self._bytes(streams[MAIN].feed.samples) + noise)))
        for start in range(0, len(steps_at), chunk):
            yield start, self._gather(streams, arrays, steps_at[start : start + chunk])

    def _bytes(self, samples: Any) -> int:
        return 0 if samples == "none" else self.device_data.pool(samples).x[0].numel() * self.dtype.itemsize

    def _gather(
        self, streams: Mapping[str, Stream], arrays: dict[str, Any], steps_at: Tensor, name: str = MAIN
    ) -> dict[str, Any]:
        """The batches of some steps, `[steps, lanes, width, ...]` each."""
        batches = {k: _at(v, steps_at) for k, v in arrays.items() if isinstance(v, Tensor)}
        absolute, codes = batches.pop("absolute"), batches.pop("augmentation", None)
        if streams[name].feed.samples != "none":
            pool = self.device_data.pool(streams[name].feed.samples)
            batches["x"], batches["y"] = pool.take(absolute)
            if codes is not None:
                batches["x"] = pool.crop_flip(batches["x"], codes)
        noise = {part: _at(v, steps_at) for part, v in arrays.get("noise", {}).items()}
        return {
            **batches,
            **({"noise": noise} if noise else {}),
            "draws": {d: _at(v, steps_at) for d, v in arrays["draws"].items()},
            "side": {
                side: self._gather(streams, side_arrays, steps_at, side) for side, side_arrays in arrays["side"].items()
            },
        }

    def _tensor(self, array: Array) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array)).to(self.device_data.device)
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor


def _at(values: Tensor, at: Tensor) -> Tensor:
    """Take `values[at]`; for small entries this is four times as fast as indexing."""
    return values.index_select(0, at.reshape(-1)).view(*at.shape, *values.shape[1:])
