"""What a program may ask of the engine with `yield`. Requests are values; the engine works for whole cohorts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from torch import Tensor

from bench.forward import Forward
from bench.optim import Optimizer, State
from bench.params import Params, Prefixes

Value = Params | Tensor
Order = Literal["shuffle", "uniform", "cyclic"]
Samples = Literal["train", "remainder", "holdout", "public", "pooled", "none"]


@dataclass(frozen=True)
class Feed:
    """Where the batches of a step come from.

    Attributes:
        samples: the client's `train` data, its keyed `holdout` share or the `remainder`, the `public` set, or `none`;
            `pooled`, for the server of a method that is a `bound`: the training data of all clients that take part.
        batch_size: None: the cell's.
        order: `shuffle`: one permutation after the other, a short batch at the end of each; `uniform`: each batch drawn
            without replacement, of size min(batch size, n); `cyclic`: in stored order, again and again.
        stream: part of the address of the draws; 0 for every main feed, so that methods share their batches.
        subset: so many of the samples, drawn afresh for each round and the same for all who ask in it; None: all.
        augment: whether the cell's augmentation applies to training samples.
    """

    samples: Samples = "train"
    batch_size: int | None = None
    order: Order = "shuffle"
    stream: int = 0
    subset: int | None = None
    augment: bool = True


@dataclass(frozen=True)
class Normal:
    """Standard normal draws of the given shape per sample."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class Categorical:
    """A class drawn per sample with the given probabilities."""

    p: tuple[float, ...]


Draw = Normal | Categorical


@dataclass
class Batch:
    """One batch inside a loss.

    Attributes:
        x: `[samples, ...]` normalised inputs (None without data).
        y: `[samples]` labels (None without data).
        index: `[samples]` positions in the feed's own list.
        weight: `[samples]`, 1 for a sample and 0 for padding.
        share: `[samples]`, the weight divided by the sum of the weights.
        draws: what the request's `draws` asked for, `[samples, ...]` each.
        step: number of this step within the request, from 0, `[]`.
        in_epoch: number of this step within its epoch, from 0, `[]`.
        side: the batches of the side feeds.
    """

    x: Any
    y: Any
    index: Tensor
    weight: Tensor
    share: Tensor
    draws: dict[str, Tensor]
    step: Tensor
    in_epoch: Tensor
    side: dict[str, "Batch"] = field(default_factory=dict)

    def mean(self, per_sample: Tensor) -> Tensor:
        """Mean over the samples of the batch; the only reduction over samples that knows of padding."""
        return (self.share * per_sample).sum()


class Context(Protocol):
    """What a loss gets as `ctx`: the request's context by name, and the method's hyperparameters as `ctx.hp`."""

    hp: Any

    def __getattr__(self, name: str) -> Any: ...


Values = dict[str, Any]
Loss = Callable[[Forward, Values, Batch, Any], Tensor]


class Do(Protocol):
    """The tools of a custom step.

    Attributes:
        loss: the loss at the last `gradient`.
    """

    loss: Tensor | None

    def gradient(self, loss: Loss, values: Values, batch: Batch, ctx: Any) -> tuple[dict[str, Tensor], Values]:
        """Gradients of the trained parts, and the values with moved buffers."""

    def update(self, values: Values, gradients: dict[str, Tensor]) -> Values:
        """One optimizer step on the trained parts."""


Step = Callable[[Do, Values, Batch, Any], Values]


_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Train(NamedTuple):  # one for each client in each round: a frozen dataclass takes four times as long to make
    """Train named parts; the answer is a `Trained`.

    Attributes:
        values: the parts, e.g. `{"w": down["model"]}`; a part without optimizer stays as it is.
        loss: static function `loss(model, values, batch, ctx) -> scalar`.
        step: static function `step(do, values, batch, ctx) -> values` in place of the plain gradient step.
        epochs, steps: how long; both None: as the cell says. Steps win over epochs.
        feed: the batches; `side`: further batches by name, drawn beside the main one.
        optimizer: for all parts, or by part; None: the cell's for every part.
        optimizer_state: a state to go on from, by part (as in `Trained`).
        only: prefixes of the tensors that train, by part; the rest of the part is frozen.
        context: tensors and model values for the loss, by name.
        draws: random draws per sample, by name.
    """

    values: Mapping[str, Value]
    loss: Loss | None = None
    step: Step | None = None
    epochs: int | None = None
    steps: int | None = None
    feed: Feed = Feed()
    side: Mapping[str, Feed] = _NOTHING
    optimizer: Optimizer | Mapping[str, Optimizer] | None = None
    optimizer_state: Mapping[str, State] | None = None
    only: Mapping[str, Prefixes] = _NOTHING
    context: Mapping[str, Value] = _NOTHING
    draws: Mapping[str, Draw] = _NOTHING


@dataclass(frozen=True)
class Trained:
    """The answer to `Train`: trained parts by name, optimizer states by part, steps taken, mean loss over the steps."""

    values: Mapping[str, Any]
    optimizer_state: Mapping[str, State]
    steps: int
    loss: Tensor

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


@dataclass(frozen=True)
class Gradient:
    """The gradient of the mean loss over all samples of the feed; the answer is `(gradients by part, loss)`."""

    values: Mapping[str, Value]
    loss: Loss
    context: Mapping[str, Value] = field(default_factory=dict)
    samples: Samples = "train"


@dataclass(frozen=True)
class Predict:
    """Outputs of a model value on samples, running statistics frozen: `[samples, classes]` (or features).

    With `subset` on those samples only that a feed of the same subset has in this round, in the feed's own order.
    """

    w: Params
    samples: Samples = "public"
    output: Literal["probabilities", "logits", "features"] = "probabilities"
    subset: int | None = None


@dataclass(frozen=True)
class Evaluate:
    """Loss and accuracy of model values on `train` or `holdout`; the answer is `(losses [k], accuracies [k])`.

    It is in the host's memory, to be decided by.
    """

    models: Sequence[Params]
    samples: Samples = "train"


@dataclass(frozen=True)
class ClassStats:
    """Sums of a model's outputs by class, over the client's own training samples, running statistics frozen.

    The answer is a `ClassSums`. The engine adds up: a program sees no sample's label. What it uploads still tells which
    classes a client has.

    Attributes:
        model: the model value.
        of: features (the input of the head), their directions (features of length 1), logits or probabilities.
        moments: 2: outer products as well.
    """

    samples: ClassVar[Samples] = "train"
    model: Params
    of: Literal["features", "directions", "logits", "probabilities"] = "features"
    moments: Literal[1, 2] = 1


@dataclass(frozen=True)
class ClassSums:
    """The answer to `ClassStats`; 0 where a class has no sample.

    Attributes:
        count: `[classes]` samples.
        sum: `[classes, d]`.
        outer: `[classes, d, d]`, the sums of `z z^T` (None with one moment).
    """

    count: Tensor
    sum: Tensor
    outer: Tensor | None = None

    @property
    def mean(self) -> Tensor:
        """`[classes, d]`; 0 where a class has no sample."""
        return self.sum / self.count.clamp(min=1).unsqueeze(1)


class Upload(NamedTuple):  # as many as of `Train`
    """A message to the server; the program goes on at once. Plain numbers travel free of charge.

    Attributes:
        values: model values, tensors and plain numbers by name.
        weight: weight in averages; None: the client's number of training samples.
    """

    values: Mapping[str, Any]
    weight: float | None = None


@dataclass(frozen=True)
class Exchange:
    """A message to the server whose reply the program waits for, inside the round."""

    values: Mapping[str, Any]


Request = Train | Gradient | Predict | Evaluate | ClassStats | Upload | Exchange
