"""Preparation of trainings as arrays: which samples, which draws, which learning rate at every step.

The gradient over all samples of a client is a training, too: one that sums gradients and does not change the model.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench.data import Array
from bench.engine.batches import (
    Batches,
    DrawAddress,
    Positions,
    draw_augmentation,
    draw_batches,
    draw_poisson,
    draw_values,
    steps_per_epoch,
)
from bench.engine.device_data import DeviceData
from bench.engine.private import OWN, refuse
from bench.engine.step import MAIN, Kinds, Recipe, Slices, kinds
from bench.model_call import Arithmetic
from bench.optim import SGD, Adam, AdamW, Optimizer, OptimizerState, learning_rates
from bench.params import Params
from bench.requests import Batch, Do, Feed, Gradient, Loss, Step, Train, Trained, Value, Values
from bench.settings import Settings

_SUM = "sum of "
_AUGMENTED = ("train", "remainder", "earlier", "pooled")


class Stream(NamedTuple):
    """The batches of one feed, for every step of a request.

    Attributes:
        feed: the feed that the batches are drawn from.
        batches: positions in the owner's list.
        absolute: `[steps, width]` positions in the pool.
        augmentation: `[steps, width]` the number of each sample's crop (None: samples are not augmented).
    """

    feed: Feed
    batches: Batches
    absolute: Positions
    augmentation: Positions | None = None


class Prepared(NamedTuple):
    """A `Train` request with everything drawn; `samples` of each feed are in its batches.

    Noise is drawn when it is needed, as it is as large as all gradients: `noise` has the size of each noisy part.
    """

    request: Train
    recipe: Recipe
    address: DrawAddress
    steps: int
    samples: dict[str, int]
    streams: dict[str, Stream]
    draws: dict[str, Array]
    lr: dict[str, Array]
    state: Mapping[str, OptimizerState]
    noise: Mapping[str, int] = {}


@dataclass(frozen=True)
class _Plan:
    """The plan that requests share which differ in their values only.

    Attributes:
        recipe: their recipe.
        of_one_sample: the recipe of a client with one sample, whose batch would have no statistics.
        optimizers: by part, with nothing left open.
        slices: by part, the slices that train.
        statistics: whether BatchNorm uses batch statistics.
        feeds, widths: by name of the stream.
    """

    recipe: Recipe
    of_one_sample: Recipe
    optimizers: dict[str, Optimizer]
    slices: dict[str, Slices]
    statistics: bool
    feeds: dict[str, Feed]
    widths: dict[str, int]


class Preparer:
    """Draws the batches and values of a cell's requests, resolves their optimizers, and finds their recipes.

    Most requests differ from the one before in their values only, and equal recipes are one object.
    """

    def __init__(self, device_data: DeviceData, settings: Settings, arithmetic: Arithmetic) -> None:
        self._device_data = device_data
        self._settings = settings
        self._arithmetic = arithmetic
        self._recipes: dict[Recipe, Recipe] = {}
        self._key: Any = None
        self._plan: _Plan | None = None

    def prepare(self, request: Train | Gradient, address: DrawAddress, limit: int | None = None) -> Prepared:
        """Prepare one client's request: draw its batches and values, for at most `limit` steps."""
        if isinstance(request, Gradient):
            request = _as_train(request)
        plan = self._planned(request, address.round)
        n = len(self._positions(request.feed, address))
        recipe = plan.of_one_sample if plan.statistics and n == 1 else plan.recipe
        steps = self._steps(request, n, plan)
        steps = steps if limit is None else min(steps, limit)
        states = request.optimizer_state or {}
        streams = {name: self._stream(name, steps, address, plan) for name in plan.feeds}
        width = streams[MAIN].batches.positions.shape[1]
        if width != plan.widths[MAIN]:
            recipe = replace(recipe, feeds=((MAIN, replace(request.feed, subset=None, stream=0), width),))
            recipe = self._recipes.setdefault(recipe, recipe)
        return Prepared(
            request=request,
            recipe=recipe,
            address=address,
            steps=steps,
            samples={name: sum(stream.batches.sizes.tolist()) for name, stream in streams.items()},
            streams=streams,
            draws={
                name: draw_values(draw, name, width, steps, address, request.feed.stream)
                for name, draw in request.draws.items()
            },
            lr={name: learning_rates(o, steps) for name, o in plan.optimizers.items()},
            state={
                name: states.get(name) or o.init(_trained(request, plan.slices, name))
                for name, o in plan.optimizers.items()
            },
            noise={name: _trained(request, plan.slices, name).numel() for name in plan.optimizers}
            if recipe.private
            else {},
        )

    def _private(self, request: Train) -> tuple[float, float] | None:
        """Norm and noise of DP-SGD, for a training on a client's own samples."""
        private = self._settings.dp_sgd
        return None if private is None or request.feed.samples not in OWN else (private.norm, private.noise)

    def rate(self, request: Train, address: DrawAddress) -> float:
        """The probability with which a client's sample is in a batch with noise."""
        return min(1.0, self._width(request.feed) / max(1, len(self._positions(request.feed, address))))

    def _planned(self, request: Train, round: int) -> _Plan:
        parts, context = kinds(request.values), kinds(request.context)
        rest = request.optimizer, request.feed, request.side, request.only, request.draws, request.stats
        key = request.loss, request.step, parts, context, rest, round, self._device_data.stage
        if self._plan is None or key != self._key:
            self._key, self._plan = key, self._make(request, parts, context, round)
        return self._plan

    def _make(self, request: Train, parts: Kinds, context: Kinds, round: int) -> _Plan:
        optimizers = _optimizers(request, self._settings, round)
        feeds = {MAIN: request.feed, **request.side}
        widths = {name: self._width(feed) for name, feed in feeds.items()}
        slices = _slices(request, optimizers)
        recipe = Recipe(
            loss=request.loss,
            step=request.step,
            parts=parts,
            context=context,
            optimizers=tuple((name, replace(o, lr=None)) for name, o in sorted(optimizers.items())),
            slices=tuple(slices.items()),
            # A step is the same whatever samples a feed takes, and however many.
            feeds=tuple(
                (name, replace(feed, subset=None, stream=0), widths[name]) for name, feed in sorted(feeds.items())
            ),
            draws=tuple(sorted(request.draws.items())),
            frozen=request.stats == "frozen",
            arithmetic=self._arithmetic,
            private=self._private(request),
        )
        if recipe.private:
            refuse(request, recipe)
        frozen = replace(recipe, frozen=True)
        unique = self._recipes.setdefault
        statistics = recipe.batch_statistics and not recipe.frozen and request.feed.samples != "none"
        return _Plan(unique(recipe, recipe), unique(frozen, frozen), optimizers, slices, statistics, feeds, widths)

    def _width(self, feed: Feed) -> int:
        """The batch size, at most the largest owner's number of samples (so that `all` samples is a large number)."""
        width = feed.batch_size or self._settings.batch_size
        if feed.subset is not None:
            width = min(width, feed.subset)
        if feed.samples == "none":
            return width
        return min(width, self._device_data.public_size if feed.samples == "public" else self._device_data.largest)

    def _steps(self, request: Train, n: int, plan: _Plan) -> int:
        if n == 0:
            return 0
        if request.steps is not None:
            return request.steps
        if request.epochs is None and self._settings.steps is not None:
            return self._settings.steps
        epochs = self._settings.epochs if request.epochs is None else request.epochs
        return epochs * steps_per_epoch(n, plan.widths[MAIN], batch_statistics=plan.statistics)

    def _positions(self, feed: Feed, address: DrawAddress) -> Positions:
        return self._device_data.positions(address.owner, feed.samples, feed.subset, address.round)

    def _stream(self, name: str, steps: int, address: DrawAddress, plan: _Plan) -> Stream:
        feed, width = plan.feeds[name], plan.widths[name]
        positions = self._positions(feed, address)
        n = len(positions)
        if plan.recipe.private is not None:
            drawn = draw_poisson(feed, n, width, steps, address)
        else:
            drawn = draw_batches(feed, n, width, steps, address, batch_statistics=plan.statistics)
        absolute = positions[drawn.positions] if steps else drawn.positions
        augmented = feed.augment and feed.samples in _AUGMENTED and self._settings.augment != "none" and steps
        return Stream(feed, drawn, absolute, draw_augmentation(feed, n, drawn, address) if augmented else None)


def _optimizers(request: Train, settings: Settings, round: int) -> dict[str, Optimizer]:
    optimizers = SGD() if request.optimizer is None else request.optimizer
    if not isinstance(optimizers, Mapping):
        optimizers = dict.fromkeys(request.values, optimizers)
    return {name: _resolve(o, settings, round) for name, o in optimizers.items()}


def _resolve(optimizer: Optimizer, settings: Settings, round: int) -> Optimizer:
    """Fill the settings that the request left open from the cell; the cell's decay applies to the cell's rate only."""
    if isinstance(optimizer, SGD) and optimizer.open and settings.optimizer.name != "sgd":
        kind = AdamW if settings.optimizer.name == "adamw" else Adam
        of_cell = settings.optimizer.model_dump(exclude={"name"}) | {"weight_decay": settings.weight_decay}
        optimizer = kind(optimizer.lr, clip=optimizer.clip, schedule=optimizer.schedule, **of_cell)
    cell: dict[str, Any] = {"lr": settings.lr * settings.lr_decay**round, "clip": settings.grad_clip}
    if isinstance(optimizer, SGD):
        cell |= {name: getattr(settings, name) for name in ("momentum", "weight_decay", "nesterov")}
    return replace(optimizer, **{name: value for name, value in cell.items() if getattr(optimizer, name) is None})


def _slices(request: Train, optimizers: Mapping[str, Optimizer]) -> dict[str, Slices]:
    slices = {}
    for name in sorted(optimizers):
        value = request.values[name]
        if isinstance(value, Params):
            runs = value.spec.slices(request.only[name]) if name in request.only else [slice(0, value.spec.d)]
            slices[name] = Slices(tuple((r.start, r.stop) for r in runs), value.spec.d)
    return slices


def _trained(request: Train, slices: Mapping[str, Slices], name: str) -> Any:
    value = request.values[name]
    return slices[name].take(value.weights) if isinstance(value, Params) else value


def _as_train(request: Gradient) -> Train:
    """Make the training that answers the request: a full pass in stored order that sums gradients.

    It does not change the model.
    """
    sums = {_SUM + name: torch.zeros_like(_tensor(v)) for name, v in request.values.items()}
    some = _tensor(next(iter(request.values.values())))
    return Train(
        {**request.values, **sums, _SUM: some.new_zeros(2)},
        step=_accumulate(request.loss),
        epochs=1,
        feed=Feed(request.samples, order="cyclic", augment=False),
        optimizer={name: SGD(lr=1.0, momentum=0.0, weight_decay=0.0) for name in request.values},
        context=request.context,
        stats="frozen",
    )


@functools.cache
def _accumulate(loss: Loss) -> Step:
    """The step that adds gradient x samples, loss x samples and samples; cached: equal losses share a recipe."""

    def step(do: Do, values: Values, batch: Batch, ctx: Any) -> Values:
        gradients, _ = do.gradient(loss, values, batch, ctx)
        assert do.loss is not None
        n = batch.weight.sum()
        sums = {_SUM + name: values[_SUM + name] + n * g for name, g in gradients.items()}
        return values | sums | {_SUM: values[_SUM] + torch.stack([n * do.loss, n])}

    return step


def gradient_of(request: Gradient, trained: Trained) -> tuple[dict[str, Tensor], Tensor]:
    """The answer to the `Gradient` request, from the result of that training."""
    total = trained[_SUM]
    return {name: trained[_SUM + name] / total[1] for name in request.values}, total[0] / total[1]


def _tensor(value: Value) -> Tensor:
    return value.weights if isinstance(value, Params) else value
