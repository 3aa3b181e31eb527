"""The steps of a method as recipes make them, recorded once they have run often enough, and kept for the next cell."""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor
from torch.func import vmap

from bench.engine.anomalies import Watch
from bench.engine.backends.backends import Recorded
from bench.engine.backends.loops import ClientLoop, CohortLoop, Function
from bench.engine.device_data import channels_last
from bench.engine.prepare import Prepared
from bench.engine.step import Flat, Recipe, differentiate, differentiate_alone, losses, make_step
from bench.model_call import PLAIN
from bench.params import filled, tensors_of


@dataclass
class GraphCache:
    """Recorded steps of a method on one device and in one type, and what is known of them.

    Cells of equal plain hyperparameters may share it: those that a loss receives as tensors are arguments of a recorded
    step.

    Attributes:
        steps: recorded steps, by recipe and by whether they are for a single client.
        used: those that the current cell has run.
        reads: by recipe, how often a step reads each feed's batch.
        unpadded: recipes whose batches must not be padded, because a loss gives BatchNorm other samples than the
            batch's.
    """

    steps: dict[tuple[Recipe, bool], Recorded] = field(default_factory=dict)
    used: set[Recorded] = field(default_factory=set)
    reads: dict[Recipe, Mapping[str, int]] = field(default_factory=dict)
    unpadded: set[Recipe] = field(default_factory=set)

    def begin_cell(self) -> None:
        """Forget the steps that the last cell did not run, and those of single clients if networks are convolutional.

        A recipe may contain a number that other cells do not have, such as an optimizer's. There is a step of a single
        client for each size of a short batch, of some megabytes for a deep network; recording them again costs little
        compared with training such a network.
        """
        self.steps = {
            (recipe, alone): step
            for (recipe, alone), step in self.steps.items()
            if step in self.used and not (alone and recipe.better_alone)
        }
        for step in self.used:
            step.checks.clear()
        self.used = set()


class RecordedSteps:
    """The steps that one cell takes.

    Attributes:
        hp: the hyperparameters that a step gets as tensors.
        used: the steps that have run.
        by_recipe: all steps, also of earlier cells, as in `GraphCache.steps`.
        unpadded: recipes whose batches must not be padded (`GraphCache`).
    """

    def __init__(self, hp: dict[str, Any], recordings: GraphCache) -> None:
        self._plain = {name: v for name, v in hp.items() if not isinstance(v, Tensor)}
        self.hp = {name: v for name, v in hp.items() if isinstance(v, Tensor)}
        self.by_recipe, self._reads, self.unpadded = recordings.steps, recordings.reads, recordings.unpadded
        self.used = recordings.used
        self._earlier = {step: Counter(step.calls) for step in recordings.steps.values()}  # calls by earlier cells

    def samples(self, group: list[Prepared]) -> list[int]:
        """Count the samples in the gradients of each trained client, once per gradient."""
        reads = self._reads.get(group[0].recipe, {}).items()
        return [sum([n * client.samples[name] for name, n in reads]) for client in group]

    @property
    def records(self) -> bool:
        """Whether steps are recorded once there have been enough of them; some networks' steps never are."""
        taken = self.used & set(self.by_recipe.values())
        return not taken or any(step.ever for step in taken)

    @property
    def calls(self) -> Counter[str]:
        """Number of calls of the cell's steps on each backend; a cohort's step counts once."""
        in_this_cell = (step.calls - self._earlier.get(step, Counter()) for step in self.by_recipe.values())
        return sum(in_this_cell, Counter())

    def recorded(self, recipe: Recipe, nested: Any, *, alone: bool = False) -> Recorded:
        """The recorded step of a recipe on lanes, or of one client alone; `nested`: its arguments, for their names."""
        if (recipe, alone) not in self.by_recipe:
            # Another thread may have added it meanwhile.
            self.by_recipe.setdefault((recipe, alone), self._record(recipe, nested, alone=alone))
        self.used.add(self.by_recipe[recipe, alone])
        return self.by_recipe[recipe, alone]

    def losses(self, prepared: Prepared, parts: Flat, batch: dict[str, Any], context: Flat) -> tuple[Tensor, Tensor]:
        """The loss of a batch `[]` in the weights' own precision, and those of its samples alone `[samples]`."""
        return losses(replace(prepared.recipe, arithmetic=PLAIN), self._plain, parts, batch, context, self.hp)

    def _record(self, recipe: Recipe, nested: Any, *, alone: bool) -> Recorded:
        on_lists = self.on_lists(recipe, nested, alone=alone)
        # A single client's step has more shapes, so it is recorded later. Its results may be passed to an unrecorded
        # step, so they must not be inference tensors.
        patience = 5 if recipe.recordable else math.inf
        if alone:
            return Recorded(on_lists, ClientLoop, patience=patience, in_place=True)
        return Recorded(on_lists, CohortLoop)

    def on_lists(self, recipe: Recipe, nested: Any, *, alone: bool = True, watch: Watch | None = None) -> Function:
        """The step as a function of a list of tensors; `nested`: its arguments, for their names."""
        names = filled(nested, itertools.repeat(None))
        count_reads = functools.partial(self._reads.__setitem__, replace(recipe, padded=False))
        by_client = watch.differentiate if watch else differentiate_alone
        step = make_step(recipe, self._plain, count_reads, by_client if alone else differentiate)
        mapped = step if alone else vmap(step, in_dims=(0, 0, 0, 0, 0, None))

        def on_lists(tensors: list[Tensor]) -> list[Tensor]:
            (parts, state, total), (lr, batch), context, hp = filled(names, iter(tensors))
            batch = _channels_last(batch) if alone and recipe.channels_last else batch
            parts, state, loss = mapped(parts, state, lr, batch, context, hp)
            if watch:
                watch.after_step(parts)
            return list(tensors_of((parts, state, total + loss)))

        return on_lists


def _channels_last(batch: dict[str, Any]) -> dict[str, Any]:
    moved = {**batch, "side": {name: _channels_last(side) for name, side in batch["side"].items()}}
    return moved | {"x": channels_last(batch["x"])} if "x" in batch else moved
