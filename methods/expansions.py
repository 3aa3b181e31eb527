"""First-order expansions of the other clients' risks, and the steps of PGFed (Luo et al. 2023) that use them; for
`methods.pgfed`.
"""

from typing import Any

from torch import Tensor

from bench.method import Batch, Do, Params, Values, cross_entropy


def expansions(constants: Tensor, mean_gradient: Tensor, w: Params, mu: Any) -> Tensor:
    """Gradient of the objective with respect to alpha, `[M]`: mu g^(1)_j + the common estimate of g^(2)_j at w."""
    return mu * constants + mean_gradient @ w.weights


def auxiliary_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Any:
    """Cross-entropy + the auxiliary risk without its constants, whose gradient is the auxiliary gradient."""
    return cross_entropy(model, values, batch, ctx) + ctx.auxiliary @ values["w"].weights


def joint_step(do: Do, values: Values, batch: Batch, ctx: Any) -> Values:
    """One SGD step on theta_i and one step on alpha_i, projected to alpha >= 0; both use the values before the step."""
    risks = expansions(ctx.constants, ctx.mean_gradient, values["w"], ctx.hp.mu)
    gradients, values = do.gradient(auxiliary_loss, values, batch, ctx)
    alpha = (values["alpha"] - ctx.hp.lam * risks).clamp(min=0)
    return do.update(values, gradients) | {"alpha": alpha}
