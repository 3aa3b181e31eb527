"""MR-MTL: Liu, Hu, Wu and Smith 2022 (NeurIPS), "On Privacy and Personalization in Cross-Silo Federated Learning",
mean-regularised multi-task learning: min sum_i F_i(w_i) + lambda/2 ||w_i - mean of all w||^2.
"""

from typing import Any

from bench.method import (
    METHODS, Batch, Client, Hyperparameters, Method, Params, Program, Range, Server, State, Train, Upload, Values,
    cross_entropy, hp,
)  # fmt: skip
from methods.losses import proximal


class Hyper(Hyperparameters):
    """Hyperparameters of MR-MTL."""

    lam: float = hp(1.0, ge=0, search=Range(0.01, 10, log=True))

    def degenerate(self) -> list[str]:
        return ["lam = 0: the personalized models of MR-MTL are those of Local"] if self.lam == 0 else []


@METHODS.register("mrmtl")
class MRMTL(Method):
    """Clients keep training their own models, pulled towards the mean of all models, which itself is not trained."""

    Hyper = Hyper
    trains = "both"
    mean_of = ("model",)

    def init_client(self, server: Server, client: Client) -> None:
        client.state["personal"] = server.initial_model()

    def client_round(self, client: Client, down: State) -> Program:
        context = {"center": down["model"].weights}
        trained = yield Train({"w": client.state["personal"]}, loss=pulled_loss, context=context)
        client.state["personal"] = trained["w"]
        yield Upload({"model": trained["w"]})
        return trained["w"]

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return client.state["personal"]


def pulled_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Any:
    """Cross-entropy + lam/2 ||w_i - mean||^2."""
    return cross_entropy(model, values, batch, ctx) + ctx.hp.lam * proximal(values["w"], ctx.center)
