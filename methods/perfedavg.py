"""Per-FedAvg: Fallah et al. 2020, "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach", Algorithm 1, with exact batches (three per step) and both approximations of its section 5:
first order (`fo`), and the Hessian-vector product at w by central differences (`hf`).

The outer step uses the cell's batches, so that with a zero inner step the method is FedAvg; the inner step and the
differences use batches of their own. Only the outer batch updates running statistics. Clients are weighted equally.
"""

from typing import Any, Literal

from bench.method import (
    METHODS, SGD, Batch, Client, Do, Feed, Hyperparameters, Method, Params, Program, Range, Server, State, Train,
    Upload, Values, cross_entropy, hp,
)  # fmt: skip


class Hyper(Hyperparameters):
    """Hyperparameters of Per-FedAvg; the outer rate beta is the cell's learning rate.

    `personal_steps`: number of steps from the generic to a personalized model, one batch each; None: one epoch.
    """

    variant: Literal["fo", "hf"] = hp("hf", static=True)
    alpha: float = hp(0.01, ge=0, search=Range(1e-3, 1e-1, log=True))
    delta: float = hp(1e-3, gt=0)
    personal_steps: int | None = hp(1, ge=0, static=True)

    def degenerate(self) -> list[str]:
        return ["alpha = 0: Per-FedAvg is FedAvg with equal weights"] if self.alpha == 0 else []


@METHODS.register("perfedavg")
class PerFedAvg(Method):
    """One generic model, trained so that it is good after a gradient step on a client's own data."""

    Hyper = Hyper
    trains = "both"
    mean_of = ("model",)

    def client_round(self, client: Client, down: State) -> Program:
        batches = {"inner": Feed(stream=1)}
        if self.hp.variant == "hf":
            batches["curvature"] = Feed(stream=2)
        step = {"fo": first_order, "hf": hessian_free}[self.hp.variant]
        trained = yield Train({"w": down["model"]}, step=step, side=batches)
        yield Upload({"model": trained["w"]}, weight=1.0)
        return trained["w"]

    def personal(self, server: Server, client: Client, down: State) -> Program:
        trained = yield Train(
            {"w": down["model"]},
            loss=cross_entropy,
            epochs=1,
            steps=self.hp.personal_steps,
            optimizer=SGD(lr=self.hp.alpha, momentum=0.0, weight_decay=0.0),
        )
        return trained["w"]


def first_order(do: Do, values: Values, batch: Batch, ctx: Any) -> Values:
    """w - beta g with g = grad f(w - alpha grad f(w; D); D')."""
    outer, moved = adapted_gradient(do, values["w"], batch, ctx)
    return do.update({"w": moved}, {"w": outer})


def hessian_free(do: Do, values: Values, batch: Batch, ctx: Any) -> Values:
    """w - beta (g - alpha H g), with H g from the gradients at w + delta g and w - delta g on D''."""
    w = values["w"]
    outer, moved = adapted_gradient(do, w, batch, ctx)
    ahead = slope(do, w.with_weights(w.weights + ctx.hp.delta * outer), batch.side["curvature"], ctx)
    behind = slope(do, w.with_weights(w.weights - ctx.hp.delta * outer), batch.side["curvature"], ctx)
    return do.update({"w": moved}, {"w": outer - ctx.hp.alpha / (2 * ctx.hp.delta) * (ahead - behind)})


def adapted_gradient(do: Do, w: Params, batch: Batch, ctx: Any) -> tuple[Any, Params]:
    """The gradient on D' after an inner step on D, and w with the running statistics updated by D'."""
    inner = slope(do, w, batch.side["inner"], ctx)
    adapted = w.with_weights(w.weights - ctx.hp.alpha * inner)
    outer, moved = do.gradient(cross_entropy, {"w": adapted}, batch, ctx)
    return outer["w"], w.with_buffers(moved["w"].buffers)


def slope(do: Do, w: Params, batch: Batch, ctx: Any) -> Any:
    """grad f(w) on a batch, `[d]`."""
    return do.gradient(cross_entropy, {"w": w}, batch, ctx)[0]["w"]
