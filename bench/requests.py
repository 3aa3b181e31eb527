"""The requests that a program may `yield` to the engine. Requests are values; the engine serves whole cohorts."""

import ast
import linecache
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, NoReturn, Protocol, get_args

from torch import Tensor

from bench.errors import UserError
from bench.model_call import Forward, Stats
from bench.optim import Optimizer, OptimizerState
from bench.params import Params, Prefixes

Value = Params | Tensor
Order = Literal["shuffle", "uniform", "cyclic"]
Samples = Literal["train", "remainder", "holdout", "earlier", "public", "pooled", "none"]


@dataclass(frozen=True)
class Feed:
    """The source of a step's batches.

    Attributes:
        samples: the client's `train` data, its `holdout` share or the `remainder` of its training data, the `public`
            set, or `none`; `earlier`: training samples that it had before its data changed and has no longer; `pooled`
            is the training data of all clients that take part, and only the server of a method that is a `bound` may
            use it.
        batch_size: number of samples in a batch; None: as the cell says.
        order: `shuffle`: a new permutation for every epoch, each ending with a short batch; `uniform`: each batch is
            drawn without replacement and has min(batch size, n) samples; `cyclic`: the stored order, repeated.
        stream: part of the address of the random draws; every main feed has 0, so that methods share their batches.
        subset: use this many samples, drawn anew in each round and equal for all requests of the round; None: all. Of
            `earlier` samples those with the lowest random ranks, the same in all rounds until the data change again.
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
    """Standard normal draws of the given shape for each sample: `[samples, *shape]` in a batch."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class Categorical:
    """A class drawn with the given probabilities for each sample: `[samples]` in a batch."""

    p: tuple[float, ...]


Draw = Normal | Categorical


@dataclass
class Batch:
    """One batch inside a loss.

    Attributes:
        x: `[samples, ...]` normalised inputs (None without data).
        y: `[samples]` labels (None without data).
        index: `[samples]` positions in the feed's list of samples.
        weight: `[samples]`, 1 for a sample and 0 for padding.
        share: `[samples]`, the weight divided by the sum of the weights.
        draws: the random draws of the request by name, `[samples, ...]` each.
        step: number of this step in the request, from 0, `[]`.
        in_epoch: number of this step in its epoch, from 0, `[]`.
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
        """Mean over the samples of the batch; always use it, because other reductions would include the padding."""
        return (self.share * per_sample).sum()


class Context(Protocol):
    """The argument `ctx` of a loss.

    Attributes:
        hp: the method's hyperparameters, e.g. `ctx.hp.mu`: a number, or a tensor `[]` where it may differ from cell to
            cell; all further attributes are the tensors and model values of `Train(context=...)`, by name.
    """

    hp: Any

    def __getattr__(self, name: str) -> Any: ...


Values = dict[str, Any]
Loss = Callable[[Forward, Values, Batch, Context], Tensor]
"""`loss(model, values, batch, ctx)`: the mean over a batch, `[]`. The engine calls it for many clients at once."""


class Do(Protocol):
    """The tools of a custom step.

    Attributes:
        loss: the loss at the last `gradient`, `[]`; None before the first one.
    """

    loss: Tensor | None

    def gradient(self, loss: Loss, values: Values, batch: Batch, ctx: Context) -> tuple[dict[str, Tensor], Values]:
        """Gradients of the trained parts, and the values with updated buffers."""

    def update(self, values: Values, gradients: dict[str, Tensor]) -> Values:
        """Take one optimizer step on the trained parts and return the values after it."""


Step = Callable[[Do, Values, Batch, Context], Values]
"""`step(do, values, batch, ctx)`: the values after one step."""


_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Train(NamedTuple):  # not a frozen dataclass: one per client and round is made, and that takes four times as long
    """Train named parts; the answer is a `Trained`.

    Attributes:
        values: the parts, e.g. `{"w": down["model"]}`; a part without an optimizer does not change.
        loss: static function `loss(model, values, batch, ctx) -> scalar`.
        step: static function `step(do, values, batch, ctx) -> values` in place of the plain gradient step.
        epochs, steps: length of the training; both None: as the cell says. `steps` takes precedence over `epochs`.
        feed: the source of batches; `side`: sources of further batches by name, drawn beside the main one.
        optimizer: one for all parts, or one per part; None: the cell's optimizer for every part.
        optimizer_state: an optimizer state to continue from, by part (as in `Trained`).
        only: prefixes of the tensors to train, by part; the rest of the part is frozen.
        context: tensors and model values for the loss, by name.
        draws: random draws per sample, by name.
        stats: `frozen`: BatchNorm uses running statistics and never moves them, whatever the loss says; batches of one
            sample then count. `batch`: as the loss says; a last batch of one sample is dropped.
    """

    values: Mapping[str, Value]
    loss: Loss | None = None
    step: Step | None = None
    epochs: int | None = None
    steps: int | None = None
    feed: Feed = Feed()
    side: Mapping[str, Feed] = _NOTHING
    optimizer: Optimizer | Mapping[str, Optimizer] | None = None
    optimizer_state: Mapping[str, OptimizerState] | None = None
    only: Mapping[str, Prefixes] = _NOTHING
    context: Mapping[str, Value] = _NOTHING
    draws: Mapping[str, Draw] = _NOTHING
    stats: Stats = "batch"

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, str):
            raise TypeError(f"a Train has no {at!r}: its answer has, `trained = yield Train(...)`")
        return tuple.__getitem__(self, at)


@dataclass(frozen=True)
class Trained:
    """The answer to `Train`; `trained["w"]` is the part `w`.

    Attributes:
        values: trained parts by name, of the shapes that they had.
        optimizer_state: optimizer states by part, from which another `Train` may continue.
        steps: number of steps.
        loss: mean of the losses of the steps, `[]`.
    """

    values: Mapping[str, Any]
    optimizer_state: Mapping[str, OptimizerState]
    steps: int
    loss: Tensor

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __iter__(self) -> NoReturn:
        """Refuse `w, loss = yield Train(...)`, which Python would answer by `KeyError: 0`."""
        raise TypeError("the answer to Train is no tuple: take trained['w'], trained.loss or trained.steps")


@dataclass(frozen=True)
class Gradient:
    """The gradient of the mean loss over all samples of a kind; the answer is `(gradients by part, loss [])`.

    Running statistics are frozen: with those of batches, the loss would depend on how samples are divided into batches.

    A gradient has the shape of its part: `[d]` of a model value's weights, or the tensor's shape.

    Attributes:
        values: the parts by name, as in `Train`; the gradient is with respect to all of them.
        loss: static function `loss(model, values, batch, ctx) -> scalar`.
        context: tensors and model values for the loss, by name.
        samples: kind of samples, as in `Feed`.
    """

    values: Mapping[str, Value]
    loss: Loss
    context: Mapping[str, Value] = field(default_factory=dict)
    samples: Samples = "train"


@dataclass(frozen=True)
class Predict:
    """Outputs of a model value on samples, with frozen running statistics.

    The answer is `[samples, classes]`, or `[samples, width]` for features.

    Attributes:
        w: the model value.
        samples: kind of samples, as in `Feed`.
        output: probabilities, logits or features (the input of the head).
        subset: only the samples that a feed with the same `subset` has in this round, in the feed's order; None: all.
    """

    w: Params
    samples: Samples = "public"
    output: Literal["probabilities", "logits", "features"] = "probabilities"
    subset: int | None = None


@dataclass(frozen=True)
class Evaluate:
    """Loss and accuracy of k model values on samples; the answer is `(losses [k], accuracies [k])`.

    Losses are mean cross-entropies in nats, accuracies are shares from 0 to 1. The answer is in the host's memory, so
    that a program can branch on it.

    Attributes:
        models: the k model values.
        samples: kind of samples, as in `Feed`, mostly `train` or `holdout`.
    """

    models: Sequence[Params]
    samples: Samples = "train"


@dataclass(frozen=True)
class ClassStats:
    """Sums of a model's outputs by class, over the client's training samples, with frozen running statistics.

    The answer is a `ClassSums`. The engine computes the sums, so a program never sees the label of a sample. An upload
    of the sums still reveals which classes a client has.

    Attributes:
        model: the model value.
        of: features (the input of the head), their directions (features scaled to length 1), logits or probabilities.
        moments: 1: sums only; 2: also sums of outer products.
    """

    samples: ClassVar[Samples] = "train"
    model: Params
    of: Literal["features", "directions", "logits", "probabilities"] = "features"
    moments: Literal[1, 2] = 1


@dataclass(frozen=True)
class ClassSums:
    """The answer to `ClassStats`; all values are 0 for a class without samples.

    Attributes:
        count: `[classes]` numbers of samples.
        sum: `[classes, d]` sums of the outputs `z`.
        outer: `[classes, d, d]` sums of `z z^T` (None with one moment).
    """

    count: Tensor
    sum: Tensor
    outer: Tensor | None = None

    @property
    def mean(self) -> Tensor:
        """Mean output per class, `[classes, d]`; 0 for a class without samples."""
        return self.sum / self.count.clamp(min=1).unsqueeze(1)


class Upload(NamedTuple):  # not a dataclass for the same reason as `Train`
    """A message to the server; the program continues at once. Plain numbers and texts are not counted as traffic.

    Attributes:
        values: model values, tensors and plain numbers by name.
        weight: weight in averages; None: the client's number of training samples.
    """

    values: Mapping[str, Any]
    weight: float | None = None


@dataclass(frozen=True)
class Exchange:
    """A message to the server; the program waits for the reply within the round.

    The answer is what the method's `reply` returns for the client.

    Attributes:
        values: model values, tensors and plain numbers by name.
    """

    values: Mapping[str, Any]


Request = Train | Gradient | Predict | Evaluate | ClassStats | Upload | Exchange


def not_a_request(yielded: Any) -> str:
    """Say what is wrong with a value that a program yielded; empty for a request whose values have names."""
    kind = type(yielded).__name__
    if isinstance(yielded, Request):
        values = getattr(yielded, "values", {})
        if isinstance(values, Mapping):
            return _wrong_value(kind, values) or (_wrong_option(yielded) if isinstance(yielded, Train) else "")
        return f"{kind}({type(values).__name__}) has no names: write {kind}({{'name': ...}})"
    if isinstance(yielded, type) and issubclass(yielded, Request):
        return f"the class {yielded.__name__} was yielded, not a request: write {yielded.__name__}(...)"
    if isinstance(yielded, Generator):
        return f"the program {getattr(yielded, '__name__', kind)} was yielded: write `yield from`"
    if isinstance(yielded, tuple | list) and any(isinstance(part, Request) for part in yielded):
        return f"a {kind} was yielded: yield requests one by one, without a comma after them"
    return f"a {kind} was yielded, which is no request: yield Train(...), Upload(...), Predict(...) or another one"


def _wrong_value(kind: str, values: Mapping[str, Any]) -> str:
    """Say which of a request's values is an answer, or a model value with other weights than its network has."""
    for name, value in values.items():
        if isinstance(value, Trained):
            return f"{kind}({{{name!r}: ...}}) holds the answer to Train: take a part of it, such as trained['w']"
        if isinstance(value, Params) and value.weights.shape != (value.spec.d,):
            sizes = f"{list(value.weights.shape)} where its network has [{value.spec.d}]"
            return f"{kind}({{{name!r}: ...}}) holds a model value with weights {sizes}: `with_weights` takes as many"
    return ""


def _wrong_option(train: Train) -> str:
    """Say which option of a training is of another library or type."""
    if str(getattr(train.loss, "__module__", "")).partition(".")[0] == "torch":
        name = getattr(train.loss, "__name__", type(train.loss).__name__)
        return (
            f"Train(loss={name}) is torch's: give it `cross_entropy` of bench.method, or write a function "
            "loss(model, values, batch, ctx) that calls torch's"
        )
    for option, number in (("epochs", train.epochs), ("steps", train.steps)):
        if number is not None and not isinstance(number, Integral):
            return f"Train({option}={number!r}): give it a whole number"
    optimizers = train.optimizer if isinstance(train.optimizer, Mapping) else {"": train.optimizer}
    for optimizer in optimizers.values():
        if optimizer is not None and not isinstance(optimizer, Optimizer):
            return f"Train(optimizer={optimizer!r}): give it SGD(lr=...) or Adam(...) of bench.method"
    return ""


def refuse_unyielded(cls: type) -> None:
    """Refuse a class whose file has a request that stands alone and is not yielded, so that nobody answers it.

    Python says nothing of `Upload(...)` on a line of its own; `trained = Train(...)` fails where `trained` is read.

    Raises:
        UserError: the message names file, line and request.
    """
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    if file is None:  # a notebook, whose class is saved to a file before it runs
        return
    kinds = get_args(Request)
    names = {name for name, value in vars(module).items() if any(value is kind for kind in kinds)}
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):  # the file was changed since it was imported
        return
    for node in ast.walk(tree):
        called = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
        if isinstance(called, ast.Name) and called.id in names:
            name = called.id
            raise UserError(
                f"{file}:{called.lineno}: {name}(...) is never yielded, so it does nothing: write `yield {name}(...)`"
            )
