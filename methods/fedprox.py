"""FedProx: Li et al. 2020, "Federated Optimization in Heterogeneous Networks", Algorithm 2 with the cell's SGD."""

from typing import Any

from bench.method import (
    METHODS, Batch, Client, Hyperparameters, Method, Program, Range, State, Train, Upload, Values, cross_entropy, hp,
)  # fmt: skip
from methods.losses import proximal


class Hyper(Hyperparameters):
    """Hyperparameters of FedProx; the paper tries mu in {0.001, 0.01, 0.1, 1} and keeps the best per data set."""

    mu: float = hp(0.01, ge=0, search=Range(1e-4, 1, log=True))

    def degenerate(self) -> list[str]:
        return ["mu = 0: FedProx is FedAvg"] if self.mu == 0 else []


@METHODS.register("fedprox")
class FedProx(Method):
    """FedAvg whose clients are pulled to the model that they received."""

    Hyper = Hyper
    mean_of = ("model",)

    def client_round(self, client: Client, down: State) -> Program:
        w = down["model"]
        trained = yield Train({"w": w}, loss=proximal_loss, context={"center": w.weights})
        yield Upload({"model": trained["w"]})
        return trained["w"]


def proximal_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Any:
    """Cross-entropy + mu/2 ||w - w^t||^2."""
    return cross_entropy(model, values, batch, ctx) + ctx.hp.mu * proximal(values["w"], ctx.center)
