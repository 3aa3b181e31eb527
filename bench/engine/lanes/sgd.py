"""One step of SGD for all networks of a cohort, in one pass over memory.

Written as PyTorch operations, weight decay, momentum and the step itself are passes of their own, and so is the copy of
the tensors' gradients into one vector. Here weights, velocities and gradients are read once, and new weights and
velocities are written once; the gradients may be several tensors side by side. On a GPU the operation is a kernel
(`bench/engine/lanes/sgd_kernel.py`); elsewhere it consists of PyTorch's operations, which round in the same places.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from bench import tensors
from bench.optim import SGD, Optimizer, OptimizerState, clipped


def update(
    optimizer: Optimizer, w: Tensor, g: Tensor, state: OptimizerState, lr: Tensor
) -> tuple[Tensor, OptimizerState]:
    """Take one step of an optimizer; on a GPU, SGD is one operation, which rounds differently.

    Args:
        w, g: weights and gradient `[d]`.
        lr: learning rate `[]`.
    """
    if not (tensors.on_gpu(w) and isinstance(optimizer, SGD) and w.dim() == 1):
        return optimizer.update(w, g, state, lr)
    momentum, decay = optimizer.momentum or 0.0, optimizer.weight_decay or 0.0
    velocity = [state["velocity"]] if momentum else []
    gradient, nesterov = clipped(optimizer.clip, g), bool(optimizer.nesterov)
    w, *moved = sgd_step([w, *velocity], gradient, lr, momentum=momentum, decay=decay, nesterov=nesterov)
    return w, {"velocity": moved[0]} if moved else state


def sgd_step(
    state: Sequence[Tensor], g: Tensor, lr: Tensor, *, momentum: float, decay: float, nesterov: bool
) -> list[Tensor]:
    """The new weights `[d]` and, with momentum, the new velocity `[d]`.

    Args:
        state: weights `[d]` and, with momentum, the velocity `[d]`.
        g: gradient `[d]`.
        lr: learning rate `[]`.
        momentum: 0 if `state` has no velocity.
        decay: share of the weights that is added to the gradient.
    """
    vectors = _sgd([t.unsqueeze(0) for t in state], [g.unsqueeze(0)], [], lr.unsqueeze(0), momentum, decay, nesterov)
    return [t.squeeze(0) for t in vectors]


@custom_op("pfleague::lane_sgd", mutates_args=())
def _sgd(
    state: Sequence[Tensor],
    gradient: Sequence[Tensor],
    more: Sequence[Tensor],
    lr: Tensor,
    momentum: float,
    decay: float,
    nesterov: bool,
) -> list[Tensor]:
    """Take the step of `sgd_step` for all lanes: `state` is `[lanes, d]` and `lr` `[lanes]`.

    The gradient consists of pieces `[lanes, ...]` of any floating-point dtype, which make up `[lanes, d]` if they are
    flattened and concatenated. `more` is nothing, or a further gradient `[lanes, d]` to be added, as that of a
    regulariser.
    """
    if all(t.dtype == torch.float32 for t in state) and (
        kernels := tensors.triton_kernels("bench.engine.lanes.sgd_kernel", lr)
    ):
        stepped: list[Tensor] = kernels.sgd(state, gradient, more, lr, momentum, decay, nesterov)
        return stepped
    return plain_sgd(state, gradient, more, lr, momentum, decay, nesterov)


def plain_sgd(
    state: Sequence[Tensor],
    gradient: Sequence[Tensor],
    more: Sequence[Tensor],
    lr: Tensor,
    momentum: float,
    decay: float,
    nesterov: bool,
) -> list[Tensor]:
    """Take the step in PyTorch's operations; the kernel gives the same bits."""
    w, velocity = state[0], state[1:]
    g = torch.cat([piece.to(w.dtype).flatten(1) for piece in gradient], 1)
    for other in more:
        g = g + other
    if decay:
        g = g + decay * w
    if velocity:
        moved = g + momentum * velocity[0]
        velocity, g = [moved], g + momentum * moved if nesterov else moved
    return [w - lr[:, None] * g, *velocity]


@_sgd.register_fake
def _(state: Sequence[Tensor], *_: Any) -> list[Tensor]:
    return [torch.empty_like(t) for t in state]


@_sgd.register_vmap
def _(
    info: Any,
    in_dims: tuple[Any, ...],
    state: Sequence[Tensor],
    gradient: Sequence[Tensor],
    more: Sequence[Tensor],
    lr: Tensor,
    *rest: Any,
) -> tuple[list[Tensor], list[int]]:
    lanes = info.batch_size

    def merged(t: Tensor, dim: int | None) -> Tensor:
        return (t.expand(lanes, *t.shape) if dim is None else t.movedim(dim, 0)).flatten(0, 1)

    vectors = [[*map(merged, *pair)] for pair in zip((state, gradient, more), in_dims[:3], strict=True)]
    results = _sgd(*vectors, merged(lr, in_dims[3]), *rest)
    return [t.unflatten(0, (lanes, -1)) for t in results], [0] * len(results)
