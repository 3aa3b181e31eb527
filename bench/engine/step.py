"""One training step of one client, as a pure function: the same function runs alone and mapped over a cohort."""

import contextlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bench.engine.lanes import with_lanes
from bench.engine.lanes.convolution import in_groups
from bench.engine.lanes.norm import Padding, has_lane_norm
from bench.engine.lanes.sgd import update
from bench.model_call import Arithmetic, Composed, Forward, use_on_gpus
from bench.network_draws import NetworkDraws
from bench.optim import Optimizer, OptimizerState
from bench.params import Params, Spec
from bench.requests import Batch, Loss, Step, Values

MAIN = ""  # the main feed, among the names of side feeds
Flat = dict[str, Tensor]
Kinds = tuple[tuple[str, Hashable], ...]


use_on_gpus(with_lanes)


def flatten(values: Mapping[str, Any]) -> Flat:
    """Named values as named tensors: `w/weights`, `w/buffers` for a model value, the plain name for a tensor."""
    flat: Flat = {}
    for name, value in values.items():
        if isinstance(value, Params):
            flat |= {f"{name}/weights": value.weights, f"{name}/buffers": value.buffers}
        else:
            flat[name] = value
    return flat


def kinds(values: Mapping[str, Any]) -> Kinds:
    """The static side of named values: their specs, or shape and dtype of a tensor."""
    return tuple(
        (name, v.spec if isinstance(v, Params) else (tuple(v.shape), v.dtype)) for name, v in sorted(values.items())
    )


def rebuild(flat: Flat, named_kinds: Kinds) -> dict[str, Any]:
    """Rebuild named values from named tensors: the inverse of `flatten`."""
    return {
        name: Params(flat[f"{name}/weights"], flat[f"{name}/buffers"], kind) if isinstance(kind, Spec) else flat[name]
        for name, kind in named_kinds
    }


@dataclass(frozen=True)
class Slices:
    """Some slices of a part's flat weights: those that train, or those that stay as they are."""

    runs: tuple[tuple[int, int], ...]
    d: int

    @property
    def everything(self) -> bool:
        """Whether the slices cover all weights."""
        return self.runs == ((0, self.d),)

    def take(self, weights: Tensor) -> Tensor:
        """Take the slices out of weights `[d]`, as one vector."""
        if self.everything:
            return weights
        return torch.cat([weights[:0], *(weights[a:b] for a, b in self.runs)])

    def put(self, weights: Tensor, trained: Tensor) -> Tensor:
        """Put values into the slices: a copy of weights `[d]` with these slices replaced."""
        return trained if self.everything else torch.cat([weights[:0], *self.pieces(weights, trained)])

    def pieces(self, weights: Tensor, trained: Tensor) -> Iterator[Tensor]:
        """The weights `[d]` in consecutive pieces, in turn as they were and out of `trained`."""
        at = used = 0
        for a, b in self.runs:
            yield from (weights[at:a], trained[used : used + b - a])
            at, used = b, used + b - a
        yield weights[at:]


@dataclass(frozen=True)
class Recipe:
    """The static side of a `Train` request: requests of equal recipes are trained in one cohort.

    Attributes:
        parts, context: kinds of the parts and of the context's entries.
        optimizers: (part, optimizer without its learning rate), for the parts that train.
        slices: (part, the slices that train), for model values that train.
        widths: batch widths of the main feed and the side feeds.
        frozen: running statistics are used and not moved (`Train.stats`, or a client of one sample).
        arithmetic: what networks compute with.
        padded: whether batches may have padding that BatchNorm has to leave out.
        private: norm and noise of DP-SGD (None: gradients are as they are).
    """

    loss: Loss | None
    step: Step | None
    parts: Kinds
    context: Kinds
    optimizers: tuple[tuple[str, Optimizer], ...]
    slices: tuple[tuple[str, Slices], ...]
    feeds: tuple[Hashable, ...]
    draws: Hashable
    frozen: bool
    arithmetic: Arithmetic
    padded: bool = False
    private: tuple[float, float] | None = None

    @property
    def name(self) -> str:
        """The name of the request's step, or of its loss where it has no step, for messages."""
        what = self.step or self.loss
        return getattr(what, "__qualname__", repr(what))

    @property
    def file(self) -> str | None:
        """The file of the request's step or loss, for messages."""
        code = getattr(self.step or self.loss, "__code__", None)
        return code and str(code.co_filename)

    @property
    def batch_statistics(self) -> bool:
        """Whether a part has running statistics, so that batches must not be padded."""
        return any(isinstance(kind, Spec) and has_batch_statistics(kind) for _, kind in self.parts)

    @property
    def moves_statistics(self) -> bool:
        """Whether a part moves statistics by its batches, BatchNorm's or a model's own, so that none is padded."""
        layers = (layer for _, kind in self.parts if isinstance(kind, Spec) for layer in kind.moving_layers)
        return self.batch_statistics or any(getattr(layer, "moves_statistics", False) for layer in layers)

    @property
    def network_draws(self) -> bool:
        """Whether a network draws in training, such as a mask of dropout."""
        return any(isinstance(kind, Spec) and kind.draws for _, kind in self.parts + self.context)

    @property
    def takes_padding(self) -> bool:
        """Whether BatchNorm moves its statistics, and can leave out padding: in layers that know how, of the only
        stream of batches."""
        specs = [kind for _, kind in self.parts + self.context if isinstance(kind, Spec)]
        layers = [
            layer
            for spec in specs
            for layer in spec.moving_layers
            if isinstance(layer, _BatchNorm) or getattr(layer, "moves_statistics", False)
        ]
        composed = any(isinstance(spec.module, Composed) for spec in specs)  # they call their parts themselves
        one_stream = not composed and len(self.feeds) == 1
        return self.batch_statistics and not self.frozen and one_stream and all(map(has_lane_norm, layers))

    @property
    def better_alone(self) -> bool:
        """Whether a part is a network that gains nothing from others of its kind side by side."""
        return any(isinstance(kind, Spec) and better_alone(kind) for _, kind in self.parts)

    @property
    def in_groups(self) -> bool:
        """Whether a part that trains has a convolution that a cohort would compute with a group for each client."""
        specs = [kind for _, kind in self.parts if isinstance(kind, Spec)]
        return any(in_groups(layer) for spec in specs for layer in spec.moving_layers)

    @property
    def recordable(self) -> bool:
        """Whether a step of one client alone can be recorded."""
        specs = [kind for _, kind in self.parts + self.context if isinstance(kind, Spec)]
        return all(getattr(spec.module, "recordable", True) for spec in specs)

    @property
    def channels_last(self) -> bool:
        """Whether all networks of the request take images in the layout `channels_last`."""
        specs = [kind for _, kind in self.parts + self.context if isinstance(kind, Spec)]
        return bool(specs) and all(takes_channels_last(spec) for spec in specs)


def is_convolutional(spec: Spec) -> bool:
    """Whether the network has convolutions."""
    return spec.has_layer(nn.Conv1d, nn.Conv2d, nn.Conv3d)


def better_alone(spec: Spec) -> bool:
    """Whether networks of several clients take longer side by side than one after the other, on a CPU."""
    return is_convolutional(spec) or bool(getattr(spec.module, "better_alone", False))


def has_batch_statistics(spec: Spec) -> bool:
    """Whether the network's output for one sample depends on the others of its batch, in training."""
    return any(isinstance(layer, _BatchNorm) for layer in spec.moving_layers)


def takes_channels_last(spec: Spec) -> bool:
    """Whether the network takes images in the layout `channels_last` (see `bench.models.network.Network`)."""
    return bool(getattr(spec.module, "channels_last", False))


Objective = Callable[[Flat], tuple[Tensor, tuple[Tensor, Flat]]]
Differentiate = Callable[[Objective, Flat], tuple[Flat, tuple[Tensor, Flat]]]


def differentiate(objective: Objective, trained: Flat) -> tuple[Flat, tuple[Tensor, Flat]]:
    """Compute gradients, and what the objective returns beside its value; `vmap` may map this over clients."""
    gradients: tuple[Flat, tuple[Tensor, Flat]] = torch.func.grad(objective, has_aux=True)(trained)
    return gradients


def differentiate_alone(objective: Objective, trained: Flat) -> tuple[Flat, tuple[Tensor, Flat]]:
    """Compute what `differentiate` does for one client, without `torch.func`.

    Nothing is kept for second derivatives, so a CNN takes a quarter less time.
    """
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in trained.items()}
    value, (loss, buffers) = objective(leaves)
    gradients: tuple[Tensor, ...]
    if value.requires_grad:
        gradients = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
    else:  # no trained part is in the loss
        gradients = tuple(torch.zeros_like(t) for t in trained.values())
    rest = loss.detach(), {name: tensor.detach() for name, tensor in buffers.items()}
    return dict(zip(trained, gradients, strict=True)), rest


class _NotedBatch(Batch):
    """A batch that notes whether a loss looks at its samples."""

    seen = False

    def __getattribute__(self, name: str) -> Any:
        if name in ("x", "y", "index", "weight", "share"):
            object.__setattr__(self, "seen", True)
        return super().__getattribute__(name)


class _Do:
    """The tools of one step (see `bench.requests.Do`).

    Attributes:
        reads: by name of a feed, how many gradients were taken of its batch; a gradient may read several, or none.
    """

    def __init__(
        self,
        recipe: Recipe,
        state: dict[str, OptimizerState],
        lr: Mapping[str, Tensor],
        batches: Mapping[str, _NotedBatch],
        differentiate: Differentiate,
        noise: Flat | None = None,
        key: Tensor | None = None,
    ) -> None:
        self._recipe = recipe
        self._differentiate = differentiate
        self._optimizers = dict(recipe.optimizers)
        self._slices = dict(recipe.slices)
        self._lr = lr
        self._batches = batches
        self._noise = noise or {}
        self._key = key
        self._draws = self._network_draws()
        self.state = dict(state)
        self.loss: Tensor | None = None
        self.reads: Counter[str] = Counter()

    def gradient(self, loss: Loss, values: Values, batch: Batch, ctx: Any) -> tuple[dict[str, Tensor], Values]:
        """Gradients of the trained parts, and the values with moved buffers."""
        for noted in self._batches.values():
            noted.seen = False

        trained = {name: self._take(name, values[name]) for name in self._optimizers}
        if self._recipe.private is not None:
            gradients, self.loss = self._private_gradient(loss, values, batch, ctx, trained)
            self.reads.update(name for name, noted in self._batches.items() if noted.seen)
            return gradients, values
        objective = self._objective(loss, values, batch, ctx, self._draws)
        gradients, (self.loss, buffers) = self._differentiate(objective, trained)
        self.reads.update(name for name, noted in self._batches.items() if noted.seen)
        return gradients, {n: v.with_buffers(buffers[n]) if n in buffers else v for n, v in values.items()}

    def _network_draws(self, position: Tensor | None = None) -> contextlib.AbstractContextManager[Any]:
        """A stream of what networks draw in this step, for a batch or for the sample at a position."""
        return contextlib.nullcontext() if self._key is None else NetworkDraws(self._key, position)

    def _objective(
        self, loss: Loss, values: Values, batch: Batch, ctx: Any, draws: contextlib.AbstractContextManager[Any]
    ) -> Objective:
        """The loss of a batch as a function of what trains."""

        def objective(trained: Flat) -> tuple[Tensor, tuple[Tensor, Flat]]:
            # `vars` bypasses `_NotedBatch`, so that this access is not counted as the loss's own.
            recipe, raw = self._recipe, vars(batch)
            padding = Padding(raw["x"], raw["weight"]) if recipe.padded else None
            model = Forward(frozen=recipe.frozen, arithmetic=recipe.arithmetic, padding=padding)
            full = {name: self._seen(name, v, trained[name]) if name in trained else v for name, v in values.items()}
            with draws:
                value = _as_loss(loss(model, full, batch, ctx), loss)
            return value, (value, {n: model.moved(v) for n, v in full.items() if isinstance(v, Params)})

        return objective

    def _private_gradient(
        self, loss: Loss, values: Values, batch: Batch, ctx: Any, trained: Flat
    ) -> tuple[Flat, Tensor]:
        """The mean of the samples' gradients, each clipped to a norm, with noise (DP-SGD), and the mean loss: sums over
        the number of samples that a batch has on average. The noise is divided by it already."""
        assert self._recipe.private is not None
        norm, noise = self._recipe.private
        gradients, losses = self._of_samples(loss, values, batch, ctx, trained)
        flat = {name: g.flatten(1) for name, g in gradients.items()}
        lengths = torch.stack([g.square().sum(1) for g in flat.values()]).sum(0).sqrt()
        share: Tensor = vars(batch)["share"]
        scale = (share * (norm / lengths.clamp(min=norm))).unsqueeze(1)
        noisy = {name: (scale * g).sum(0) + noise * norm * self._noise[name] for name, g in flat.items()}
        return {name: g.view_as(trained[name]) for name, g in noisy.items()}, (share * losses).sum()

    def _of_samples(self, loss: Loss, values: Values, batch: Batch, ctx: Any, trained: Flat) -> tuple[Flat, Tensor]:
        """The gradients `[samples, ...]` and losses `[samples]` of samples, each as a batch of its own."""
        raw = vars(batch)

        def of_sample(sample: dict[str, Any]) -> tuple[Flat, Tensor]:
            some = raw["weight"].new_ones(1)
            alone = _NotedBatch(
                **{name: sample[name].unsqueeze(0) for name in ("x", "y", "index")},
                weight=some,
                share=some,
                draws={name: draws.unsqueeze(0) for name, draws in sample["draws"].items()},
                step=raw["step"],
                in_epoch=raw["in_epoch"],
            )
            draws = self._network_draws(sample["position"])
            gradients, (value, _) = differentiate(self._objective(loss, values, alone, ctx, draws), trained)
            batch.seen |= alone.seen  # type: ignore[attr-defined]
            return gradients, value

        samples = {name: raw[name] for name in ("x", "y", "index", "draws")}
        samples["position"] = torch.arange(len(raw["weight"]), device=raw["weight"].device)
        of_each: tuple[Flat, Tensor] = torch.func.vmap(of_sample)(samples)
        return of_each

    def losses(self, values: Values, batch: Batch, ctx: Any) -> tuple[Tensor, Tensor]:
        """The loss of a batch `[]`, and those of its samples `[samples]`, each as a batch of its own."""
        loss, trained = self._recipe.loss, {name: self._take(name, values[name]) for name in self._optimizers}
        assert loss is not None, "a step of the method's own is refused before"
        _, (of_batch, _) = self._differentiate(self._objective(loss, values, batch, ctx, self._draws), trained)
        return of_batch, self._of_samples(loss, values, batch, ctx, trained)[1]

    def update(self, values: Values, gradients: dict[str, Tensor]) -> Values:
        """Take one optimizer step on the trained parts."""
        new = dict(values)
        for name, optimizer in self._optimizers.items():
            arguments = self._take(name, values[name]), gradients[name], self.state[name], self._lr[name]
            trained, self.state[name] = update(optimizer, *arguments)
            new[name] = self._put(name, values[name], trained)
        return new

    def _take(self, name: str, value: Any) -> Tensor:
        if isinstance(value, Params):
            return self._slices[name].take(value.weights)
        tensor: Tensor = value
        return tensor

    def _seen(self, name: str, value: Any, trained: Tensor) -> Any:
        """The value that a loss sees, in pieces: what does not train is not differentiated."""
        slices = self._slices.get(name)
        if slices is None or slices.everything:
            return self._put(name, value, trained)
        return value.with_pieces(slices.pieces(value.weights, trained))

    def _put(self, name: str, value: Any, trained: Tensor) -> Any:
        if isinstance(value, Params):
            return value.with_weights(self._slices[name].put(value.weights, trained))
        return trained


def _as_loss(value: Any, loss: Loss) -> Tensor:
    """Refuse a loss that is no single number."""
    name = getattr(loss, "__qualname__", repr(loss))
    if not isinstance(value, Tensor):
        raise TypeError(f"the loss {name} returned {type(value).__name__}, not a tensor: does it end in `return`?")
    if value.dim():
        raise ValueError(f"the loss {name} returned {value.dim()} dimensions, not one number: take `batch.mean` of it")
    return value


StepFunction = Callable[..., tuple[Flat, dict[str, OptimizerState], Tensor]]


def make_step(
    recipe: Recipe,
    plain_hp: Mapping[str, Any],
    count: Callable[[Counter[str]], None] = lambda reads: None,
    differentiate: Differentiate = differentiate,
) -> StepFunction:
    """Make the step function of a recipe; `count` is told how many gradients a step takes of each feed's batch.

    The function takes (parts, optimizer states, learning rates, batch, context, hyperparameter tensors) and returns the
    new parts, the new states and the loss of the batch.
    """

    def step(
        parts: Flat, state: dict[str, OptimizerState], lr: Flat, batch: dict[str, Any], context: Flat, hp: Flat
    ) -> tuple[Flat, dict[str, OptimizerState], Tensor]:
        values = rebuild(parts, recipe.parts)
        ctx: Any = SimpleNamespace(hp=SimpleNamespace(**plain_hp, **hp), **rebuild(context, recipe.context))
        inside = _batch(batch)
        batches: Any = {MAIN: inside, **inside.side}
        do = _Do(recipe, state, lr, batches, differentiate, batch.get("noise"), batch.get("key"))
        if recipe.step is not None:
            values = recipe.step(do, values, inside, ctx)
        else:
            assert recipe.loss is not None, "a Train request needs a loss or a step"
            gradients, values = do.gradient(recipe.loss, values, inside, ctx)
            values = do.update(values, gradients)
        count(do.reads)
        loss = do.loss if do.loss is not None else inside.weight.new_zeros(())
        return flatten(values), do.state, loss

    return step


def losses(
    recipe: Recipe, plain_hp: Mapping[str, Any], parts: Flat, batch: dict[str, Any], context: Flat, hp: Flat
) -> tuple[Tensor, Tensor]:
    """The loss of a batch `[]`, and those of its samples `[samples]`, each as a batch of its own.

    The arguments are those of `make_step` and of its function.
    """
    ctx: Any = SimpleNamespace(hp=SimpleNamespace(**plain_hp, **hp), **rebuild(context, recipe.context))
    do = _Do(recipe, {}, {}, {}, differentiate, key=batch.get("key"))
    return do.losses(rebuild(parts, recipe.parts), _batch(batch), ctx)


def _batch(raw: dict[str, Any]) -> _NotedBatch:
    return _NotedBatch(
        x=raw.get("x"),
        y=raw.get("y"),
        index=raw["index"],
        weight=raw["weight"],
        share=raw["share"],
        draws=raw["draws"],
        step=raw["step"],
        in_epoch=raw["in_epoch"],
        side={name: _batch(side) for name, side in raw["side"].items()},
    )
