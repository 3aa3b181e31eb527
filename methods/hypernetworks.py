"""Functions shared by methods whose server makes models with a network (hypernetwork)."""

from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from bench.method import Batch, Params, Values


def output(net: Params, z: Tensor) -> Tensor:
    """A network without buffers applied to rows, outside a loss."""
    found: Tensor = functional_call(net.spec.module, net.tensors(), (z,))
    return found


def dense(inputs: int, hidden: int, layers: int, outputs: int) -> nn.Module:
    """A linear layer, `layers` times ReLU and a linear layer, and a last linear layer; if 0, only a linear map."""
    if layers == 0:
        return nn.Linear(inputs, outputs, bias=False)
    stack: list[nn.Module] = [nn.Linear(inputs, hidden)]
    for _ in range(layers):
        stack += [nn.ReLU(), nn.Linear(hidden, hidden)]
    return nn.Sequential(*stack, nn.Linear(hidden, outputs))


def pulled_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """sum_i <h(v_i), theta_i - theta_i'>; its gradient is the vector-Jacobian product with theta_i - theta_i'.

    The rows of `ctx.moved` are these changes in training; those of `ctx.pick` select the embeddings v_i.
    """
    return (model.call("forward", values["hyper"], ctx.pick @ values["embeddings"]) * ctx.moved).sum()
