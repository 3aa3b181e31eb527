"""Training a group of clients whose requests have one recipe: one after the other, or as a cohort in lanes.

Both ways run the same step function on the same draws. `sequential` is the oracle; `cohort` maps the step over a fixed
number of lanes. A group goes once through each place: its inputs to the device (`bench/engine/step_inputs.py`), its
steps into lanes (`bench/engine/lane_schedule.py`), and the lanes' batches through the step, which
`bench/engine/recorded_steps.py` has.
"""

import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bench.engine.anomalies import Watch
from bench.engine.backends.loops import ClientLoop
from bench.engine.device import side_by_side
from bench.engine.device_data import DeviceData
from bench.engine.lane_schedule import Phase, schedule
from bench.engine.lanes.norm import PaddingUnknownError
from bench.engine.prepare import Prepared
from bench.engine.private import refuse_mixing
from bench.engine.recorded_steps import GraphCache, RecordedSteps
from bench.engine.step import MAIN, Flat, Recipe, flatten, rebuild
from bench.engine.step_inputs import DevicePacking, Inputs
from bench.params import filled, tensors_of
from bench.requests import Train, Trained

Answers = tuple[list[Trained], bool]
"""The answers, and whether all losses and trained values are finite.

The second is computed from their sum: where the sum overflows, it is False although every value is finite.
"""


class Rows:
    """The clients of a cohort: what each begins with, and matrices on the device for what they end with.

    Attributes:
        values: the tensors that a client begins a phase with, in the order of `tensors()`, by row.
        context: the tensors of its context, by row.
        parts, state, loss: the results, `[rows, ...]` each.
    """

    def __init__(self, group: list[Prepared], device_data: DeviceData) -> None:
        self._device_data = device_data
        flats = [flatten(p.request.values) for p in group]
        zero = next(iter(flats[0].values())).new_zeros((), device=device_data.device)
        begin = [
            (flat, {name: dict(p.state[name]) for name in p.state}, zero) for flat, p in zip(flats, group, strict=True)
        ]
        self.values = [list(tensors_of(nested)) for nested in begin]
        self.context = [[device_data.to_device(t) for t in tensors_of([flatten(p.request.context)])] for p in group]
        matrices = (device_data.empty_rows(len(group), t) for t in self.values[0])
        self.parts, self.state, self.loss = filled(begin[0], matrices)
        for row, prepared in enumerate(group):
            if not prepared.steps:  # it ends with what it has begun with
                for matrix, value in zip(self.tensors(), self.values[row], strict=True):
                    matrix[row].copy_(value)

    def in_lanes(self, begin: list[int], values: list[list[Tensor]]) -> list[Tensor]:
        """Values of some rows, side by side in lanes, `[lanes, ...]` each."""
        tensors = zip(*(values[row] for row in begin), strict=True)
        return [self._device_data.to_device(torch.stack(of_rows)) for of_rows in tensors]

    def begin_from_results(self, phase: Phase) -> None:
        """Let the clients of a phase begin the next one with what they have ended with."""
        for row, _, _ in phase.rows:
            self.values[row] = [matrix[row] for matrix in self.tensors()]

    @property
    def nested(self) -> tuple[Any, ...]:
        """The trained values: parts, optimizer states and the sum of the losses."""
        return self.parts, self.state, self.loss

    def tensors(self) -> list[Tensor]:
        """The matrices of `nested` in a list."""
        return list(tensors_of(self.nested))

    def finite(self) -> bool:
        """Whether all losses and trained values are finite; False, too, where their sum overflows (see `Answers`)."""
        return _finite([self.loss, *_weights_of(self.parts)])

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


def _weights_of(parts: Flat) -> Iterable[Tensor]:
    # A running variance of huge inputs may overflow in a model that is fine: whether weights are finite decides.
    return (tensor for name, tensor in parts.items() if not name.endswith("/buffers"))


def _finite(tensors: Iterable[Tensor]) -> bool:
    sums = [t.sum() for t in tensors]
    return math.isfinite(torch.stack([s.to(sums[0]) for s in sums]).sum())


class LaneJob:
    """The training of one phase, in lanes of its own; it runs once.

    Its first lanes and batches are gathered when it is made, while earlier jobs run: two threads that both run Python
    would wait for each other at every operation.

    Args:
        widths: the batch size of each stream, padding included.
    """

    def __init__(
        self,
        rows: Rows,
        request: Train,
        recipe: Recipe,
        inputs: Inputs,
        steps: RecordedSteps,
        widths: dict[str, int],
        packings: list[DevicePacking],
    ) -> None:
        self._rows, self._request, self._recipe, self._steps = rows, request, recipe, steps
        begin = [row for _, row in packings[0].load[0]]  # in the first lanes; idle ones have another's values
        begin += begin[:1] * (packings[0].at.shape[1] - len(begin))
        self._state, self._context = (rows.in_lanes(begin, of) for of in (rows.values, rows.context))
        loaded = packings[0]._replace(load=[[], *packings[0].load[1:]])
        chunks = _chunks([loaded, *packings[1:]], inputs, widths)
        # The first chunk is not kept in a variable, so that its memory is freed after use.
        self._chunks = itertools.chain([next(chunks)], chunks)

    def __call__(self) -> None:
        """Train, and leave the clients' values in their rows."""
        rows, matrices, hp = self._rows, self._rows.tensors(), self._steps.hp
        fixed, context = list(tensors_of([hp])), flatten(self._request.context)
        for packing, at, nested in self._chunks:
            if len(self._state[0]) != len(packing.kept):  # the next packing, which has fewer lanes
                self._state, self._context = (
                    [t.index_select(0, packing.kept) for t in lanes] for lanes in (self._state, self._context)
                )
            step = self._steps.recorded(self._recipe, (rows.nested, nested, context, hp))
            inputs = list(tensors_of(nested))
            examples = [*self._state, *(values[0] for values in inputs), *self._context, *fixed]
            load = packing.load[at]
            arguments = load, packing.store[at], rows.values, rows.context, matrices
            self._state = step.run(examples, len(load), *arguments, self._state, self._context, inputs, fixed)


def _chunks(
    packings: list[DevicePacking], inputs: Inputs, widths: dict[str, int]
) -> Iterator[tuple[DevicePacking, slice, tuple[Any, ...]]]:
    """Some steps of a packing at a time, with their learning rates and batches."""
    for packing in packings:
        rates = inputs.rates(packing.at)
        for start, batches in inputs.batches(packing.at, widths):
            at = slice(start, start + len(batches["weight"]))
            yield packing, at, ({name: rate[at] for name, rate in rates.items()}, batches)


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
        values = (value for answer in trained for value in _weights_of(flatten(answer.values)))
        return trained, _finite([*(answer.loss for answer in trained), *values])

    def alone(self, prepared: Prepared, watch: Watch | None = None) -> Trained:
        """Train one client; with a `watch`, which sees each step, nothing is recorded."""
        parts, context = flatten(prepared.request.values), flatten(prepared.request.context)
        nested = parts, prepared.state, next(iter(parts.values())).new_zeros(())
        # Copies, because an answer must not share memory with anything, and two parts may start from the same buffers.
        state = [t.to(self.device_data.device, copy=True) for t in tensors_of(nested)]
        fixed = [*map(self.device_data.to_device, tensors_of([context])), *tensors_of([self.steps.hp])]
        for run in Inputs([prepared], self.device_data, self.dtype).runs():
            arguments, inputs = (nested, run, context, self.steps.hp), list(tensors_of(run))
            if watch:
                state = ClientLoop(self.steps.on_lists(prepared.recipe, arguments, watch=watch))(state, inputs, fixed)
                continue
            step = self.steps.recorded(prepared.recipe, arguments, alone=True)
            examples = [*state, *(values[0] for values in inputs), *fixed]
            state = step.run(examples, len(inputs[0]), state, inputs, fixed)
        parts, optimizers, loss = filled(nested, (t.to(self.device_data.home) for t in state))
        return Trained(rebuild(parts, prepared.recipe.parts), optimizers, prepared.steps, loss / max(1, prepared.steps))

    def cohort(self, group: list[Prepared], lanes: int, threads: int) -> Answers:
        """Train all clients side by side in lanes; where threads are given, in lanes of each of them."""
        rows, inputs = Rows(group, self.device_data), Inputs(group, self.device_data, self.dtype)
        on_gpu, recipe = self.device_data.device.type != "cpu", group[0].recipe
        padded = on_gpu and recipe.takes_padding and recipe not in self.steps.unpadded
        phases = schedule(group, lanes, threads, on_gpu=on_gpu, padded=padded)
        packings = inputs.placed([phase for together in phases for phase in together])
        what, names = (group[0].request, replace(recipe, padded=padded), inputs, self.steps), sorted(group[0].streams)
        try:
            for together in phases:
                widths = (dict(zip(names, phase.sizes, strict=True)) for phase, _ in together)
                jobs = map(functools.partial(LaneJob, rows, *what), widths, packings)
                side_by_side(threads, jobs, len(together))
                for phase, _ in together if together is not phases[-1] else ():
                    rows.begin_from_results(phase)
        except PaddingUnknownError:
            self.steps.unpadded.add(recipe)
            return self.cohort(group, lanes, threads)
        return rows.trained(group), rows.finite()  # in this order: the second waits for the device

    def check_losses(self, group: list[Prepared], trained: list[Trained]) -> None:
        """Refuse DP-SGD for a loss that is no mean over samples, by the first batch of the client whose is largest.

        It is looked at once a round, as a loss may have another term later, and after the training, as distances from
        what was downloaded are often 0 before.

        Raises:
            UserError: the loss of the batch is not the mean of its samples' losses.
        """
        firsts = [int(p.streams[MAIN].batches.sizes[0]) if p.steps else 0 for p in group]
        size = max(firsts)
        prepared, answer = group[firsts.index(size)], trained[firsts.index(size)]
        seen = prepared.recipe, prepared.address.round
        if seen in self._compared or size < 2:  # one sample mixes with no other
            return
        self._compared.add(seen)
        batch = Inputs([prepared._replace(noise={})], self.device_data, self.dtype).first_batch(size)
        batch = filled(batch, (t[0] for t in tensors_of([batch])))
        batch["share"] = batch["weight"] / size
        parts, context = (
            {name: self.device_data.to_device(t) for name, t in flatten(values).items()}
            for values in (answer.values, prepared.request.context)
        )
        refuse_mixing(prepared.recipe, *self.steps.losses(prepared, parts, batch, context))
