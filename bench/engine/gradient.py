"""The gradient over all samples of a client, as a training that sums gradients and does not change the model."""

import functools
from typing import Any

import torch
from torch import Tensor

from bench.optim import SGD
from bench.params import Params
from bench.requests import Batch, Do, Feed, Gradient, Loss, Step, Train, Trained, Value, Values

_SUM = "sum of "


def as_train(request: Gradient) -> Train:
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
